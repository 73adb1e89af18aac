// Counts of batches: what a part of a batch must know of the whole, so that the parts' results add up.
import type { NativeCounts } from '../../binding.js';
import type { Layout } from './batch.js';
import { describeValue, guarded, LossError } from './errors.js';

/** How much of a batch counts. */
export interface RowCounts {
  /** Unmasked tokens. */
  tokens: number;
  /** B, rows without an unmasked token included. */
  rows: number;
}

/** The counts of a batch. */
export interface Counts extends RowCounts {
  /** T; of packed rows the longest one's length. */
  columns: number;
  /** Of the rows and tokens those that are an expert's, where the function tells them apart (MIX). */
  expert?: RowCounts;
}

/** The counts of a whole batch, for the computation of a part of it: see {@link sumCounts}. */
export interface Normalizer extends RowCounts {
  /** The part's own where absent, which is right for padded rows; seq-mean-token-sum-norm alone reads it. */
  columns?: number;
  /** Needed by functions that tell experts' rows from the others. */
  expert?: RowCounts;
}

/**
 * The counts of a whole from those of its parts.
 * @throws LossError `ERR_INVALID_INPUT` for what is no list of counts.
 */
export function sumCounts(parts: Iterable<Counts>): Counts {
  return guarded(() => {
    const whole: Counts = { tokens: 0, rows: 0, columns: 0 };
    if (parts === null || typeof parts !== 'object' || !(Symbol.iterator in parts))
      throw new LossError('ERR_INVALID_INPUT', `expected a list of counts, not ${describeValue(parts)}`);
    for (const part of parts) {
      const { tokens, rows, columns, expert } = Object(part) as Counts;
      addCounts(whole, part, { tokens, rows });
      if (typeof columns !== 'number') throw noCounts(part);
      whole.columns = Math.max(whole.columns, columns);
      if (!expert) continue;
      whole.expert ??= { tokens: 0, rows: 0 };
      addCounts(whole.expert, part, expert);
    }
    return whole;
  });
}

function addCounts(whole: RowCounts, part: unknown, { tokens, rows }: RowCounts): void {
  if (typeof tokens !== 'number' || typeof rows !== 'number') throw noCounts(part);
  whole.tokens += tokens;
  whole.rows += rows;
}

function noCounts(part: unknown): LossError {
  return new LossError('ERR_INVALID_INPUT', `expected counts, as count() gives, not ${describeValue(part)}`);
}

/**
 * A caller's normalizer as native code takes it.
 * @throws LossError `ERR_INVALID_OPTION` naming what is wrong with it.
 */
export function toNativeCounts(normalizer: Normalizer, layout: Layout, tellsExperts: boolean): Float64Array {
  if (normalizer === null || typeof normalizer !== 'object')
    throw invalid('normalizer', 'an object with the counts of the whole batch', normalizer);
  const { tokens, rows } = readCounts('normalizer', normalizer);
  const columns = normalizer.columns ?? layout.columns;
  checkCount('normalizer.columns', columns);
  let expert: RowCounts = { tokens: 0, rows: 0 };
  if (tellsExperts) {
    if (normalizer.expert === undefined || normalizer.expert === null)
      throw invalid('normalizer.expert', "the counts of the experts' rows", normalizer.expert);
    expert = readCounts('normalizer.expert', normalizer.expert);
    if (expert.tokens > tokens || expert.rows > rows)
      throw invalid('normalizer.expert', `at most ${tokens} tokens and ${rows} rows`, normalizer.expert);
  }
  return Float64Array.from([
    tokens - expert.tokens,
    expert.tokens,
    rows - expert.rows,
    expert.rows,
    columns,
  ] satisfies NativeCounts);
}

/** Native counts as callers read them. */
export function fromNativeCounts(counts: Float64Array, tellsExperts: boolean): Counts {
  const [usualTokens, expertTokens, usualRows, expertRows, columns] = counts as unknown as NativeCounts;
  const whole: Counts = { tokens: usualTokens + expertTokens, rows: usualRows + expertRows, columns };
  if (tellsExperts) whole.expert = { tokens: expertTokens, rows: expertRows };
  return whole;
}

function readCounts(name: string, counts: RowCounts): RowCounts {
  const { tokens, rows } = counts;
  checkCount(`${name}.tokens`, tokens);
  checkCount(`${name}.rows`, rows);
  return { tokens, rows };
}

function checkCount(name: string, count: unknown): void {
  if (typeof count !== 'number' || !Number.isFinite(count) || count < 0)
    throw invalid(name, 'a number of at least 0', count);
}

function invalid(name: string, must: string, value: unknown): LossError {
  return new LossError('ERR_INVALID_OPTION', `${name} must be ${must}, not ${describeValue(value)}`);
}
