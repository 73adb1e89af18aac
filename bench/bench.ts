// Times the package on this machine's CPU, in turns with PyTorch. Before PyTorch is timed, its results are compared with
// the package's.
//
//   npm run bench [-- --only REGEX] [--check] [--no-logits] [--rounds 9] [--no-torch] [--python PATH]
//
// --only selects the functions whose names match, --no-logits leaves out what starts from logits, and --check compares
// results and times nothing. A complete run writes bench/results/<cpu>.json, and from it the tables of bench/README.md
// and bench/speed.svg. Any other run writes build/bench/<cpu>.json. To time another native module, such as a prebuilt
// one, set the environment variable POLICY_LOSS_NATIVE to its absolute path.
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { makeInputs } from './lib/batch.js';
import { timeCalls } from './lib/calls.js';
import { cpuTable, logitsSteps } from './lib/comparison.js';
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
  : await Torch.start({ device: 'cpu', threads, python: flags.python });
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
  torch: torch?.about.version,
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
  const folder = fileURLToPath(new URL(complete ? 'results' : '../build/bench', import.meta.url));
  const file = join(folder, `${slug(`${cpu} ${isa}`)}.json`);
  report.calls = await timeCalls(rounds);
  if (!flags['no-logits']) report.logits = await timeLogits(torch, rounds);
  for (const shape of [SMALL, LARGE]) {
    const inputs = makeInputs(shape);
    await torch?.load(inputs);
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
  if (complete) writeTables();
  console.log(`\nAll numbers are in ${file}.`);
}
