// REINFORCE's class.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';

/**
 * REINFORCE: the row's reward as it is.
 *
 * Reads rewards [B], group_ids [B], action_mask. Metrics: group_advantages/reward_mean/mean, …/max, …/min over groups.
 *
 * Source: Trinity-RFT's REINFORCEGroupAdvantage.
 */
export class REINFORCEGroupAdvantage extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: AdvantageOptions = {}) {
    const reader = new OptionReader('REINFORCEGroupAdvantage', options);
    reader.end();
    super(reader.backend, {
      advantage: { name: 'reinforce', options: {} },
      inputs: ['rewards', 'group_ids'],
      perRow: true,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return {};
  }
}
