// Reads what a batch has of its rows: numbers, flags and ids, those that it may lack, and its layout if it has no tokens.
import { describeValue, LossError } from '../base/errors.js';
import { inSlices, type Steps } from '../base/steps.js';
import { type Batch, find } from './batch.js';
import { type InputName, inputRow } from './columns.js';
import { readMask, readRowNumbers } from './convert.js';
import { CU_SEQLENS, type Layout, readLayout } from './layout.js';

/** Returns whether the table has the values of an input of rows that a batch lacks. */
export function hasDefault(name: InputName): boolean {
  const { absent } = inputRow(name);
  return absent !== undefined && absent !== 'alternate';
}

/** Returns the values of an input that a batch lacks. */
export function defaultsOf(name: InputName, rows: number): Float64Array {
  const { absent } = inputRow(name);
  const values = new Float64Array(rows);
  if (typeof absent === 'number') return values.fill(absent);
  for (let row = 0; row < rows; row++) values[row] = row;
  return values;
}

/**
 * Returns the layout of a batch of which only rows are read: one token per row.
 * @param numbers the numbers of the rows, which tell how many rows a batch without a shape has.
 */
export function* layoutOfRows(batch: Batch, numbers: unknown): Steps<Layout> {
  const isTagged = typeof numbers === 'object' && numbers !== null && 'data' in numbers;
  const length = ((isTagged ? numbers.data : numbers) as Partial<ArrayLike<unknown>> | undefined)?.length;
  const hasLayout = find(batch, ['shape', ...CU_SEQLENS]) !== undefined;
  const rows = hasLayout ? (yield* readLayout(batch)).rows : Number(length ?? 0);
  return { rows, rowLength: 1, tokens: rows, offsets: undefined };
}

/** Returns the index of the next row of each row's group. After the last row of a group comes its first. */
export function* nextInGroups(ids: Int32Array): Steps<Float64Array> {
  const next = new Float64Array(ids.length);
  const last = new Map<number, number>();
  yield* inSlices(ids.length, (begin, end) => {
    for (let row = begin; row < end; row++) {
      const before = last.get(ids[row]!) ?? row;
      next[row] = before === row ? row : next[before]!;
      next[before] = row;
      last.set(ids[row]!, row);
    }
  });
  return next;
}

/**
 * Returns the index of the other row of each row's pair, or for three rows what {@link nextOfThree} returns.
 * @param value the ids as the batch has them, for the error message.
 * @param size the number of rows with one id.
 * @throws LossError `ERR_INVALID_INPUT` for an id with another number of rows.
 */
export function* nextInPairs(
  key: string,
  value: ArrayLike<unknown>,
  ids: Int32Array,
  size: 2 | 3,
): Steps<Float64Array> {
  const next = yield* nextInGroups(ids);
  const result = Float64Array.from(next);
  yield* inSlices(ids.length, (begin, end) => {
    for (let first = begin; first < end; first++) {
      const count = lengthOfRing(next, first);
      if (count !== size)
        throw new LossError('ERR_INVALID_INPUT', {
          key,
          expected: `${size} rows with the id ${describeId(value[first])}`,
          received: String(count),
        });
      if (size === 3 && isFirst(next, first)) setThree(result, first, next[first]!, next[next[first]!]!);
    }
  });
  return result;
}

function describeId(id: unknown): string {
  return typeof id === 'number' ? String(id) : describeValue(id);
}

const MOST_COUNTED = 1000;

function lengthOfRing(next: Float64Array, first: number): number {
  let count = 1;
  for (let row = next[first]!; row !== first && count < MOST_COUNTED; row = next[row]!) count++;
  return count;
}

function isFirst(next: Float64Array, row: number): boolean {
  return next[row]! > row && next[next[row]!]! > row;
}

// The third row is no part of the pair, so it is the next one of itself.
function setThree(next: Float64Array, chosen: number, rejected: number, third: number): void {
  next[chosen] = rejected;
  next[rejected] = chosen;
  next[third] = third;
}

/** Returns the pairs of a batch whose rows alternate between chosen, rejected and third ones. */
export function nextOfThree(rows: number): Float64Array {
  const next = new Float64Array(rows);
  for (let row = 0; row < rows; row += 3) setThree(next, row, row + 1, row + 2);
  return next;
}

/**
 * Reads one number or flag per row, or one per pair, which both rows get.
 * @param next the index of the other row of each row's pair; undefined if rows 2i and 2i + 1 are pairs.
 */
export function* readOfPairs(
  key: string,
  value: unknown,
  layout: Layout,
  isFlags: boolean,
  next: Float64Array | undefined,
): Steps<Float64Array | Uint8Array> {
  const { rows } = layout;
  const isPerPair = rows % 2 === 0 && (value as ArrayLike<unknown> | null)?.length === rows / 2 && rows > 0;
  const length = isPerPair ? rows / 2 : rows;
  const values = isFlags
    ? yield* readMask(key, value, { ...layout, rows: length }, 'row')
    : yield* readRowNumbers(key, value, length);
  if (!isPerPair) return values;
  const ofRows = new Float64Array(rows);
  let pair = 0;
  yield* inSlices(rows, (begin, end) => {
    for (let row = begin; row < end; row++) {
      const other = next ? next[row]! : row ^ 1;
      ofRows[row] = other < row ? ofRows[other]! : values[pair++]!;
    }
  });
  return ofRows;
}
