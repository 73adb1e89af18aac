// The clip options that PPO, GSPO, MIX and MIX-CHORD share.
import type { OptionsOf } from '../../core/options.js';

/** The declarations of the options that set the range [1 − low, 1 + high] to which a ratio is clipped. */
export const CLIP_RANGE = {
  clipRange: {
    type: 'number',
    atLeast: 0,
    help: 'used for both ends of the clip range, except for an end that has its own value',
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

/** The options that set the range [1 − low, 1 + high] to which a ratio is clipped. */
export type ClipRangeOptions = OptionsOf<typeof CLIP_RANGE>;
