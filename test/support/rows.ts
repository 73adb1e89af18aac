// Batches of the reference as rows that were read from files, and some rows of them.
import type { PackedRows } from '../../lib/tools/rollouts/index.js';
import type { ReferenceBatch } from '../reference/index.js';
import { packedBatch } from './subject.js';

/** Returns a batch as it is read from files: packed, with typed arrays only, and without columns that no file has. */
export function packedRows({ rolloutIds, attentionMask, ...batch }: ReferenceBatch): PackedRows {
  const { groupIds, step, ...rest } = packedBatch(batch);
  return {
    ...rest,
    groupIds: Int32Array.from(groupIds as number[]),
    step: Float64Array.from(step as number[]),
  } as unknown as PackedRows;
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
