// Times the package on this machine's CPU, in one run.
//
// First, every function takes turns with its traffic floor (a loop that only reads and writes the same memory) and with
// its peers (the same function in other libraries and in plain TypeScript). Then the run compares variants of the
// package's own calls: threads, layouts, masks, dtypes, small calls, advantage functions, losses that are written as
// expressions, and the losses of other frameworks. It prints tables of medians, writes bench/results/<cpu>.json, draws
// bench/speed.svg, and says which of the project's speed targets are met.
//
//   npm run bench [-- --quick | --frameworks | --logits | --check] [--only REGEX] [--no-peers] [--rounds 9] [--markdown]
//
// --quick times only PPO, in few rounds. --frameworks times only the losses of other frameworks and papers, and --logits
// only what starts from logits. --check
// compares results with the peers' and times nothing. --only selects the functions whose names match. A run that leaves
// something out writes to build/bench instead of bench/results. --markdown prints the tables for
// bench/README.md. To time another native module, such as a prebuilt one, set the environment variable
// POLICY_LOSS_NATIVE to its absolute path.
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { bars, barsTable } from './lib/bars.js';
import { timeCores } from './lib/cores.js';
import { eventLoopTable, timeEventLoop } from './lib/event-loop.js';
import { expressionsTable, expressionWorks, timeExpressions, timePpo } from './lib/expressions.js';
import { frameworksTable, timeFrameworks } from './lib/frameworks.js';
import {
  CACHED,
  checkPeers,
  contendersTable,
  functionsTable,
  LARGE,
  MIDDLE,
  SMALL,
  timeFunctions,
} from './lib/functions.js';
import { logitsTable, timeLogits } from './lib/logits.js';
import { describeMachine, slug } from './lib/machine.js';
import { measureMemory, memoryTable } from './lib/memory.js';
import { drawLogits, drawSpeed } from './lib/picture.js';
import { find, type Report, save } from './lib/report.js';
import { summaryTable } from './lib/summary.js';
import { printer } from './lib/tables.js';
import {
  dtypesTable,
  layoutsTable,
  threadsTable,
  timeAdvantages,
  timeDtypes,
  timeLayouts,
  timeObjective,
  timeSmallCalls,
  timesTable,
  timeThreads,
} from './lib/variations.js';
import { works as listWorks, type Work } from './lib/works.js';
import { onnx } from './peers/onnx.js';
import { describePeer, type Peer } from './peers/peer.js';
import { plain } from './peers/plain.js';
import { tfjs } from './peers/tfjs.js';
import { torch } from './peers/torch.js';

const { values: flags } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    frameworks: { type: 'boolean', default: false },
    logits: { type: 'boolean', default: false },
    check: { type: 'boolean', default: false },
    only: { type: 'string' },
    'no-peers': { type: 'boolean', default: false },
    rounds: { type: 'string' },
    markdown: { type: 'boolean', default: false },
  },
});
const rounds = Number(flags.rounds ?? (flags.quick ? 3 : 9));
if (!Number.isInteger(rounds) || rounds < 1)
  throw new Error(`--rounds: expected a whole number of at least 1, got ${flags.rounds}`);
const only = flags.only !== undefined ? new RegExp(flags.only) : flags.quick ? /^ppo$/ : undefined;
const all = listWorks(only);
const isOfFramework = ({ family }: Work) => family === 'framework';
const frameworks = flags.logits ? [] : all.filter(isOfFramework);
const works = flags.frameworks || flags.logits ? [] : all.filter((work) => !isOfFramework(work));
const timesLogits = flags.logits || (!flags.quick && !flags.frameworks && only === undefined);
if (works.length + frameworks.length === 0 && !timesLogits)
  throw new Error(`--only: expected a pattern that matches a function, got ${flags.only}`);
const print = printer(flags.markdown);

const machine = describeMachine();
const { cpu, cores, threads, isa, node, binary } = machine;
console.log(
  `${cpu}, ${cores} cores, ${threads} threads, ${isa}; Node ${node}; ${binary.file}, ${binary.from} compiled by ` +
    `${binary.compiler}; medians of ${rounds} rounds`,
);

const root = fileURLToPath(new URL('..', import.meta.url));
const complete =
  !flags.quick && !flags.frameworks && !flags.logits && !flags['no-peers'] && only === undefined;
const results = join(root, complete ? 'bench/results' : 'build/bench', `${slug(`${cpu} ${isa}`)}.json`);
const picture = join(root, complete ? 'bench/speed.svg' : 'build/bench/speed.svg');
const logitsPicture = join(
  root,
  flags.quick || flags['no-peers'] ? 'build/bench/logits.svg' : 'bench/logits.svg',
);
const report: Report = { machine, date: new Date().toISOString(), rounds, peers: {}, functions: [] };

const peers = flags['no-peers'] ? [] : await findPeers();
try {
  if (flags.check) await checkAll();
  else await timeWithPeers();
} finally {
  for (const peer of peers) await peer.end();
}
if (!flags.check) await finish();

async function findPeers(): Promise<Peer[]> {
  const found: Peer[] = [];
  // Only PyTorch has the losses of other frameworks, and starts from logits.
  const others = works.length > 0 ? [onnx(threads), tfjs(), plain()] : [];
  for (const peer of await Promise.all([torch(threads), ...others])) {
    report.peers[peer.name] = describePeer(peer, [...works, ...frameworks]);
    console.log(`${peer.name}: ${report.peers[peer.name]}`);
    if (!('absent' in peer)) found.push(peer);
  }
  return found;
}

