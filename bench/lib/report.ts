// The results of a run, as stored in bench/results. All times are in milliseconds.
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Machine } from './machine.js';
import type { Sample } from './race.js';

/** The name under which this package appears among the contenders. */
export const OURS = 'policy-loss';

/** The names of the steps from logits that have no peer, and of the loops that move the same memory. */
export const OF_LOGITS = {
  forward: 'logprobs()',
  backward: 'logprobsBackward() in place',
  read: 'reading once',
  rewrite: 'reading and writing once',
} as const;

/** The names of what is timed on a GPU, in addition to a function's kernels. */
export const ON_DEVICE = { tokenPass: 'token pass', copy: 'copy' } as const;

/** The times of several contenders. The keys are the contenders' names in tables. */
export type Times = Record<string, Sample>;

/** The times of all contenders for one function, forward and gradient, on batches of one shape. */
export interface FunctionTimes {
  id: string;
  shape: readonly [rows: number, columns: number];
  times: Times;
  /** For each form of PyTorch that could not be measured, the reason. */
  problems: Record<string, string>;
}

/** What all runs report. */
interface AnyReport {
  date: string;
  machine: Machine;
  rounds: number;
  /** PyTorch's version. Undefined if it was not found. */
  torch: string | undefined;
  functions: FunctionTimes[];
}

/** The results of one run on a CPU. */
export interface CpuReport extends AnyReport {
  kind: 'cpu';
  /** What starts from logits, whose shapes are rows × vocabulary. */
  logits: FunctionTimes[];
  /** The times of small calls, and for how long calls block the event loop. */
  calls: Times;
}

/** The results of one run on a GPU. */
export interface GpuReport extends AnyReport {
  kind: 'gpu';
  device: string;
  driver: string | undefined;
  /** The bytes per token that a function must read or write, by function. */
  bytesPerToken: Record<string, number>;
  /** The bytes of one copy within the device's memory, whose times are among those of the functions. */
  copyBytes: number;
  /** What starts from logits, by shape and dtype. */
  logits: Record<string, Times>;
  smallCalls: Times;
  hostBatch: HostBatch | undefined;
}

/** The times of calls on a batch in host memory, and how many bytes each copies to the device. */
export interface HostBatch {
  bytes: number;
  times: Times;
}

/** Writes a report as JSON. Each sample takes one line. */
export function save(report: CpuReport | GpuReport, path: string): void {
  const rounded = (_: string, value: unknown) =>
    typeof value === 'number' && !Number.isInteger(value) ? Number(value.toPrecision(5)) : value;
  const oneLine = (text: string) => text.replaceAll(/\s*\n\s*/g, ' ');
  const text = JSON.stringify(report, rounded, 2)
    .replaceAll(/\{\s*"median"[^}]*\}/g, oneLine)
    .replaceAll(/\[\s*\d+,\s*\d+\s*\]/g, oneLine);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${text}\n`);
}
