// Step-wise GRPO: GRPO for runs that consist of several steps. Each step is one row.
import { ADVANTAGE_FN, advantageClass, groupMetrics } from './advantage-fn.js';
import { NORMALISATION, nativeNormalisation } from './normalisation.js';

/**
 * Step-wise GRPO. The reward of a run's last row gives the run's advantage by GRPO's rule. All rows of the run get this
 * advantage.
 */
export class StepWiseGRPOAdvantageFn extends advantageClass(
  {
    name: 'step_wise_grpo',
    summary: "GRPO's advantage of a run's last reward, for all of its steps",
    details: [
      'A run is several rows (steps).',
      "Its reward is its last row's reward, normalised over the runs of its group.",
    ],
    source: ['Trinity-RFT'],
    reads: ['rewards', 'group_ids', 'run_ids', 'action_mask'],
    perRow: true,
    options: {
      ...NORMALISATION,
      enableStepNorm: {
        type: 'boolean',
        default: false,
        help: "divide a run's advantage by its number of rows",
      },
    },
    metrics: {
      ...groupMetrics('reward', 'reward_mean', 'reward_std'),
      experience_count: { unit: 'rows' },
      filtered_count: { unit: 'rows' },
      skipped_group_ratio: { unit: 'fraction of groups' },
    },
    numerics: {
      range: 'finite rewards',
      outside: 'not finite: ERR_INVALID_INPUT; a group of equal rewards has advantages 0',
    },
  },
  (options) => ({
    options: { ...nativeNormalisation(options), enable_step_norm: options.enableStepNorm },
    drops: options.stdThreshold !== undefined,
  }),
) {
  static {
    ADVANTAGE_FN.register('step_wise_grpo', StepWiseGRPOAdvantageFn);
  }
}

/** Options of {@link StepWiseGRPOAdvantageFn}. */
export type StepWiseGRPOAdvantageOptions = NonNullable<
  ConstructorParameters<typeof StepWiseGRPOAdvantageFn>[0]
>;
