// Times the package on a CUDA device. Compares the kernels of every function with a copy of memory and with PyTorch. Also
// times what starts from logits, small calls and calls on batches in host memory. Prints tables of medians, and writes
// <device>.json again after each part. Refuses to time an emulated device, which has no clock.
//
//   npm run bench:gpu [-- --tokens 67108864 --rounds 7 --only REGEX --out DIR --python PATH]
//   npm run bench:gpu -- --smoke    runs every step once on small batches, also on an emulated device; no times
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { hostBatchTable, timeHostBatch, timeSmallCalls } from './gpu/calls.js';
import {
  bytesPerToken,
  checkDevice,
  DEVICE,
  deviceWorks,
  driverVersion,
  type Effort,
  findDevice,
  isEmulated,
  uploadInputs,
} from './gpu/device.js';
import { timeOnDevice } from './gpu/functions.js';
import { logitsTable, timeLogits } from './gpu/logits.js';
import { makeInputs, type Shape } from './lib/batch.js';
import { gpuTable } from './lib/comparison.js';
import { checkTorch } from './lib/functions.js';
import { describeMachine, slug } from './lib/machine.js';
import { benchNative } from './lib/native.js';
import { summaries } from './lib/ratios.js';
import { type GpuReport, save } from './lib/report.js';
import { print as printTable, type TableContent, timesTable } from './lib/tables.js';
import { Torch } from './peers/torch.js';

const { values: flags } = parseArgs({
  options: {
    tokens: { type: 'string', default: String(2 ** 26) },
    rounds: { type: 'string', default: '7' },
    only: { type: 'string' },
    out: { type: 'string', default: fileURLToPath(new URL('results', import.meta.url)) },
    python: { type: 'string' },
    smoke: { type: 'boolean', default: false },
  },
});
const { smoke } = flags;
const shape: Shape = smoke ? [8, 96] : shapeOf(Number(flags.tokens));
const smallShape: Shape = smoke ? [4, 32] : [8, 512];
const checkedShape: Shape = smoke ? [4, 32] : [16, 128];
const logitsSizes: Shape[] = smoke
  ? [[3, 400]]
  : [
      [512, 151_936],
      [4096, 32_000],
    ];
const effort: Effort = smoke
  ? { rounds: 1, mostCalls: 1, copyBytes: 2 ** 12 }
  : { rounds: Number(flags.rounds), copyBytes: 2 ** 29 };

const device = findDevice(smoke);
const list = deviceWorks(flags.only === undefined ? undefined : new RegExp(flags.only));
if (list.length === 0)
  throw new Error(`--only: expected a pattern that matches a function, got ${flags.only}`);
console.log(`${device.description}, compute capability ${device.computeCapability}, Node ${process.version}`);
const torch = await Torch.start({
  device: isEmulated(device) ? 'cpu' : `cuda:${DEVICE}`,
  python: flags.python,
  until: 'device',
});
console.log(
  `PyTorch: ${torch?.about.version ?? 'absent: found no python3 with a torch that can use the device'}`,
);

const report: GpuReport = {
  kind: 'gpu',
  date: new Date().toISOString(),
  machine: describeMachine(),
  device: device.description,
  driver: driverVersion(),
  rounds: effort.rounds,
  torch: torch?.about.version,
  copyBytes: effort.copyBytes,
  bytesPerToken: Object.fromEntries(list.map((work) => [work.id, bytesPerToken(work)])),
  functions: [],
  logits: {},
  smallCalls: {},
  hostBatch: undefined,
};
try {
  await checkDevice(list, checkedShape);
  if (torch) await checkTorch(list, torch, checkedShape);
  await timeAll();
} finally {
  torch?.end();
}
console.log(
  smoke ? `All steps ran for ${list.length} functions; no times.` : `All numbers are in ${flags.out}.`,
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

/** Writes what was measured so far, so that an interrupted run keeps it. */
function keep(): void {
  if (!smoke) save(report, join(flags.out, `${slug(device.description)}.json`));
}

/** A smoke run builds its tables too, to exercise that code. It does not print them, because their numbers mean nothing. */
function print(table: TableContent): void {
  if (!smoke) printTable(table);
}

async function timeAll(): Promise<void> {
  const inputs = makeInputs(shape);
  const resident = await uploadInputs(inputs, list);
  await torch?.load(inputs);
  for (const work of list) {
    const times = await timeOnDevice(work, shape, resident, torch, effort);
    report.functions.push(times);
    keep();
    for (const [form, problem] of Object.entries(times.problems))
      console.log(`${work.id}: ${form} is not measured: ${problem}`);
  }
  benchNative.release(resident);
  print(gpuTable(report));
  if (!smoke) for (const text of summaries(report.functions)) console.log(`\n${text}`);

  report.logits = await timeLogits(logitsSizes, effort);
  keep();
  print(logitsTable(report.logits));

  const [ppo] = deviceWorks(/^ppo$/);
  report.smallCalls = await timeSmallCalls(ppo!, smallShape, torch, effort);
  keep();
  print(timesTable(`Calls of ppo on the device, ${smallShape.join('×')}`, report.smallCalls, 'µs'));

  report.hostBatch = await timeHostBatch(inputs, torch, effort);
  keep();
  print(hostBatchTable(report.hostBatch));
}
