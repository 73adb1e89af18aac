// Takes some rows out of a packed batch.
import type { BatchWith } from '../../batch/batch.js';
import { columnOfKey, isPerRow } from './columns.js';

/** Rows as a packed batch: per-token columns in one array each, with the rows' offsets in cuSeqlens. */
export type PackedRows = BatchWith<string> & { cuSeqlens: Int32Array; actionMask: Uint8Array };

/** Returns some consecutive rows of a batch. Its columns are views of the batch's. */
export function rowsFrom(batch: PackedRows, first: number, end: number): PackedRows {
  const { cuSeqlens } = batch;
  const [from, to] = [cuSeqlens[first]!, cuSeqlens[end]!];
  const cut = Object.entries(batch).map(([key, values]) => {
    if (key === 'cuSeqlens') return [key, cuSeqlens.slice(first, end + 1).map((offset) => offset - from)];
    const column = columnOfKey(key);
    const array = values as Float32Array;
    return [key, column && isPerRow(column) ? array.subarray(first, end) : array.subarray(from, to)];
  });
  return Object.fromEntries(cut);
}
