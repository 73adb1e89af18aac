// REINFORCE: the reward itself.
import { ADVANTAGE_FN, advantageClass, groupMetrics } from './advantage-fn.js';

/** The reward of the row. */
export class REINFORCEGroupAdvantage extends advantageClass({
  name: 'reinforce',
  summary: 'R',
  source: ['Trinity-RFT'],
  reads: ['rewards', 'group_ids', 'action_mask'],
  perRow: true,
  options: {},
  metrics: groupMetrics('reward', 'reward_mean'),
  numerics: { range: 'finite rewards', outside: 'not finite: ERR_INVALID_INPUT' },
}) {
  static {
    ADVANTAGE_FN.register('reinforce', REINFORCEGroupAdvantage);
  }
}
