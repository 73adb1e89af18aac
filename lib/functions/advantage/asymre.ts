// AsymRE's class.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';

/** Options of {@link ASYMREGroupAdvantage}. */
export interface ASYMREAdvantageOptions extends AdvantageOptions {
  /** Added to the group's mean reward; −0.1 by default, so that more answers count as good than as bad. */
  baselineShift?: number | null | undefined;
}

/**
 * AsymRE: R − (mean + shift); a group of one has no baseline.
 *
 * Reads rewards [B], group_ids [B], action_mask. Metrics: group_advantages/group_baseline/…,
 * group_advantages/reward_mean/… (mean, max, min over groups); reward_mean is the baseline less the shift, as the source
 * has it, also of a group of one.
 *
 * Source: arXiv 2506.20520; Trinity-RFT's ASYMREGroupAdvantage.
 */
export class ASYMREGroupAdvantage extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: ASYMREAdvantageOptions = {}) {
    const reader = new OptionReader('ASYMREGroupAdvantage', options);
    const native = { baseline_shift: reader.number('baselineShift', -0.1) };
    reader.end();
    super(reader.backend, {
      advantage: { name: 'asymre', options: native },
      inputs: ['rewards', 'group_ids'],
      perRow: true,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { baseline_shift: -0.1 };
  }
}
