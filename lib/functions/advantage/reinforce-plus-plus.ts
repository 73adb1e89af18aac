// REINFORCE++'s class.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';
import { DISCOUNT } from './ppo.js';

/** Options of {@link REINFORCEPLUSPLUSAdvantageFn}. */
export interface REINFORCEPLUSPLUSAdvantageOptions extends AdvantageOptions {
  /** Discount of rewards, from 0 to 1; 1 by default. */
  gamma?: number | null | undefined;
}

/**
 * REINFORCE++: discounted rewards to go, whitened over the batch's unmasked tokens. As in the source, rewards of masked
 * columns count towards the columns before them.
 *
 * Reads token_level_rewards [B, T] (or rewards [B]), action_mask. Returns are the rewards to go. No metrics.
 *
 * Source: arXiv 2501.03262; Trinity-RFT's REINFORCEPLUSPLUSAdvantageFn.
 */
export class REINFORCEPLUSPLUSAdvantageFn extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: REINFORCEPLUSPLUSAdvantageOptions = {}) {
    const reader = new OptionReader('REINFORCEPLUSPLUSAdvantageFn', options);
    const native = { gamma: reader.number('gamma', 1, DISCOUNT) };
    reader.end();
    super(reader.backend, {
      advantage: { name: 'reinforceplusplus', options: native },
      inputs: ['token_level_rewards'],
      perRow: false,
      returns: true,
      readsMasked: true,
      whitens: true,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { gamma: 1.0 };
  }
}
