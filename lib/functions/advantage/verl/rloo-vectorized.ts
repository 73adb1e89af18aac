// verl's vectorised RLOO, in which a group's only row gets 0.
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { FINITE_REWARDS, OF_ROW_REWARDS, ROW_REWARD } from './rewards.js';

/** RLOO as in verl's vectorised form: a row's reward minus the mean reward of the other rows in its group. */
export class VerlRLOOVectorizedAdvantageFn extends advantageClass({
  name: 'verl/rloo_vectorized',
  ...OF_ROW_REWARDS,
  summary: "R − mean of the group's other rows; a group's only row gets 0",
  details: ROW_REWARD,
  source: ['arXiv 2402.14740', 'verl'],
  options: {},
  numerics: FINITE_REWARDS,
}) {
  static {
    ADVANTAGE_FN.register('verl/rloo_vectorized', VerlRLOOVectorizedAdvantageFn);
  }
}
