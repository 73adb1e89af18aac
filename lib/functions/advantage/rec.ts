// The class of REC's advantages.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';
import { NOT_NEGATIVE } from './normalisation.js';

/** Options of {@link RECGroupedAdvantage}. */
export interface RECAdvantageOptions extends AdvantageOptions {
  /** Added to the standard deviation; 1e-6 by default. */
  epsilon?: number | null | undefined;
  /** Divide by the population's standard deviation of the group's rewards; false by default. */
  stdNormalize?: boolean | null | undefined;
  /** 'balance': where more answers are worse than the mean than not, score the surplus, drawn at random, 0. */
  drop?: 'balance' | null | undefined;
  /** What the random draws depend on; 0 by default. */
  seed?: number | null | undefined;
}

/**
 * REC: R − mean within the group, over its standard deviation if wanted.
 *
 * Reads rewards [B], group_ids [B], action_mask. Metrics: group_advantages/drop_balance/… (share of rows),
 * group_advantages/reward_mean/…, group_advantages/reward_std/… (mean, max, min over groups).
 *
 * Source: arXiv 2509.24203; Trinity-RFT's RECGroupedAdvantage.
 */
export class RECGroupedAdvantage extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: RECAdvantageOptions = {}) {
    const reader = new OptionReader('RECGroupedAdvantage', options);
    const native = {
      epsilon: reader.number('epsilon', 1e-6, NOT_NEGATIVE),
      std_normalize: reader.boolean('stdNormalize', false),
      drop: reader.choice<'none' | 'balance'>('drop', 'none', ['balance']),
    };
    const seed = reader.count('seed', 0, 0);
    reader.end();
    super(reader.backend, {
      advantage: { name: 'rec', options: native },
      inputs: ['rewards', 'group_ids'],
      perRow: true,
      seed,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { epsilon: 1e-6, std_normalize: false, drop: null };
  }
}
