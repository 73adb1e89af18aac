// The class of supervised fine-tuning with importance sampling.
import type { TrinityArgs } from '../../core/options.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn } from './policy-loss-fn.js';

/** Options of {@link SFTISLossFn}. */
export interface SFTISLossOptions extends AggregatedLossOptions {}

/** Metrics of {@link SFTISLossFn}. */
export type SFTISMetrics = Record<'sft_is_loss', number>;

/**
 * Supervised fine-tuning with importance sampling: ℓ = −logprob·p, p = exp(logprob) held constant.
 *
 * Reads action_mask. Metric: sft_is_loss.
 *
 * Source: Trinity-RFT's SFTISLossFn.
 */
export class SFTISLossFn extends PolicyLossFn<SFTISMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: SFTISLossOptions = {}) {
    const { reader, backend } = openOptions('SFTISLossFn', options);
    const aggregation = reader.lossAggMode('token-mean');
    reader.end();
    super(backend, { policyLoss: { name: 'sft_is', options: {}, aggregation }, keys: ['action_mask'] });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { loss_agg_mode: 'token-mean' };
  }
}