/** Compares the peers' results with this package's on small batches, without timing anything. */
async function checkAll(): Promise<void> {
  const expressions = works.length > 0 ? expressionWorks(only) : [];
  const checked = [...works, ...frameworks, ...expressions].filter(({ computes }) => computes);
  await checkPeers(checked, peers);
  for (const peer of peers) {
    const covered = checked.filter((work) => peer.covers(work));
    console.log(`${peer.name} agrees on ${covered.length} of ${checked.length} functions.`);
  }
}

/** Times everything with which the peers take turns. */
async function timeWithPeers(): Promise<void> {
  if (works.length > 0) {
    await timeAllFunctions();
    await timeUserLosses();
  }
  if (frameworks.length > 0) await timeFrameworkLosses();
  if (timesLogits) {
    report.logits = await timeLogits(peers, rounds);
    print(logitsTable(report.logits));
    drawLogits(report, logitsPicture);
    save(report, results);
  }
}

/**
 * Times the package's calls, and reports the results of the whole run. A short run lists only the targets that it
 * measured.
 */
async function finish(): Promise<void> {
  const isShort = works.length === 0;
  if (!isShort) {
    await timeCalls();
    await timeForms();
    print(summaryTable(report));
    drawSpeed(report, picture);
  }
  const targets = bars(report);
  report.bars = isShort ? targets.filter(({ met }) => met !== undefined) : targets;
  print(barsTable(report.bars));
  save(report, results);
  const drawn = isShort ? '' : `, the picture in ${picture.slice(root.length)}`;
  console.log(`\nAll numbers are in ${results.slice(root.length)}${drawn}.`);
}

async function timeAllFunctions(): Promise<void> {
  await checkPeers(works, peers);
  for (const shape of [SMALL, MIDDLE, LARGE]) {
    report.functions.push(...(await timeFunctions(works, peers, shape, rounds)));
    for (const gradient of [false, true]) print(functionsTable(report.functions, shape, gradient, peers));
    save(report, results);
  }
  if (peers.length === 0) return;
  for (const work of works.filter((each) => peers.every((peer) => peer.covers(each))))
    print(contendersTable(find(report, work.id, LARGE, true)!));
}

/** Times losses that are written as expressions, and compares PPO in this form with the built-in PPO. */
async function timeUserLosses(): Promise<void> {
  const expressions = expressionWorks(only);
  if (expressions.length > 0) {
    await checkPeers(expressions, peers);
    report.expressions = await timeExpressions(expressions, peers, rounds);
    print(expressionsTable(report.expressions, peers));
  }
  const ppo = works.find(({ id }) => id === 'ppo');
  if (ppo) {
    const { large, small } = await timePpo(ppo, peers, rounds);
    report.ppoAsExpression = { large, small };
    const title = 'PPO as an expression, forward and gradient';
    print(timesTable(`${title}, ${LARGE.join('×')}`, large, LARGE[0] * LARGE[1], 'ms'));
    print(timesTable(`${title}, ${SMALL.join('×')} through computeSync()`, small, SMALL[0] * SMALL[1], 'µs'));
  }
  save(report, results);
}

/** Times the losses of other frameworks and papers, and compares them with PPO and with PyTorch. */
async function timeFrameworkLosses(): Promise<void> {
  await checkPeers(frameworks, peers);
  report.frameworks = await timeFrameworks(frameworks, peers, rounds);
  print(frameworksTable(report.frameworks, peers));
  save(report, results);
}

/**
 * Measures what calls cost besides the computation: the time of small calls, the memory that calls need, and how long
 * they block the event loop.
 */
async function timeCalls(): Promise<void> {
  const first = works[0]!;
  report.smallCalls = await timeSmallCalls(first, SMALL, rounds);
  const title = `Calls of ${first.id}, forward and gradient, ${SMALL.join('×')}`;
  print(timesTable(title, report.smallCalls, SMALL[0] * SMALL[1], 'µs'));

  const memory = await measureMemory(LARGE, only);
  if (memory) {
    report.memory = memory;
    print(memoryTable(memory, LARGE));
  }

  report.eventLoop = await timeEventLoop(first, LARGE, rounds);
  print(eventLoopTable(first, report.eventLoop, LARGE));
  save(report, results);
}

/** Times variants of calls: GRPO's whole objective, one thread and two, layouts, dtypes and advantage functions. */
async function timeForms(): Promise<void> {
  const tokens = LARGE[0] * LARGE[1];
  const objective = await timeObjective(works, LARGE, rounds);
  if (objective) {
    report.objective = objective;
    print(timesTable(`GRPO's whole objective, ${LARGE.join('×')}`, objective, tokens, 'ms'));
  }

  if (cores > 1) {
    const before = await timeCores(rounds);
    report.threads = await timeThreads(works, CACHED, rounds);
    report.cores = { before, after: await timeCores(rounds) };
    print(threadsTable(report.threads, CACHED));
  }

  report.layouts = await timeLayouts(works, LARGE, rounds);
  print(layoutsTable(report.layouts, LARGE));

  report.dtypes = await timeDtypes(works, LARGE, rounds);
  print(dtypesTable(report.dtypes, LARGE));
  save(report, results);

  const advantages = await timeAdvantages(only, LARGE, rounds);
  if (Object.keys(advantages).length > 0) {
    report.advantages = advantages;
    print(timesTable(`Advantage functions, into new arrays, ${LARGE.join('×')}`, advantages, tokens, 'ms'));
  }
}
