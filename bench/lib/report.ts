// What a run measures, as bench/results keeps it. All times are milliseconds.
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Shape } from './batch.js';
import type { Machine } from './machine.js';
import type { Sample } from './race.js';

/** This package, among the contenders. */
export const OURS = 'policy-loss';

/** One function on batches of one shape, and everybody who computes it. */
export interface FunctionTimes {
  id: string;
  shape: Shape;
  gradient: boolean;
  /** By contender. */
  times: Record<string, Sample>;
  /** By peer: the largest relative error against this package's result. */
  errors: Record<string, number>;
}

/** Contenders by what they are called in the tables. */
export type Times = Record<string, Sample>;

/** A run. A part that was not measured is not there. */
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
  /** By function. */
  threads?: Record<string, Times>;
  /** By how much two cores were faster than one before and after these, of calls that share nothing. */
  cores?: { before: number; after: number };
  layouts?: Record<string, Times>;
  dtypes?: Record<string, Times>;
  /** By function: bytes that the process grew by at most while compute() ran. */
  memory?: Record<string, number>;
  /** By how gradients are asked for. */
  eventLoop?: Record<string, { call: Sample; timerLate: Sample }>;
  bars?: Bar[];
}

/** A bar of the project, and where the measurements stand. */
export interface Bar {
  bar: string;
  wanted: string;
  measured: string;
  /** undefined: nothing was measured. */
  met?: boolean;
}

/** One function's times, where they were measured. */
export function find(report: Report, id: string, shape: Shape, gradient: boolean): FunctionTimes | undefined {
  return report.functions.find(
    (f) => f.id === id && f.gradient === gradient && f.shape.join() === shape.join(),
  );
}

/** Writes a report as JSON, a sample a line. */
export function save(report: Report, path: string): void {
  const rounded = (_: string, value: unknown) =>
    typeof value === 'number' && !Number.isInteger(value) ? Number(value.toPrecision(5)) : value;
  const oneLine = (text: string) => text.replaceAll(/\s*\n\s*/g, ' ');
  const text = JSON.stringify(report, rounded, 2)
    .replaceAll(/\{\s*"median"[^}]*\}/g, oneLine)
    .replaceAll(/\[\s*\d+,\s*\d+\s*\]/g, oneLine);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${text}\n`);
}
