// verl's GDPO: several rewards, each normalised within its group.

import { LossError } from '../../../core/errors.js';
import { nativeOptions } from '../../../core/options.js';
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { FINITE_REWARDS, NORMALISED, OF_ROW_REWARDS, WHITENED } from './rewards.js';

/** GDPO: the weighted sum of the GRPO advantages of several rewards, whitened over the batch. */
export class VerlGDPOAdvantageFn extends advantageClass(
  {
    name: 'verl/gdpo',
    ...OF_ROW_REWARDS,
    summary: 'Σ w·(R − mean) / (std + ε) over several rewards, whitened',
    details: [
      'Without gdpo_reward_keys, the only reward is the sum of the rewards of all tokens of the row.',
      'Batches on a device do not have the named rewards; compute a batch from host memory instead.',
      'A group of one row counts as mean 0 and standard deviation 1.',
      WHITENED,
    ],
    source: ['arXiv 2601.05242', 'verl'],
    whitens: true,
    options: {
      ...NORMALISED,
      gdpoRewardKeys: {
        type: 'list',
        of: 'text',
        trinity: null,
        typical: [null],
        help: "the batch's keys with a reward per row, read instead of token_level_rewards",
      },
      gdpoRewardWeights: {
        type: 'list',
        of: 'number',
        trinity: null,
        typical: [null],
        help: 'the weight of each of these rewards; by default 1',
      },
    },
    numerics: FINITE_REWARDS,
  },
  (options) => {
    const { gdpoRewardKeys: keys, gdpoRewardWeights: weights = keys?.map(() => 1) } = options;
    if (weights?.length !== keys?.length)
      throw new LossError('ERR_INVALID_OPTION', {
        at: 'VerlGDPOAdvantageFn',
        option: 'gdpoRewardWeights',
        expected: (spell) =>
          `one number for each of ${spell('gdpoRewardKeys')} (${keys?.length ?? 'absent'})`,
        received: `${weights?.length} numbers`,
      });
    return {
      options: nativeOptions(NORMALISED, options),
      ...(keys && weights && { inputs: ['group_ids'], named: { keys: [...keys], weights: [...weights] } }),
    };
  },
) {
  static {
    ADVANTAGE_FN.register('verl/gdpo', VerlGDPOAdvantageFn);
  }
}

/** The options of {@link VerlGDPOAdvantageFn}. */
export type VerlGDPOAdvantageOptions = NonNullable<ConstructorParameters<typeof VerlGDPOAdvantageFn>[0]>;
