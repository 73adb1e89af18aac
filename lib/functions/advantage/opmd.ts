// OPMD: advantages relative to a baseline that is computed for each group.
import { ADVANTAGE_FN, advantageClass, groupMetrics } from './advantage-fn.js';

/**
 * OPMD's advantage of a row: its reward minus the baseline of its group, which is the mean or soft maximum of the
 * rewards.
 */
export class OPMDGroupAdvantage extends advantageClass({
  name: 'opmd',
  summary: "R − the group's mean or soft maximum",
  details: ['A group of one row has baseline 0.', 'The soft maximum is tau·ln(mean e^(R/tau)).'],
  source: ['arXiv 2505.17826', 'Trinity-RFT'],
  reads: ['rewards', 'group_ids', 'action_mask'],
  perRow: true,
  options: {
    opmdBaseline: {
      type: 'choice',
      choices: ['mean', 'logavgexp'],
      default: 'mean',
      help: "the baseline: the rewards' mean, or their soft maximum",
    },
    tau: {
      type: 'number',
      default: 1,
      above: 0,
      typical: [0.05, 3],
      help: 'temperature of logavgexp, in units of reward',
    },
  },
  metrics: groupMetrics('reward', 'group_baseline', 'reward_mean'),
  numerics: {
    range:
      'finite rewards; the soft maximum is computed in float64 relative to the largest, so it never overflows',
    outside: 'not finite: ERR_INVALID_INPUT',
    variants: [{ opmd_baseline: 'logavgexp' }],
  },
}) {
  static {
    ADVANTAGE_FN.register('opmd', OPMDGroupAdvantage);
  }
}

/** The options of {@link OPMDGroupAdvantage}. */
export type OPMDAdvantageOptions = NonNullable<ConstructorParameters<typeof OPMDGroupAdvantage>[0]>;
/**
 * The baseline that {@link OPMDGroupAdvantage} uses: 'mean' is the mean reward of the group, 'logavgexp' its soft
 * maximum tau·ln(mean e^(R/tau)) for rewards R.
 */
export type OPMDBaseline = NonNullable<OPMDAdvantageOptions['opmdBaseline']>;
