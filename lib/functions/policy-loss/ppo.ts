// PPO: the policy loss with a clipped ratio (the clipped surrogate).
import type { MetricsOf } from '../../core/declaration.js';
import { aggregationOption } from '../../core/options.js';
import { CLIP_RANGE } from './clip-range.js';
import { POLICY_LOSS_FN, policyLossClass, RATIO_KEYS } from './policy-loss-fn.js';

/** PPO: the clipped surrogate loss. Where the advantage is negative, a second clip (dual clip) also limits the loss. */
export class PPOPolicyLossFn extends policyLossClass(
  {
    name: 'ppo',
    summary: 'ℓ = max(−A·r, −A·clip(r)), with a dual clip where A < 0',
    details: [
      'As in the source, seq_mask/masked_tokens counts every position of a masked row with a negative advantage, including padding.',
    ],
    source: ['arXiv 1707.06347', 'arXiv 1912.09729', 'Trinity-RFT'],
    reads: RATIO_KEYS,
    options: {
      ...CLIP_RANGE,
      clipRange: { ...CLIP_RANGE.clipRange, trinity: 0.2 },
      clipRatioC: {
        type: 'number',
        default: 3,
        above: 1,
        typical: [1.1, 5],
        help: 'dual clip: the loss of a token with A < 0 is at most −A times this',
      },
      lossAggMode: aggregationOption('token-mean'),
      enableSequenceMasking: {
        type: 'boolean',
        default: false,
        help: 'drop tokens with A < 0 from rows whose mean −ln r exceeds a bound',
      },
      deltaSequenceMasking: {
        type: 'number',
        default: 0.1,
        typical: [-0.1, 0.2],
        help: 'bound on the mean −ln r of a row, in nats per token',
      },
      fallbackToPolicyGradient: {
        type: 'boolean',
        default: false,
        help: 'use the current policy as the old one: r = 1, and old_logprob is not read',
      },
    },
    metrics: {
      pg_clipfrac: { unit: 'fraction of tokens' },
      pg_clipfrac_lower: { unit: 'fraction of tokens' },
      ppo_kl: { unit: 'nats per token' },
      pg_loss: { unit: 'loss' },
      'seq_mask/masked_tokens': { unit: 'masked tokens per token', when: 'with sequence masking' },
      'seq_mask/mean_sequence_kl': { unit: 'nats per token', when: 'with sequence masking' },
    },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the difference is clipped to ±20: the loss saturates and the gradient is 0',
      variants: [{ fallback_to_policy_gradient: true }],
    },
  },
  ({ enableSequenceMasking, fallbackToPolicyGradient }) => ({
    name: `ppo${enableSequenceMasking ? '_sequence_masking' : ''}${fallbackToPolicyGradient ? '_on_policy' : ''}`,
    ...(fallbackToPolicyGradient && { unread: ['old_logprob'] }),
    readsMaskedAdvantages: enableSequenceMasking,
  }),
) {
  static {
    POLICY_LOSS_FN.register('ppo', PPOPolicyLossFn);
  }
}

/** Options of {@link PPOPolicyLossFn}. It requires clipRange, or both clipRangeLow and clipRangeHigh. */
export type PPOPolicyLossOptions = NonNullable<ConstructorParameters<typeof PPOPolicyLossFn>[0]>;
/** Metrics of {@link PPOPolicyLossFn}. */
export type PPOMetrics = MetricsOf<(typeof PPOPolicyLossFn)['declaration']['metrics']>;
