// Options that the normalising functions over groups share.
import type { OptionReader } from '../../core/options.js';

/** Over what rewards' standard deviation is taken. */
export type StdCalLevel = 'group' | 'batch';

/** Options of GRPO's normalisation. */
export interface NormalisationOptions {
  /** Added to the standard deviation; 1e-6 by default. */
  epsilon?: number | null | undefined;
  /** Drop groups whose rewards' standard deviation is not above this, and groups of one; none by default. */
  stdThreshold?: number | null | undefined;
  /** The standard deviation of the group's rewards (default) or of all rewards of the batch. */
  stdCalLevel?: StdCalLevel | null | undefined;
}

/** What is at least 0. */
export const NOT_NEGATIVE = { holds: (x: number) => x >= 0, says: 'of at least 0' };

/** Reads them, into native options and whether rows may be dropped. */
export function readNormalisation(reader: OptionReader) {
  const threshold = reader.number('stdThreshold', undefined, NOT_NEGATIVE);
  return {
    options: {
      epsilon: reader.number('epsilon', 1e-6, NOT_NEGATIVE),
      std_threshold: threshold ?? Number.NaN,
      std_cal_level: reader.choice<StdCalLevel>('stdCalLevel', 'group', ['group', 'batch']),
    },
    drops: threshold !== undefined,
  };
}
