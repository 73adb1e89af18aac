// GRPO's class.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';
import { NOT_NEGATIVE, type NormalisationOptions, readNormalisation } from './normalisation.js';

/** Options of {@link GRPOGroupedAdvantage}. */
export interface GRPOAdvantageOptions extends AdvantageOptions, NormalisationOptions {
  /**
   * With stdThreshold: let kept groups, drawn at random, count once more in the place of each group that was dropped;
   * false by default.
   */
  duplicateExperiences?: boolean | null | undefined;
  /**
   * Take up to this share of a group's rewards, more the likelier the answer was under the old policy (which then is
   * read); none by default.
   */
  rankPenalty?: number | null | undefined;
  /** What the random draws depend on; 0 by default. */
  seed?: number | null | undefined;
}

/**
 * GRPO: (R − mean) / (std + ε) within the group; of a group of one, R / (1 + ε).
 *
 * Reads rewards [B], group_ids [B], action_mask, with rankPenalty old_logprob [B, T]. Metrics:
 * group_advantages/reward_mean/…, group_advantages/reward_std/… (mean, max, min over groups), filtered_count (rows).
 *
 * Source: arXiv 2402.03300; batch deviation: arXiv 2508.08221; rank penalty: arXiv 2506.02355; Trinity-RFT's
 * GRPOGroupedAdvantage.
 */
export class GRPOGroupedAdvantage extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: GRPOAdvantageOptions = {}) {
    const reader = new OptionReader('GRPOGroupedAdvantage', options);
    const { options: shared, drops } = readNormalisation(reader);
    const duplicate = reader.boolean('duplicateExperiences', false);
    const penalty = reader.number('rankPenalty', 0, NOT_NEGATIVE);
    const seed = reader.count('seed', 0, 0);
    reader.end();
    super(reader.backend, {
      advantage: {
        name: 'grpo',
        options: { ...shared, duplicate_experiences: duplicate, rank_penalty: penalty },
      },
      inputs: ['rewards', 'group_ids', ...(penalty === 0 ? [] : (['old_logprob'] as const))],
      perRow: true,
      drops: drops || duplicate,
      duplicates: duplicate,
      seed,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return {
      epsilon: 1e-6,
      std_threshold: null,
      duplicate_experiences: false,
      rank_penalty: null,
      std_cal_level: 'group',
    };
  }
}
