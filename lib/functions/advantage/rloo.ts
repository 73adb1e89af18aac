// RLOO's class.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';

/**
 * RLOO: a row's reward, the sum of its tokens' over all columns, less the mean of the other rows of its group.
 *
 * Reads token_level_rewards [B, T] (or rewards [B]), group_ids [B], action_mask. No metrics.
 *
 * Source: arXiv 2402.14740; Trinity-RFT's RLOOAdvantageFn.
 */
export class RLOOAdvantageFn extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: AdvantageOptions = {}) {
    const reader = new OptionReader('RLOOAdvantageFn', options);
    reader.end();
    super(reader.backend, {
      advantage: { name: 'rloo', options: {} },
      inputs: ['token_level_rewards', 'group_ids'],
      perRow: true,
      readsMasked: true,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return {};
  }
}
