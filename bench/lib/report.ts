// The results of one benchmark run on a CPU, as stored in bench/results. All times are in milliseconds.
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Shape } from './batch.js';
import type { PpoTimes } from './expressions.js';
import type { Machine } from './machine.js';
import type { Sample } from './race.js';

/** The name under which this package appears among the contenders. */
export const OURS = 'policy-loss';

/** The times of all contenders for one function, on batches of one shape. */
export interface FunctionTimes {
  id: string;
  shape: Shape;
  gradient: boolean;
  /** The times by the contenders' names. */
  times: Times;
  /** For each peer, the largest relative error of its results, compared with this package's. */
  errors: Record<string, number>;
}

/** The times of a loss of another framework or paper, in turns with the loss without its gradient and with PPO. */
export interface FrameworkTimes extends FunctionTimes {
  /** How many passes over the tokens the loss makes. */
  passes: number;
}

/** The times of what starts from logits, for one shape and dtype. */
export interface LogitsTimes {
  shape: readonly [rows: number, vocabulary: number];
  dtype: string;
  times: Times;
}

/** The times of several contenders. The keys are the contenders' names in tables. */
export type Times = Record<string, Sample>;

/** The results of one run. A part that was not measured is missing. */
export interface Report {
  machine: Machine;
  date: string;
  rounds: number;
  /** For each peer, its version, or the reason why it is absent. */
  peers: Record<string, string>;
  functions: FunctionTimes[];
  objective?: Times;
  smallCalls?: Times;
  advantages?: Times;
  /** Losses that are written as expressions. */
  expressions?: FunctionTimes[];
  ppoAsExpression?: PpoTimes;
  /** The losses of other frameworks and papers. */
  frameworks?: FrameworkTimes[];
  /** What starts from logits. */
  logits?: LogitsTimes[];
  /** The times with one thread and with two threads, by function. */
  threads?: Record<string, Times>;
  /**
   * How much more work two cores do than one in the same time. Independent calls measure it, before and after the
   * times in `threads` are taken.
   */
  cores?: { before: number; after: number };
  /** The times by function, and then by layout. */
  layouts?: Record<string, Times>;
  /** The times by function, and then by dtype. */
  dtypes?: Record<string, Times>;
  /** For each function, the largest number of bytes by which the process grew during compute(). */
  memory?: Record<string, number>;
  /** How long compute() blocked the event loop. The keys say into which array the gradient is written. */
  eventLoop?: Record<string, { call: Sample; whole: Sample; timerLate: Sample }>;
  bars?: Bar[];
}

/** A performance target of the project, and what a run measured for it. */
export interface Bar {
  bar: string;
  wanted: string;
  measured: string;
  /** Whether the target is met. Undefined if it was not measured. */
  met?: boolean;
}

/** Returns the times of one function, or undefined if they were not measured. */
export function find(report: Report, id: string, shape: Shape, gradient: boolean): FunctionTimes | undefined {
  return report.functions.find(
    (f) => f.id === id && f.gradient === gradient && f.shape.join() === shape.join(),
  );
}

/** Writes a report as JSON. Each sample takes one line. */
export function save(report: object, path: string): void {
  const rounded = (_: string, value: unknown) =>
    typeof value === 'number' && !Number.isInteger(value) ? Number(value.toPrecision(5)) : value;
  const oneLine = (text: string) => text.replaceAll(/\s*\n\s*/g, ' ');
  const text = JSON.stringify(report, rounded, 2)
    .replaceAll(/\{\s*"median"[^}]*\}/g, oneLine)
    .replaceAll(/\[\s*\d+,\s*\d+\s*\]/g, oneLine);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${text}\n`);
}
