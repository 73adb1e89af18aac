// Step-wise GRPO's class.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';
import { type NormalisationOptions, readNormalisation } from './normalisation.js';

/** Options of {@link StepWiseGRPOAdvantageFn}. */
export interface StepWiseGRPOAdvantageOptions extends AdvantageOptions, NormalisationOptions {
  /** Divide a run's advantage by its number of rows; false by default. */
  enableStepNorm?: boolean | null | undefined;
}

/**
 * Step-wise GRPO: a run of several rows (steps) has the reward of its last row, normalised among the runs of its group,
 * and all of its rows have that advantage.
 *
 * Reads rewards [B], group_ids [B], run_ids [B], action_mask. Metrics: group_advantages/reward_mean/…,
 * group_advantages/reward_std/… (mean, max, min over groups), experience_count and filtered_count (rows),
 * skipped_group_ratio.
 *
 * Source: Trinity-RFT's StepWiseGRPOAdvantageFn.
 */
export class StepWiseGRPOAdvantageFn extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: StepWiseGRPOAdvantageOptions = {}) {
    const reader = new OptionReader('StepWiseGRPOAdvantageFn', options);
    const { options: shared, drops } = readNormalisation(reader);
    const stepNorm = reader.boolean('enableStepNorm', false);
    reader.end();
    super(reader.backend, {
      advantage: { name: 'step_wise_grpo', options: { ...shared, enable_step_norm: stepNorm } },
      inputs: ['rewards', 'group_ids', 'run_ids'],
      perRow: true,
      drops,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { epsilon: 1e-6, enable_step_norm: false, std_threshold: null, std_cal_level: 'group' };
  }
}
