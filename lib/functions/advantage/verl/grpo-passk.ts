// verl's Pass@k advantages, which only the best row of a group gets.
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { FINITE_REWARDS, NORMALISED, OF_ROW_REWARDS, ROW_REWARD } from './rewards.js';

/** Pass@k advantages: the best row of a group gets its distance from the second best row; the others get 0. */
export class VerlGRPOPassKAdvantageFn extends advantageClass({
  name: 'verl/grpo_passk',
  ...OF_ROW_REWARDS,
  summary: '(R − second largest R) / (std + ε) for the best row of the group, 0 for others',
  details: [
    ...ROW_REWARD,
    'If several rows of a group are best, all get 0. verl refuses a group of one row; here it gets 0.',
  ],
  source: ['arXiv 2503.19595', 'verl'],
  options: NORMALISED,
  numerics: FINITE_REWARDS,
}) {
  static {
    ADVANTAGE_FN.register('verl/grpo_passk', VerlGRPOPassKAdvantageFn);
  }
}

/** The options of {@link VerlGRPOPassKAdvantageFn}. */
export type VerlGRPOPassKAdvantageOptions = NonNullable<
  ConstructorParameters<typeof VerlGRPOPassKAdvantageFn>[0]
>;
