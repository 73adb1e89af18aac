// verl's REINFORCE++ with the group's mean reward as the baseline.
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { FINITE_REWARDS, OF_ROW_REWARDS, ROW_REWARD, WHITENED } from './rewards.js';

/** REINFORCE++ with a baseline: a row's reward minus the mean reward of its group, whitened over the batch. */
export class VerlREINFORCEPlusPlusBaselineAdvantageFn extends advantageClass({
  name: 'verl/reinforce_plus_plus_baseline',
  ...OF_ROW_REWARDS,
  summary: 'R − mean of the group, whitened',
  details: [...ROW_REWARD, 'A group of one row has mean 0.', WHITENED],
  source: ['arXiv 2501.03262', 'verl'],
  whitens: true,
  options: {},
  numerics: FINITE_REWARDS,
}) {
  static {
    ADVANTAGE_FN.register('verl/reinforce_plus_plus_baseline', VerlREINFORCEPlusPlusBaselineAdvantageFn);
  }
}
