// Batches of the reference as rows that were read from files, and some rows of them.
import type { PackedRows } from '../../lib/tools/rollouts/index.js';
import type { ReferenceBatch } from '../reference/index.js';
import { packedBatch } from './subject.js';

/** Returns a batch as it is read from files: packed, and with typed arrays only. */
export function packedRows(batch: ReferenceBatch): PackedRows {
  const columns = Object.entries(packedBatch(batch)).map(([key, values]) => {
    if (!Array.isArray(values)) return [key, values];
    return [key, key.endsWith('Ids') ? Int32Array.from(values) : Float64Array.from(values)];
  });
  return Object.fromEntries(columns);
}

/** Returns some consecutive rows of a batch, in all of its columns. */
export function takeRows(batch: ReferenceBatch, from: number, count: number): ReferenceBatch {
  const { rows, columns } = batch;
  const entries = Object.entries(batch).map(([key, value]) => {
    if (key === 'rows') return [key, count];
    if (key === 'columns') return [key, columns];
    const list = Array.from(value as ArrayLike<number>);
    const width = list.length === rows ? 1 : columns;
    return [key, list.slice(from * width, (from + count) * width)];
  });
  return Object.fromEntries(entries);
}
