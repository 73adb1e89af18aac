// How an advantage function computes a part of a larger batch.
import type { NativeAdvantageBatch } from '../../../binding.js';

/** The length of a NativeSpread; see binding.d.ts. */
export const SPREAD_LENGTH = 3;

/** How a batch stands for a larger one; see NativeAdvantageBatch in binding.d.ts. */
export type AdvantagePart = Pick<NativeAdvantageBatch, 'rowTokens' | 'spread'>;
