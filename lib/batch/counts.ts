// Counts of a batch's tokens and rows. If a batch is computed in parts, each part needs the counts of the whole batch:
// its loss is divided by them, so that the losses of all parts add up to the loss of the batch.
import type { NativeCounts } from '../../binding.js';
import { describeValue, guarded, LossError } from '../base/errors.js';
import type { Layout } from './layout.js';

/** The number of tokens and of rows, either in a whole batch or only in the rows that an expert wrote. */
export interface RowCounts {
  /** The number of unmasked tokens. */
  tokens: number;
  /** The number of rows, including rows in which every token is masked. */
  rows: number;
}

/** The counts of a batch, or of several parts of a batch added up. */
export interface Counts extends RowCounts {
  /** T, the number of tokens in each padded row; for packed rows, the length of the longest row. */
  columns: number;
  /**
   * The counts of the rows that an expert wrote. Present only if the function treats these rows differently, as MIX
   * does.
   */
  expert?: RowCounts;
}

/**
 * The counts of a whole batch, as {@link sumCounts} returns them. Pass them to compute() when computing one part of
 * that batch. All are whole numbers, and none may be less than the same count of the part.
 */
export interface Normalizer extends RowCounts {
  /**
   * T of the whole batch; by default, T of the part itself. Only the aggregation mode seq-mean-token-sum-norm reads it.
   */
  columns?: number;
  /**
   * The counts of the rows that an expert wrote. Required by functions that treat these rows differently, such as MIX.
   */
  expert?: RowCounts;
}

/** The most parts of a batch. An array can claim any number of elements, and an iterable may have no end. */
export const MAX_PARTS = 2 ** 20;

/**
 * Adds up the counts of a batch's parts. The result is the `normalizer` for each part's compute().
 * @throws LossError `ERR_INVALID_INPUT` if an element is not a result of count(), or if there are more than 2^20.
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
    checkPartCount('length' in parts ? Number(parts.length) : 0);
    let count = 0;
    for (const part of parts) {
      checkPartCount(++count);
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

function checkPartCount(count: number): void {
  if (count > MAX_PARTS)
    throw new LossError('ERR_INVALID_INPUT', {
      at: 'sumCounts',
      expected: `the counts of at most ${MAX_PARTS} parts`,
      received: 'more',
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
 * Checks the counts that a caller passed as `normalizer` and converts them to the array that native code takes.
 * @throws LossError `ERR_INVALID_OPTION` if a count is missing or invalid.
 */
export function toNativeCounts(
  normalizer: Normalizer,
  layout: Layout,
  separatesExperts: boolean,
): Float64Array {
  if (normalizer === null || typeof normalizer !== 'object')
    throw invalid('normalizer', 'an object with the counts of the whole batch', normalizer);
  const { tokens, rows } = readCounts('normalizer', normalizer);
  // Reads the property once, because a getter may return something else the next time.
  const given = normalizer.columns;
  const columns = given ?? layout.rowLength;
  checkCount('normalizer.columns', columns);
  const most = rows * (given ?? Number.MAX_SAFE_INTEGER);
  if (tokens > most)
    throw invalid('normalizer.tokens', `at most ${most}, which is rows times columns`, tokens);
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

/**
 * Checks that the counts of the whole batch, which the caller passed as `normalizer`, are possible: that none of them is
 * less than the same count of the part. For a function of rows alone, only the rows are compared.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function checkPart(
  whole: Float64Array,
  part: Float64Array,
  { separatesExperts, ofRows }: { readonly separatesExperts: boolean; readonly ofRows: boolean },
): void {
  const { expert: wholeExpert, ...ofWhole } = fromNativeCounts(whole, separatesExperts);
  const { expert: partExpert, ...ofPart } = fromNativeCounts(part, separatesExperts);
  if (wholeExpert && partExpert) {
    checkAtLeast('normalizer.expert', wholeExpert, partExpert);
    // The rows that the policy sampled come in addition to the experts' rows of all parts.
    ofPart.tokens += wholeExpert.tokens - partExpert.tokens;
    ofPart.rows += wholeExpert.rows - partExpert.rows;
  }
  checkAtLeast('normalizer', ofWhole, ofRows ? { ...ofWhole, rows: ofPart.rows } : ofPart);
}

function checkAtLeast<C extends RowCounts>(name: string, given: C, least: C): void {
  for (const key of Object.keys(least) as (keyof C & string)[])
    if (given[key] < least[key])
      throw invalid(`${name}.${key}`, `at least ${least[key]} for this part`, given[key]);
}

/** Converts counts from native code to the object that callers get. */
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
  if (!Number.isSafeInteger(count) || (count as number) < 0)
    throw invalid(name, 'a whole number of at least 0', count);
}

function invalid(option: string, expected: string, value: unknown): LossError {
  return new LossError('ERR_INVALID_OPTION', { option, expected, received: describeValue(value) });
}
