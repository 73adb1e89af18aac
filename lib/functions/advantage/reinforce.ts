// REINFORCE: a row's advantage is its reward, without a baseline.
import { ADVANTAGE_FN, advantageClass, groupMetrics } from './advantage-fn.js';

/** REINFORCE: gives every unmasked token of a row the row's reward as its advantage. */
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
