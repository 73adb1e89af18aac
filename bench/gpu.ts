// Times the package on a CUDA device. Compares the passes (kernels) of every function with a copy of memory and with
// PyTorch. Also times small calls and calls on batches in host memory. Prints tables of medians, and writes
// bench/results/<device>.json again after each part. Refuses to time an emulated device, which has no clock.
//
//   npm run bench:gpu [-- --tokens 67108864 --rounds 7 --only REGEX --no-compile --out DIR --python PATH --markdown]
//   npm run bench:gpu -- --smoke    runs every step once on small batches, also on an emulated device; no times
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import {
  checkDevice,
  copyContender,
  deviceWorks,
  driverVersion,
  findDevice,
  uploadInputs,
} from './gpu/device.js';
import { type DeviceTimes, type Effort, timeOnDevice, tokenPassTable, torchTable } from './gpu/functions.js';
import { hostBatchTable, timeHostBatch } from './gpu/host-batch.js';
import { logitsTable, timeLogits } from './gpu/logits.js';
import { timeSmallCalls } from './gpu/small-calls.js';
import { startTorch } from './gpu/torch.js';
import { type Inputs, makeInputs, type Shape } from './lib/batch.js';
import { checkPeers } from './lib/functions.js';
import { describeMachine, slug } from './lib/machine.js';
import { benchNative } from './lib/native.js';
import { race } from './lib/race.js';
import { save } from './lib/report.js';
import { printer, type TableContent } from './lib/tables.js';
import { timesTable } from './lib/variations.js';

const { values: flags } = parseArgs({
  options: {
    tokens: { type: 'string', default: String(2 ** 26) },
    rounds: { type: 'string', default: '7' },
    only: { type: 'string' },
    'no-compile': { type: 'boolean', default: false },
    out: { type: 'string', default: fileURLToPath(new URL('results', import.meta.url)) },
    python: { type: 'string' },
    smoke: { type: 'boolean', default: false },
    markdown: { type: 'boolean', default: false },
  },
});
const { smoke } = flags;
const shape = smoke ? ([8, 96] as const) : shapeOf(Number(flags.tokens));
const smallShape: Shape = smoke ? [4, 32] : [8, 512];
const checkedShape: Shape = smoke ? [4, 32] : [16, 128];
const logitsSizes = smoke
  ? ([[3, 400]] as const)
  : ([
      [512, 151_936],
      [4096, 32_000],
    ] as const);
const effort: Effort = smoke
  ? { rounds: 1, mostCalls: 1, copyBytes: 2 ** 12 }
  : { rounds: Number(flags.rounds), copyBytes: 2 ** 29 };
const printTable = printer(flags.markdown);
// A smoke run builds its tables too, to exercise that code. It does not print them, because their numbers mean nothing.
const print = (table: TableContent) => (smoke ? undefined : printTable(table));

const device = findDevice(smoke);
const works = deviceWorks(flags.only === undefined ? undefined : new RegExp(flags.only));
if (works.length === 0)
  throw new Error(`--only: expected a pattern that matches a function, got ${flags.only}`);
console.log(`${device.description}, compute capability ${device.computeCapability}, Node ${process.version}`);
const torch = await startTorch(device, works, { python: flags.python, compile: !flags['no-compile'] });

const report: Record<string, unknown> = {
  device,
  driver: driverVersion(),
  machine: describeMachine(),
  torch: torch?.session.about,
  date: new Date().toISOString(),
  shape,
  effort,
  complete: false,
};
try {
  await checkDevice(works, checkedShape);
  await checkPeers(works, torch?.peers ?? [], checkedShape);
  const inputs = makeInputs(shape);
  await timeFunctions(inputs);
  await timeCopies();
  await timeRowsOfLogits();
  await timeCalls(inputs);
} finally {
  torch?.session.end();
}
console.log(
  smoke ? `All steps ran for ${works.length} functions; no times.` : `\nAll numbers are in ${flags.out}.`,
);

/**
 * Returns a shape with about this many tokens: an even number of rows with 4096 tokens each. DPO needs pairs of rows.
 */
function shapeOf(tokens: number): Shape {
  const columns = 4096;
  const rows = 2 * Math.round(tokens / columns / 2);
  if (!(rows > 0)) throw new Error(`--tokens: expected at least ${2 * columns}, got ${flags.tokens}`);
  return [rows, columns];
}

/**
 * Adds results to the report and writes the report to its file, so that an interrupted run keeps what it has measured.
 * A smoke run writes no file.
 */
function record(parts: Record<string, unknown>): void {
  Object.assign(report, parts);
  if (!smoke) save(report, join(flags.out, `${slug(device.description)}.json`));
}

async function timeFunctions(inputs: Inputs): Promise<void> {
  const resident = await uploadInputs(inputs, works);
  await torch?.session.load(inputs);
  const functions: Record<string, DeviceTimes> = {};
  for (const work of works) {
    functions[work.id] = await timeOnDevice(work, resident, torch, effort);
    record({ functions });
    for (const [form, problem] of Object.entries(functions[work.id]!.problems))
      console.log(`${work.id}: ${form} is not measured: ${problem}`);
  }
  benchNative.release(resident);
  print(tokenPassTable(functions, shape, effort));
  if (torch) print(torchTable(functions, torch));
}

async function timeCopies(): Promise<void> {
  const { rounds, mostCalls, copyBytes } = effort;
  const contenders = [
    copyContender('policy-loss', copyBytes),
    ...(torch ? [torch.session.copy('PyTorch', 'device', copyBytes)] : []),
  ];
  record({ copies: { bytes: copyBytes, times: await race(contenders, rounds, mostCalls) } });
}

async function timeRowsOfLogits(): Promise<void> {
  const logits = await timeLogits(logitsSizes, effort);
  record({ logits });
  print(logitsTable(logits));
}

async function timeCalls(inputs: Inputs): Promise<void> {
  const ppo = deviceWorks(/^ppo$/)[0]!;
  const smallCalls = await timeSmallCalls(ppo, smallShape, torch, effort);
  record({ smallCalls: { shape: smallShape, times: smallCalls } });
  const tokens = smallShape[0] * smallShape[1];
  print(timesTable(`Calls of ppo on the device, ${smallShape.join('×')}`, smallCalls, tokens, 'µs'));

  const hostBatch = await timeHostBatch(ppo, inputs, torch, effort);
  record({ hostBatch, complete: true });
  print(hostBatchTable(hostBatch));
}
