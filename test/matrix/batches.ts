/** The batches on which every function must give the same bits in all forms. */
import type { RewardedBatch } from '../reference/advantage.js';
import { type BatchSpec, EDGE_LENGTHS } from '../support/draw.js';
import type { Tested } from './tested.js';

/** A few short rows. */
export const SMALL: BatchSpec = {
  seed: 11,
  rows: 6,
  columns: 37,
  rowLengths: [37, 1, 20, 31, 33, 8],
  values: 'moderate',
  mask: 'random',
  packed: true,
};
/** A row that is divided among threads, and one that is too short for that but longer than one float64 sum. */
export const LONG: BatchSpec = {
  ...EDGE_LENGTHS,
  rows: 4,
  columns: 40_001,
  rowLengths: [40_001, 7, 20_000, 300],
};
/** Many rows of one length, which are divided among threads. Their log-ratios are wide. */
export const WIDE: BatchSpec = {
  ...EDGE_LENGTHS,
  seed: 3,
  rows: 8,
  columns: 5000,
  rowLengths: Array(8).fill(5000),
  values: 'wide',
};
/** Lengths on both sides of the numbers of tokens at which loops, tiles, sums and parts of a row of advantages end. */
export const LONG_OF_ADVANTAGES: BatchSpec = {
  ...EDGE_LENGTHS,
  seed: 31,
  rows: 8,
  columns: 40_001,
  rowLengths: [1, 31, 65, 1023, 1025, 2100, 17_000, 40_001],
};

// Masks of rows that end after so many tokens. The engine computes 64 tokens as a block, 512 or 1,024 as a tile, and 16,384
// as a chunk of a row of more than 32,768.
const ENDS = [0, 1, 63, 64, 65, 511, 512, 513, 1024, 1025, 1500, 1600];
const ENDS_OF_LONG_ROWS = [16_384, 16_385, 0, 33_000];

const ended = new WeakMap<RewardedBatch, RewardedBatch>();

/** Returns batches whose rows are masked from an end on. Every third row also has a hole. */
export function batchesWithEnds(on: Tested): [string, RewardedBatch][] {
  return [ENDS, ENDS_OF_LONG_ROWS].map((ends) => {
    const columns = ends === ENDS ? 1600 : 33_000;
    const rows = ends.length;
    const batch = on.draw({ ...SMALL, rows, columns, rowLengths: Array(rows).fill(columns) });
    const actionMask = maskWithEnds(batch, ends);
    const attentionMask = actionMask.map((flag, i) => flag && batch.attentionMask![i]!);
    const made = ended.get(batch) ?? { ...batch, actionMask, attentionMask };
    ended.set(batch, made);
    return [`masks that end early in rows of ${columns} tokens`, made];
  });
}

function maskWithEnds({ rows, columns }: RewardedBatch, ends: readonly number[]): Uint8Array {
  return Uint8Array.from({ length: rows * columns }, (_, i) => {
    const row = Math.floor(i / columns);
    const end = ends[row % ends.length]!;
    const t = i % columns;
    return t < end && !(row % 3 === 2 && t === end >> 1) ? 1 : 0;
  });
}
