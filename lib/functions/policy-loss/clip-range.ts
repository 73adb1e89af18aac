// PPO's clip options, which GSPO, MIX and MIX-CHORD take too.
import { LossError } from '../../core/errors.js';
import type { OptionReader } from '../../core/options.js';

/** The range that a ratio may move in, [1 − low, 1 + high]. */
export interface ClipRangeOptions {
  /** For low and high where they are not given. */
  clipRange?: number | null | undefined;
  /** The ratio's lower bound is 1 − this; at least 0. */
  clipRangeLow?: number | null | undefined;
  /** The ratio's upper bound is 1 + this; at least 0. */
  clipRangeHigh?: number | null | undefined;
}

const POSITIVE = { holds: (x: number) => x >= 0, says: 'of at least 0' };

/** @throws LossError `ERR_INVALID_OPTION` where neither the range nor both of its ends are given. */
export function readClipRange(
  owner: string,
  reader: OptionReader,
): { clip_range_low: number; clip_range_high: number } {
  const both = reader.number('clipRange', undefined, POSITIVE);
  const low = reader.number('clipRangeLow', both, POSITIVE);
  const high = reader.number('clipRangeHigh', both, POSITIVE);
  if (low === undefined || high === undefined)
    throw new LossError(
      'ERR_INVALID_OPTION',
      `${owner}: no clip range: expected clipRange, or clipRangeLow and clipRangeHigh; ${
        low === undefined && high === undefined
          ? 'none'
          : low === undefined
            ? 'only the high end'
            : 'only the low end'
      } came`,
    );
  return { clip_range_low: low, clip_range_high: high };
}
