// ReMax: the baseline of a row is the reward of the greedy answer to the same prompt.
import { ADVANTAGE_FN, advantageClass } from './advantage-fn.js';

/**
 * ReMax. A token's advantage is the sum of the rewards from this token to the end of the row, minus the reward of the
 * greedy answer to the same prompt.
 */
export class REMAXAdvantageFn extends advantageClass({
  name: 'remax',
  summary: "reward to go − the greedy answer's reward",
  details: ["Only a row's unmasked tokens take part.", 'Returns are the rewards to go.'],
  source: ['arXiv 2310.10505', 'Trinity-RFT'],
  reads: ['token_level_rewards', 'reward_baselines', 'action_mask'],
  perRow: false,
  returns: true,
  options: {},
  metrics: {},
  numerics: {
    range: 'finite rewards and baselines',
    outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
  },
}) {
  static {
    ADVANTAGE_FN.register('remax', REMAXAdvantageFn);
  }
}
