/** A batch with every column that the objectives of configurations read. */
import type { Batch } from '../../lib/index.js';

export const [ROWS, COLUMNS] = [6, 5];
export const wave = (phase: number, size: number, centre = 0) =>
  Float32Array.from({ length: ROWS * COLUMNS }, (_, i) => centre + size * Math.sin(phase + 1.7 * i));
/** The numbers of unmasked tokens of the rows, one of which has none. */
export const LENGTHS = [5, 3, 4, 0, 5, 2];
export const MASK = Uint8Array.from({ length: ROWS * COLUMNS }, (_, i) =>
  Number(i % COLUMNS < LENGTHS[Math.floor(i / COLUMNS)]!),
);
export const REWARDED = {
  shape: [ROWS, COLUMNS] as const,
  logprob: wave(0, 0.6, -1.2),
  oldLogprob: wave(0.4, 0.6, -1.25),
  refLogprob: wave(1.5, 0.5, -1.2),
  rolloutLogprob: wave(0.5, 0.62, -1.25),
  entropy: wave(2, 0.4, 0.9),
  values: wave(3, 0.5),
  actionMask: MASK,
  rewards: [1, 0, 0.25, 0.7, -0.4, 0.1],
  groupIds: [0, 0, 0, 1, 1, 1],
} satisfies Batch;
export const BATCH: Batch = { ...REWARDED, advantages: [1, -1, 0.5, -0.5, 2, -2] };

export const classOf = (object: object | undefined) => object?.constructor;
