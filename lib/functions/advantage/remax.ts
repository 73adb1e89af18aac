// ReMax's class.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';

/**
 * ReMax: the rewards to go of a row's unmasked tokens less the reward of the greedy answer to the same prompt.
 *
 * Reads token_level_rewards [B, T] (or rewards [B]), reward_baselines [B], action_mask. Returns are the rewards to go.
 * No metrics.
 *
 * Source: arXiv 2310.10505; Trinity-RFT's REMAXAdvantageFn.
 */
export class REMAXAdvantageFn extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: AdvantageOptions = {}) {
    const reader = new OptionReader('REMAXAdvantageFn', options);
    reader.end();
    super(reader.backend, {
      advantage: { name: 'remax', options: {} },
      inputs: ['token_level_rewards', 'reward_baselines'],
      perRow: false,
      returns: true,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return {};
  }
}
