// TOPR's class.
import type { TrinityArgs } from '../../core/options.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn, RATIO_KEYS } from './policy-loss-fn.js';

/** Options of {@link TOPRPolicyLossFn}. */
export interface TOPRPolicyLossOptions extends AggregatedLossOptions {
  /** Tokens with an advantage up to this are weighted by the truncated ratio; 0 by default. */
  advantageThreshold?: number | null | undefined;
}

/** Metrics of {@link TOPRPolicyLossFn}. */
export type TOPRMetrics = Record<'topr_loss' | 'avg_alpha' | 'avg_ratio', number>;

/**
 * TOPR: ℓ = −α·A·logprob, α = 1 above the threshold and clip(r, 0, 1), held constant, up to it.
 *
 * Reads old_logprob, action_mask, advantages. Metrics: topr_loss, avg_alpha, avg_ratio (token means).
 *
 * Source: arXiv 2503.14286; Trinity-RFT's TOPRPolicyLossFn.
 */
export class TOPRPolicyLossFn extends PolicyLossFn<TOPRMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: TOPRPolicyLossOptions = {}) {
    const { reader, backend } = openOptions('TOPRPolicyLossFn', options);
    const native = { advantage_threshold: reader.number('advantageThreshold', 0) };
    const aggregation = reader.lossAggMode('token-mean');
    reader.end();
    super(backend, { policyLoss: { name: 'topr', options: native, aggregation }, keys: RATIO_KEYS });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { advantage_threshold: 0.0, loss_agg_mode: 'token-mean' };
  }
}
