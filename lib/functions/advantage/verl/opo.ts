// verl's OPO: the baseline of a group is its mean reward, weighted by the rows' tokens.
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { FINITE_REWARDS, OF_ROW_REWARDS, ROW_REWARD } from './rewards.js';

/** OPO: a row's reward minus the mean reward of its group, in which every unmasked token counts equally. */
export class VerlOPOAdvantageFn extends advantageClass({
  name: 'verl/opo',
  ...OF_ROW_REWARDS,
  summary: "R − mean of the group, weighted by the rows' tokens",
  details: [
    ...ROW_REWARD,
    'A group of one row has mean 0. verl gives NaN to a group without unmasked tokens; here it gets 0.',
  ],
  source: ['arXiv 2505.23585', 'verl'],
  options: {},
  numerics: FINITE_REWARDS,
}) {
  static {
    ADVANTAGE_FN.register('verl/opo', VerlOPOAdvantageFn);
  }
}
