// Token and row counts of batches. A part needs the counts of the whole batch, so that the parts' results add up.
import type { NativeCounts } from '../../binding.js';
import { describeValue, guarded, LossError } from './errors.js';
import type { Layout } from './layout.js';

/** The numbers of tokens and rows. */
export interface RowCounts {
  /** Unmasked tokens. */
  tokens: number;
  /** B, including rows without an unmasked token. */
  rows: number;
}

/** The counts of a batch. */
export interface Counts extends RowCounts {
  /** T; the length of the longest row if rows are packed. */
  columns: number;
  /** The counts of experts' rows, if the function separates them from the others (MIX). */
  expert?: RowCounts;
}

/** The counts of the whole batch, passed when one of its parts is computed; see {@link sumCounts}. */
export interface Normalizer extends RowCounts {
  /** T of the whole batch; by default the part's own T. Only seq-mean-token-sum-norm reads it. */
  columns?: number;
  /** Required by functions that separate experts' rows. */
  expert?: RowCounts;
}

/**
 * Adds up the counts of a batch's parts.
 * @throws LossError `ERR_INVALID_INPUT` if an element is not a result of count().
 */
export function sumCounts(parts: Iterable<Counts>): Counts {
  return guarded(() => {
    const whole: Counts = { tokens: 0, rows: 0, columns: 0 };
    if (parts === null || typeof parts !== 'object' || !(Symbol.iterator in parts))
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'sumCounts',
        expected: 'a list of counts',
        received: describeValue(parts),
      });
    for (const part of parts) {
      const { tokens, rows, columns, expert } = Object(part) as Counts;
      addCounts(whole, part, { tokens, rows });
      if (typeof columns !== 'number') throw notCounts(part);
      whole.columns = Math.max(whole.columns, columns);
      if (!expert) continue;
      whole.expert ??= { tokens: 0, rows: 0 };
      addCounts(whole.expert, part, expert);
    }
    return whole;
  });
}

function addCounts(whole: RowCounts, part: unknown, { tokens, rows }: RowCounts): void {
  if (typeof tokens !== 'number' || typeof rows !== 'number') throw notCounts(part);
  whole.tokens += tokens;
  whole.rows += rows;
}

function notCounts(part: unknown): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    at: 'sumCounts',
    expected: 'results of count()',
    received: describeValue(part),
  });
}

/**
 * Converts a caller's normalizer for native code.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function toNativeCounts(
  normalizer: Normalizer,
  layout: Layout,
  separatesExperts: boolean,
): Float64Array {
  if (normalizer === null || typeof normalizer !== 'object')
    throw invalid('normalizer', 'an object with the counts of the whole batch', normalizer);
  const { tokens, rows } = readCounts('normalizer', normalizer);
  const columns = normalizer.columns ?? layout.rowLength;
  checkCount('normalizer.columns', columns);
  let expert: RowCounts = { tokens: 0, rows: 0 };
  if (separatesExperts) {
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

/** Converts native counts for callers. */
export function fromNativeCounts(counts: Float64Array, separatesExperts: boolean): Counts {
  const [usualTokens, expertTokens, usualRows, expertRows, columns] = counts as unknown as NativeCounts;
  const whole: Counts = { tokens: usualTokens + expertTokens, rows: usualRows + expertRows, columns };
  if (separatesExperts) whole.expert = { tokens: expertTokens, rows: expertRows };
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

function invalid(option: string, expected: string, value: unknown): LossError {
  return new LossError('ERR_INVALID_OPTION', { option, expected, received: describeValue(value) });
}
