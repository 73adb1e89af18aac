// The clip options that PPO, GSPO, MIX and MIX-CHORD share.
import type { OptionsOf } from '../../core/options.js';

/** The range [1 − low, 1 + high] to which a ratio is clipped. */
export const CLIP_RANGE = {
  clipRange: {
    type: 'number',
    atLeast: 0,
    help: 'the value of both ends of the clip range; an end with its own value keeps that',
  },
  clipRangeLow: {
    type: 'number',
    atLeast: 0,
    defaultFrom: 'clipRange',
    required: true,
    typical: [0.05, 0.6],
    help: 'the ratio is clipped to at least 1 − this',
  },
  clipRangeHigh: {
    type: 'number',
    atLeast: 0,
    defaultFrom: 'clipRange',
    required: true,
    typical: [0.05, 0.6],
    help: 'the ratio is clipped to at most 1 + this',
  },
} as const;

/** Options for the range [1 − low, 1 + high] to which a ratio is clipped. */
export type ClipRangeOptions = OptionsOf<typeof CLIP_RANGE>;
