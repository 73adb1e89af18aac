// GRPO: advantages from rewards that are normalised within each group of rows that answer the same prompt.
import { ADVANTAGE_FN, advantageClass, groupMetrics } from './advantage-fn.js';
import { NORMALISATION, nativeNormalisation } from './normalisation.js';
import { SEED } from './options.js';

/**
 * GRPO's advantage of a row: its reward minus the mean reward of its group, divided by the rewards' standard deviation.
 */
export class GRPOGroupedAdvantage extends advantageClass(
  {
    name: 'grpo',
    summary: '(R − mean) / (std + ε) within the group',
    details: [
      'A group of one row counts as mean 0 and standard deviation 1, so the advantage is R / (1 + ε).',
      "With the batch's standard deviation, it is R / (std + ε).",
      'The reward of a row without unmasked tokens counts in its group; in rloo, which reads rewards per token, it does not.',
    ],
    source: ['arXiv 2402.03300', 'arXiv 2508.08221', 'arXiv 2506.02355', 'Trinity-RFT'],
    reads: ['rewards', 'group_ids', 'action_mask'],
    perRow: true,
    options: {
      ...NORMALISATION,
      duplicateExperiences: {
        type: 'boolean',
        default: false,
        random: true,
        help: 'for each group that the threshold drops, count one randomly drawn kept group once more',
      },
      rankPenalty: {
        type: 'number',
        trinity: null,
        atLeast: 0,
        typical: [0, 0.9],
        help: "for the group's mean and standard deviation, reduce each reward by up to this fraction, the more the likelier the answer is within its group; reads old_logprob",
      },
      seed: SEED,
    },
    metrics: { ...groupMetrics('reward', 'reward_mean', 'reward_std'), filtered_count: { unit: 'rows' } },
    numerics: {
      range: 'finite rewards',
      outside: 'not finite: ERR_INVALID_INPUT; a group of equal rewards has advantages 0',
    },
  },
  (options) => {
    const { stdThreshold, duplicateExperiences, rankPenalty = 0, seed } = options;
    return {
      options: {
        ...nativeNormalisation(options),
        duplicate_experiences: duplicateExperiences,
        rank_penalty: rankPenalty,
      },
      ...(rankPenalty > 0 && { inputs: ['rewards', 'group_ids', 'old_logprob'] }),
      drops: stdThreshold !== undefined || duplicateExperiences,
      duplicates: duplicateExperiences,
      seed,
    };
  },
) {
  static {
    ADVANTAGE_FN.register('grpo', GRPOGroupedAdvantage);
  }
}

/** The options of {@link GRPOGroupedAdvantage}. */
export type GRPOAdvantageOptions = NonNullable<ConstructorParameters<typeof GRPOGroupedAdvantage>[0]>;
