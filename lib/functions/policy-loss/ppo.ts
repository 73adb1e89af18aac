// PPO's class.
import type { LossAggMode, TrinityArgs } from '../../core/options.js';
import { type ClipRangeOptions, readClipRange } from './clip-range.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn, RATIO_KEYS } from './policy-loss-fn.js';

/** Options of {@link PPOPolicyLossFn}. A clip range must be given. */
export interface PPOPolicyLossOptions extends AggregatedLossOptions, ClipRangeOptions {
  /** The dual clip: a token of negative advantage loses no more than −A·clipRatioC. Above 1; 3 by default. */
  clipRatioC?: number | null | undefined;
  /** Drop tokens of negative advantage in rows whose mean −log ratio exceeds deltaSequenceMasking. */
  enableSequenceMasking?: boolean | null | undefined;
  /** In nats per token; 0.1 by default. */
  deltaSequenceMasking?: number | null | undefined;
  /** Take the current policy for the old one, and do not read old_logprob: ratio 1, with the policy gradient. */
  fallbackToPolicyGradient?: boolean | null | undefined;
}

/** Metrics of {@link PPOPolicyLossFn}. */
export type PPOMetrics = Record<'pg_clipfrac' | 'pg_clipfrac_lower' | 'ppo_kl' | 'pg_loss', number> &
  /** With sequence masking only. */
  Partial<Record<'seq_mask/masked_tokens' | 'seq_mask/mean_sequence_kl', number>>;

/**
 * PPO's clipped surrogate: ℓ = max(−A·r, −A·clip(r, 1 − low, 1 + high)), r = exp(logprob − old_logprob), with a
 * dual clip where A < 0.
 *
 * Reads old_logprob, action_mask, advantages. Metrics: pg_clipfrac, pg_clipfrac_lower (fractions of tokens),
 * ppo_kl (nats per token), pg_loss. `seq_mask/masked_tokens` counts, as the source does, every column of a masked
 * row whose advantage is negative, padding included.
 *
 * Source: arXiv 1707.06347; dual clip: arXiv 1912.09729; Trinity-RFT's PPOPolicyLossFn.
 */
export class PPOPolicyLossFn extends PolicyLossFn<PPOMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION`: no clip range, clipRatioC ≤ 1, an unknown option. */
  constructor(options: PPOPolicyLossOptions = {}) {
    const { reader, backend } = openOptions('PPOPolicyLossFn', options);
    const native = {
      ...readClipRange('PPOPolicyLossFn', reader),
      clip_ratio_c: reader.number('clipRatioC', 3, { holds: (x) => x > 1, says: 'above 1' }),
      delta_sequence_masking: reader.number('deltaSequenceMasking', 0.1),
    };
    const onPolicy = reader.boolean('fallbackToPolicyGradient', false);
    const masking = reader.boolean('enableSequenceMasking', false);
    const aggregation: LossAggMode = reader.lossAggMode('token-mean');
    reader.end();
    super(backend, {
      policyLoss: {
        name: `ppo${masking ? '_sequence_masking' : ''}${onPolicy ? '_on_policy' : ''}`,
        options: native,
        aggregation,
      },
      keys: RATIO_KEYS,
      ...(onPolicy && { unread: ['old_logprob'] as const }),
      looksUnderMask: masking,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return {
      clip_range: 0.2,
      clip_ratio_c: 3.0,
      loss_agg_mode: 'token-mean',
      enable_sequence_masking: false,
      delta_sequence_masking: 0.1,
      fallback_to_policy_gradient: false,
    };
  }
}
