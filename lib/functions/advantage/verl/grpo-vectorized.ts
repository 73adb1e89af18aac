// verl's GRPO, and Dr. GRPO.
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { FINITE_REWARDS, NORMALISED, OF_ROW_REWARDS, ROW_REWARD } from './rewards.js';

/** GRPO as in verl: a row's reward minus the mean of its group, divided by the standard deviation or (Dr. GRPO) not. */
export class VerlGRPOVectorizedAdvantageFn extends advantageClass({
  name: 'verl/grpo_vectorized',
  ...OF_ROW_REWARDS,
  summary: '(R − mean) / (std + ε) within the group',
  details: [
    ...ROW_REWARD,
    'A group of one row counts as mean 0 and standard deviation 1.',
    'Without the division by the standard deviation, this is Dr. GRPO.',
  ],
  source: ['arXiv 2402.03300', 'arXiv 2503.20783', 'verl'],
  options: NORMALISED,
  numerics: FINITE_REWARDS,
}) {
  static {
    ADVANTAGE_FN.register('verl/grpo_vectorized', VerlGRPOVectorizedAdvantageFn);
  }
}

/** The options of {@link VerlGRPOVectorizedAdvantageFn}. */
export type VerlGRPOVectorizedAdvantageOptions = NonNullable<
  ConstructorParameters<typeof VerlGRPOVectorizedAdvantageFn>[0]
>;
