// The results of a run on a CPU, as they are stored in bench/results. All times are in milliseconds.
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Shape } from './batch.js';
import type { Machine } from './machine.js';
import type { Sample } from './race.js';

/** The name of this package among the contenders. */
export const OURS = 'policy-loss';

/** The times of one function on batches of one shape. */
export interface FunctionTimes {
  id: string;
  shape: Shape;
  gradient: boolean;
  /** Times by contender. */
  times: Times;
  /** The largest relative error of each peer's results compared with this package's. */
  errors: Record<string, number>;
}

/** Samples by contender, under its name in tables. */
export type Times = Record<string, Sample>;

/** The results of a run. Parts that were not measured are missing. */
export interface Report {
  machine: Machine;
  date: string;
  rounds: number;
  /** Versions of the peers, or why they are absent. */
  peers: Record<string, string>;
  functions: FunctionTimes[];
  objective?: Times;
  smallCalls?: Times;
  advantages?: Times;
  /** Times with one thread and with two, by function. */
  threads?: Record<string, Times>;
  /** The speed-up of two cores over one for independent calls, before and after the threads were timed. */
  cores?: { before: number; after: number };
  /** Times by function and layout. */
  layouts?: Record<string, Times>;
  /** Times by function and dtype. */
  dtypes?: Record<string, Times>;
  /** The peak growth of the process in bytes during compute(), by function. */
  memory?: Record<string, number>;
  /** Delays by the array that the gradient is written into. */
  eventLoop?: Record<string, { call: Sample; timerLate: Sample }>;
  bars?: Bar[];
}

/** A target of the project, and what this run measured for it. */
export interface Bar {
  bar: string;
  wanted: string;
  measured: string;
  /** Undefined if it was not measured. */
  met?: boolean;
}

/** Returns the times of one function, if they were measured. */
export function find(report: Report, id: string, shape: Shape, gradient: boolean): FunctionTimes | undefined {
  return report.functions.find(
    (f) => f.id === id && f.gradient === gradient && f.shape.join() === shape.join(),
  );
}

/** Writes a report as JSON, with one line per sample. */
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
