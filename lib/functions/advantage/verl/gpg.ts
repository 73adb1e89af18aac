// verl's GPG: advantages are larger the fewer rows of the batch have a reward.
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { FINITE_REWARDS, OF_ROW_REWARDS, ROW_REWARD } from './rewards.js';

/** GPG: a row's reward minus the mean of its group, divided by the share of the batch's rows that have a reward. */
export class VerlGPGAdvantageFn extends advantageClass({
  name: 'verl/gpg',
  ...OF_ROW_REWARDS,
  summary: 'α·(R − mean of the group) / f_norm with α = rows / rows of R ≠ 0',
  details: [
    ...ROW_REWARD,
    'A group of one row has mean 0. If no row has R ≠ 0, α is the number of rows.',
    "The paper's α counts the rows of groups whose rewards differ.",
  ],
  source: ['arXiv 2504.02546', 'verl'],
  options: {
    fNorm: {
      type: 'number',
      default: 1,
      above: 0,
      typical: [0.5, 4],
      help: 'the number by which advantages are divided',
    },
  },
  numerics: FINITE_REWARDS,
}) {
  static {
    ADVANTAGE_FN.register('verl/gpg', VerlGPGAdvantageFn);
  }
}

/** The options of {@link VerlGPGAdvantageFn}. */
export type VerlGPGAdvantageOptions = NonNullable<ConstructorParameters<typeof VerlGPGAdvantageFn>[0]>;
