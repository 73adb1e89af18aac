// AsymRE: advantages relative to a baseline, the group's mean reward plus a shift that is usually negative.
import { ADVANTAGE_FN, advantageClass, groupMetrics } from './advantage-fn.js';

/**
 * AsymRE's advantage of a row: its reward minus a baseline. The baseline is the mean reward of the row's group plus a
 * shift, which by default is negative.
 */
export class ASYMREGroupAdvantage extends advantageClass({
  name: 'asymre',
  summary: 'R − (mean + shift) of the group',
  details: [
    'A group of one row has baseline 0.',
    'As in the source, the metric reward_mean is the baseline minus the shift, even for a group of one row.',
  ],
  source: ['arXiv 2506.20520', 'Trinity-RFT'],
  reads: ['rewards', 'group_ids', 'action_mask'],
  perRow: true,
  options: {
    baselineShift: {
      type: 'number',
      default: -0.1,
      typical: [-1, 1],
      help: "added to the group's mean reward; below 0, more answers count as good than as bad",
    },
  },
  metrics: groupMetrics('reward', 'group_baseline', 'reward_mean'),
  numerics: { range: 'finite rewards', outside: 'not finite: ERR_INVALID_INPUT' },
}) {
  static {
    ADVANTAGE_FN.register('asymre', ASYMREGroupAdvantage);
  }
}

/** The options of {@link ASYMREGroupAdvantage}. */
export type ASYMREAdvantageOptions = NonNullable<ConstructorParameters<typeof ASYMREGroupAdvantage>[0]>;
