// Reads what a batch has of its rows: numbers, flags and ids, those that it may lack, and its layout if it has no tokens.
import { inSlices, type Steps } from '../base/steps.js';
import { type Batch, find } from './batch.js';
import { type InputName, inputRow } from './columns.js';
import { readMask, readRowNumbers } from './convert.js';
import { CU_SEQLENS, type Layout, readLayout } from './layout.js';

/** Returns whether a batch may lack an input of rows, because the table has a value for it. */
export function hasDefault(name: InputName): boolean {
  return inputRow(name).absent !== undefined;
}

/** Returns the values of an input that a batch lacks. */
export function defaultsOf(name: InputName, rows: number): Float64Array {
  const { absent } = inputRow(name);
  const values = new Float64Array(rows);
  if (absent !== 'own') return values.fill(absent!);
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

/** Reads one number or flag per row, or one per pair, which both rows get. */
export function* readOfPairs(
  key: string,
  value: unknown,
  layout: Layout,
  isFlags: boolean,
): Steps<Float64Array | Uint8Array> {
  const { rows } = layout;
  const isPerPair = rows % 2 === 0 && (value as ArrayLike<unknown> | null)?.length === rows / 2 && rows > 0;
  const length = isPerPair ? rows / 2 : rows;
  const values = isFlags
    ? yield* readMask(key, value, { ...layout, rows: length }, 'row')
    : yield* readRowNumbers(key, value, length);
  if (!isPerPair) return values;
  const ofRows = new Float64Array(rows);
  yield* inSlices(rows, (begin, end) => {
    for (let row = begin; row < end; row++) ofRows[row] = values[row >> 1]!;
  });
  return ofRows;
}
