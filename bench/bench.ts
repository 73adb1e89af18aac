// Times the package on this machine's CPU, in one run: every function beside the traffic floor and its peers, which take
// turns; then what one thread, layouts, masks, dtypes, small calls and advantage functions cost. Prints tables of
// medians, writes bench/results/<cpu>.json, draws bench/speed.svg, and says which of the project's bars are met.
//
//   npm run bench [-- --quick] [--only REGEX] [--no-peers] [--rounds 9] [--markdown]
//
// --quick times PPO alone in few rounds, --only the functions whose names match. A run that leaves something out goes to
// build/bench in the place of bench/results. --markdown prints tables for bench/README.md. POLICY_LOSS_NATIVE names
// another native module, such as a prebuilt one, by its absolute path.
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { bars, barsTable } from './lib/bars.js';
import { timeCores } from './lib/cores.js';
import { eventLoopTable, timeEventLoop } from './lib/event-loop.js';
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
import { describeMachine, slug } from './lib/machine.js';
import { measureMemory, memoryTable } from './lib/memory.js';
import { drawSpeed } from './lib/picture.js';
import { find, type Report, save } from './lib/report.js';
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
import { works as listWorks } from './lib/works.js';
import { onnx } from './peers/onnx.js';
import type { Peer } from './peers/peer.js';
import { plain } from './peers/plain.js';
import { tfjs } from './peers/tfjs.js';
import { torch } from './peers/torch.js';

const { values: flags } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    only: { type: 'string' },
    'no-peers': { type: 'boolean', default: false },
    rounds: { type: 'string' },
    markdown: { type: 'boolean', default: false },
  },
});
const rounds = Number(flags.rounds ?? (flags.quick ? 3 : 9));
if (!Number.isInteger(rounds) || rounds < 1)
  throw new Error(`--rounds: expected a number, not ${flags.rounds}`);
const only = flags.only !== undefined ? new RegExp(flags.only) : flags.quick ? /^ppo$/ : undefined;
const works = listWorks(only);
if (works.length === 0) throw new Error(`--only: no function's name matches ${flags.only}`);
const print = printer(flags.markdown);
const LARGE_TOKENS = LARGE[0] * LARGE[1];

const machine = describeMachine();
const { cpu, cores, threads, isa, node, binary } = machine;
console.log(
  `${cpu}, ${cores} cores, ${threads} threads, ${isa}; Node ${node}; ${binary.file}, ${binary.from} by ` +
    `${binary.compiler}; medians of ${rounds} rounds`,
);

const found = flags['no-peers'] ? [] : await Promise.all([torch(threads), onnx(threads), tfjs(), plain()]);
const peers: Peer[] = [];
const report: Report = { machine, date: new Date().toISOString(), rounds, peers: {}, functions: [] };
for (const peer of found) {
  report.peers[peer.name] = 'absent' in peer ? `absent: ${peer.absent}` : peer.version;
  console.log(`${peer.name}: ${report.peers[peer.name]}`);
  if (!('absent' in peer)) peers.push(peer);
}

const root = fileURLToPath(new URL('..', import.meta.url));
const whole = !flags.quick && !flags['no-peers'] && only === undefined;
const results = join(root, whole ? 'bench/results' : 'build/bench', `${slug(machine)}.json`);
const picture = join(root, whole ? 'bench/speed.svg' : 'build/bench/speed.svg');

try {
  await checkPeers(works, peers);
  for (const shape of [SMALL, MIDDLE, LARGE]) {
    report.functions.push(...(await timeFunctions(works, peers, shape, rounds)));
    for (const gradient of [false, true]) print(functionsTable(report.functions, shape, gradient, peers));
    save(report, results);
  }
} finally {
  for (const peer of peers) await peer.end();
}
for (const work of works) {
  const times = find(report, work.id, LARGE, true)!;
  if (peers.length > 0 && peers.every((peer) => peer.covers(work))) print(contendersTable(times));
}

const [first] = works as [(typeof works)[0]];
report.smallCalls = await timeSmallCalls(first, SMALL, rounds);
const small = `Calls of ${first.id}, forward and gradient, ${SMALL.join('×')}`;
print(timesTable(small, report.smallCalls, SMALL[0] * SMALL[1], 'µs'));

const objective = await timeObjective(works, LARGE, rounds);
if (objective) {
  report.objective = objective;
  const title = `GRPO's whole objective, forward and gradient, ${LARGE.join('×')}`;
  print(timesTable(title, objective, LARGE_TOKENS, 'ms'));
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

const memory = await measureMemory(LARGE, only);
if (memory) {
  report.memory = memory;
  print(memoryTable(memory, LARGE));
}

report.eventLoop = await timeEventLoop(first, LARGE, rounds);
print(eventLoopTable(first, report.eventLoop, LARGE));

const advantages = await timeAdvantages(only, LARGE, rounds);
if (Object.keys(advantages).length > 0) {
  report.advantages = advantages;
  const title = `Advantage functions, into new arrays, ${LARGE.join('×')}`;
  print(timesTable(title, advantages, LARGE_TOKENS, 'ms'));
}

report.bars = bars(report);
print(barsTable(report.bars));
save(report, results);
drawSpeed(report, picture);
console.log(
  `\nAll numbers are in ${results.slice(root.length)}, the picture in ${picture.slice(root.length)}.`,
);
