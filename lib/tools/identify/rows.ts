// The rows on which candidates run: which column plays which role, and how the rows are cut into micro-batches.
import { toCamelCase } from '../../base/options.js';
import { inputRow } from '../../batch/columns.js';
import type { PolicyLossFn } from '../../index.js';
import type { PackedRows, RolloutColumn } from '../rollouts/index.js';

/** The columns that stand for the current and the old policy's log-probabilities. */
export interface Roles {
  readonly logprobs: RolloutColumn;
  readonly oldLogprobs: RolloutColumn;
}

/** How the rows are cut into consecutive micro-batches. */
export interface Split {
  /** The first row of each micro-batch, and the number of rows at the end. */
  readonly starts: readonly number[];
  /** The factor of each micro-batch's loss, gradient and metrics; the factors add up to 1. */
  readonly weights: readonly number[];
  /** Whether all micro-batches weigh the same, or as much as they have rows. */
  readonly weighing: 'equal' | 'rows';
}

/** Returns the number of micro-batches. */
export function countOf({ weights }: Split): number {
  return weights.length;
}

const KEYS: Partial<Record<RolloutColumn, string>> = {
  logprobs: 'logprob',
  old_logprobs: 'oldLogprob',
  rollout_logprobs: 'rolloutLogprob',
};

/**
 * Returns the roles that columns can have. The first ones are the most likely. A trainer writes most files before the
 * update, so that old_logprobs are also the current ones; and the rollout engine can be the old policy.
 */
export function rolesIn(batch: PackedRows): Roles[] {
  const columnOf = (column: RolloutColumn) => batch[KEYS[column]!] as Float32Array | undefined;
  const has = (column: RolloutColumn) => columnOf(column) !== undefined;
  const current: RolloutColumn[] = (['logprobs', 'old_logprobs'] as const).filter(has);
  const old = (['old_logprobs', 'rollout_logprobs'] as const).filter(has);
  // Trainers that take the rollout engine for the old policy write its numbers twice.
  const areSame = old.length === 2 && areEqual(columnOf(old[0]!)!, columnOf(old[1]!)!);
  const roles = current.flatMap((logprobs) =>
    (areSame ? old.slice(0, 1) : old).map((oldLogprobs): Roles => ({ logprobs, oldLogprobs })),
  );
  if (roles.length > 0) return roles;
  const only = current[0] ?? 'rollout_logprobs';
  return has(only) ? [{ logprobs: only, oldLogprobs: only }] : [];
}

function areEqual(a: Float32Array, b: Float32Array): boolean {
  return a.every((x, t) => x === b[t]);
}

/** Returns the batch with the columns in their roles. */
export function inRoles(batch: PackedRows, { logprobs, oldLogprobs }: Roles): PackedRows {
  return {
    ...batch,
    logprob: batch[KEYS[logprobs]!] as Float32Array,
    oldLogprob: batch[KEYS[oldLogprobs]!] as Float32Array,
  };
}

/**
 * Returns the ways to cut the rows.
 * @param counts the numbers of micro-batches to try; by default the powers of two up to the number of rows.
 * @param files the first row of each file. Files can be micro-batches.
 */
export function splitsOf(
  rows: number,
  counts: readonly number[] | undefined,
  files: readonly number[],
): Split[] {
  const wanted = counts ?? powersOfTwo(Math.min(rows, MOST_MICRO_BATCHES));
  const all = wanted.flatMap((count) => [
    ...weighed(
      Array.from({ length: count + 1 }, (_, i) => Math.floor((i * rows) / count)),
      rows,
    ),
    ...weighed([...range(0, rows, Math.ceil(rows / count)), rows], rows),
  ]);
  const ofFiles =
    counts === undefined || counts.includes(files.length) ? weighed([...files, rows], rows) : [];
  const unique = new Map(
    [...all, ...(files.length > 1 ? ofFiles : [])].map((split) => [
      JSON.stringify([split.starts, split.weights]),
      split,
    ]),
  );
  return [...unique.values()];
}

const MOST_MICRO_BATCHES = 256;

function powersOfTwo(most: number): number[] {
  const counts = [1];
  while (2 * counts.at(-1)! <= most) counts.push(2 * counts.at(-1)!);
  return counts;
}

function range(from: number, to: number, step: number): number[] {
  return Array.from({ length: Math.ceil((to - from) / step) }, (_, i) => from + i * step);
}

function weighed(starts: readonly number[], rows: number): Split[] {
  const sizes = starts.slice(1).map((end, i) => end - starts[i]!);
  if (sizes.some((size) => size === 0)) return [];
  const count = sizes.length;
  const equal: Split = { starts, weights: sizes.map(() => 1 / count), weighing: 'equal' };
  if (sizes.every((size) => size === sizes[0])) return [equal];
  return [equal, { starts, weights: sizes.map((size) => size / rows), weighing: 'rows' }];
}

/** Returns whether a batch has all columns that a loss needs. */
export function canCompute(batch: PackedRows, fn: PolicyLossFn<object>): boolean {
  const { columns, optional, rowColumns, expertMask, step } = fn.reads;
  const mayLack: readonly string[] = optional;
  const keys = [
    ...columns.filter((name) => !mayLack.includes(name)),
    ...rowColumns.filter((name) => !mayLack.includes(name) && inputRow(name).absent === undefined),
    ...(expertMask ? ['expert_mask'] : []),
    ...(step ? ['step'] : []),
  ].map(toCamelCase);
  return keys.every((key) => batch[key] !== undefined);
}
