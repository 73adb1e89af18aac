// RLOO (REINFORCE leave-one-out): the baseline of a row is the mean reward of the other rows in its group.
import { ADVANTAGE_FN, advantageClass } from './advantage-fn.js';

/** RLOO: a row's advantage is its reward minus the mean reward of the other rows in its group. */
export class RLOOAdvantageFn extends advantageClass({
  name: 'rloo',
  summary: "R − mean of the group's other rows",
  details: [
    'As in the source, R is the sum of the rewards of all tokens of the row, including masked ones.',
    'If the batch has one reward per row instead, it counts as the reward of the last unmasked token.',
    'A row without unmasked tokens then has R = 0 in its group, whatever its reward is; grpo counts the reward.',
  ],
  source: ['arXiv 2402.14740', 'Trinity-RFT'],
  reads: ['token_level_rewards', 'group_ids', 'action_mask'],
  perRow: true,
  readsMasked: true,
  options: {},
  metrics: {},
  numerics: {
    range: 'finite rewards',
    outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
  },
}) {
  static {
    ADVANTAGE_FN.register('rloo', RLOOAdvantageFn);
  }
}
