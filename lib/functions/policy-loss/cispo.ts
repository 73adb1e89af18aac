// CISPO's class.
import type { TrinityArgs } from '../../core/options.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn, RATIO_KEYS } from './policy-loss-fn.js';

/** Options of {@link CISPOPolicyLossFn}. */
export interface CISPOPolicyLossOptions extends AggregatedLossOptions {
  /** The weight is clipped to at least 1 − this; 1 by default, which is no lower bound, as in the paper. */
  clipRangeLow?: number | null | undefined;
  /** The weight is clipped to at most 1 + this; 0.28 by default. */
  clipRangeHigh?: number | null | undefined;
  /** Drop tokens whose ratio has left the mask's range in their advantage's direction. */
  enableMaskClip?: boolean | null | undefined;
  /** Tokens of negative advantage are dropped below 1 − this; 1 by default. */
  maskClipRangeLow?: number | null | undefined;
  /** Tokens of positive advantage are dropped above 1 + this; 0.28 by default. */
  maskClipRangeHigh?: number | null | undefined;
}

/** Metrics of {@link CISPOPolicyLossFn}. */
export type CISPOMetrics = Record<'cispo_loss' | 'ppo_kl' | 'unmasked_frac', number>;

/**
 * CISPO: ℓ = −A·clip(r)·logprob with the clipped ratio held constant, so that clipping bounds a token's weight and
 * never takes its gradient.
 *
 * Reads old_logprob, action_mask, advantages. Metrics: cispo_loss, ppo_kl (nats per token), unmasked_frac.
 *
 * Source: arXiv 2506.13585; Trinity-RFT's CISPOPolicyLossFn.
 */
export class CISPOPolicyLossFn extends PolicyLossFn<CISPOMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: CISPOPolicyLossOptions = {}) {
    const { reader, backend } = openOptions('CISPOPolicyLossFn', options);
    const native = {
      clip_range_low: reader.number('clipRangeLow', 1),
      clip_range_high: reader.number('clipRangeHigh', 0.28),
      enable_mask_clip: reader.boolean('enableMaskClip', false),
      mask_clip_range_low: reader.number('maskClipRangeLow', 1),
      mask_clip_range_high: reader.number('maskClipRangeHigh', 0.28),
    };
    const aggregation = reader.lossAggMode('token-mean');
    reader.end();
    super(backend, { policyLoss: { name: 'cispo', options: native, aggregation }, keys: RATIO_KEYS });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return {
      clip_range_low: 1.0,
      clip_range_high: 0.28,
      enable_mask_clip: false,
      mask_clip_range_low: 1.0,
      mask_clip_range_high: 0.28,
      loss_agg_mode: 'token-mean',
    };
  }
}
