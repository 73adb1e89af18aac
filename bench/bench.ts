// Times the package on this machine's CPU, in turns with PyTorch. Before PyTorch is timed, its results are compared with
// the package's.
//
//   npm run bench [-- --only REGEX] [--check] [--no-logits] [--rounds 9] [--busy] [--no-torch] [--python PATH]
//
// --only selects the functions whose names match, --no-logits leaves out what starts from logits, and --check compares
// results and times nothing. --busy is for a machine that other programs use. There, PyTorch's threads wait for each
// other for milliseconds, because they spin. With --busy they sleep, which makes short calls slower on an idle machine.
//
// A complete run writes bench/results/<cpu>.json, and from it the tables of bench/README.md and bench/speed.svg. Any run
// writes build/bench/<cpu>.json. To time another native module, such as a prebuilt one, set the environment variable
// POLICY_LOSS_NATIVE to its absolute path.
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { makeInputs } from './lib/batch.js';
import { timeCalls } from './lib/calls.js';
import { cpuTable, logitsSteps } from './lib/comparison.js';
import { timeDistillation } from './lib/distillation.js';
import { checkTorch, LARGE, ownWorks, SMALL, timeFunction } from './lib/functions.js';
import { timeLogits } from './lib/logits.js';
import { describeMachine, slug } from './lib/machine.js';
import { summaries } from './lib/ratios.js';
import { writeTables } from './lib/readme.js';
import { type CpuReport, save } from './lib/report.js';
import { print, timesTable } from './lib/tables.js';
import { Torch } from './peers/torch.js';

const { values: flags } = parseArgs({
  options: {
    only: { type: 'string' },
    check: { type: 'boolean', default: false },
    'no-logits': { type: 'boolean', default: false },
    'no-torch': { type: 'boolean', default: false },
    rounds: { type: 'string', default: '9' },
    busy: { type: 'boolean', default: false },
    python: { type: 'string' },
  },
});
const rounds = Number(flags.rounds);
if (!Number.isInteger(rounds) || rounds < 1)
  throw new Error(`--rounds: expected a whole number of at least 1, got ${flags.rounds}`);
const list = ownWorks(flags.only === undefined ? undefined : new RegExp(flags.only));
if (list.length === 0)
  throw new Error(`--only: expected a pattern that matches a function, got ${flags.only}`);

const machine = describeMachine();
const { cpu, cores, threads, isa, node, binary } = machine;
console.log(`${cpu}, ${cores} cores, ${threads} threads, ${isa}; Node ${node}; ${binary}`);
const torch = flags['no-torch']
  ? undefined
  : await Torch.start({ device: 'cpu', python: flags.python, busy: flags.busy });
console.log(
  torch ? `PyTorch ${torch.about.version}` : 'PyTorch: absent. bench/install-torch.sh installs it.',
);
const lacking = torch ? list.filter((work) => !torch.covers(work)).map(({ id }) => id) : [];
if (lacking.length > 0) console.log(`PyTorch lacks ${lacking.join(', ')}.`);

const report: CpuReport = {
  kind: 'cpu',
  date: new Date().toISOString(),
  machine,
  rounds,
  torch: torch && `${torch.about.version}${flags.busy ? ' with threads that sleep while they wait' : ''}`,
  functions: [],
  logits: [],
  calls: {},
};
try {
  if (torch) await checkTorch(list, torch, SMALL);
  if (torch) console.log('PyTorch agrees.');
  if (!flags.check) await timeAll();
} finally {
  torch?.end();
}

async function timeAll(): Promise<void> {
  const complete = torch !== undefined && flags.only === undefined && !flags['no-logits'];
  const name = `${slug(`${cpu} ${isa}`)}.json`;
  const file = fileURLToPath(new URL(`../build/bench/${name}`, import.meta.url));
  report.calls = await timeCalls(rounds);
  if (!flags['no-logits'])
    report.logits = [
      ...(await timeLogits(torch, threads, rounds)),
      await timeDistillation(torch, threads, rounds),
    ];
  for (const shape of [SMALL, LARGE]) {
    const inputs = makeInputs(shape);
    await torch?.load(inputs, shape === SMALL ? 1 : threads);
    for (const work of list) {
      report.functions.push(await timeFunction(work, inputs, torch, rounds));
      save(report, file);
    }
  }
  for (const { id, shape, problems } of report.functions)
    for (const [form, problem] of Object.entries(problems))
      console.log(`${id}, ${shape.join('×')}: ${form} is not measured: ${problem}`);
  print(cpuTable(report));
  print(logitsSteps(report));
  print(timesTable('Calls of ppo with its gradient', report.calls, 'µs'));
  for (const text of summaries(report.functions)) console.log(`\n${text}`);
  if (complete) {
    save(report, fileURLToPath(new URL(`results/${name}`, import.meta.url)));
    writeTables();
  }
  console.log(`\nAll numbers are in ${file}.`);
}
