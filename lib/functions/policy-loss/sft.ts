// Supervised fine-tuning's class.
import type { TrinityArgs } from '../../core/options.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn } from './policy-loss-fn.js';

/** Options of {@link SFTLossFn}. */
export interface SFTLossOptions extends AggregatedLossOptions {}

/** Metrics of {@link SFTLossFn}. */
export type SFTMetrics = Record<'sft_loss', number>;

/**
 * Supervised fine-tuning: ℓ = −logprob, in nats.
 *
 * Reads action_mask. Metric: sft_loss.
 *
 * Source: Trinity-RFT's SFTLossFn.
 */
export class SFTLossFn extends PolicyLossFn<SFTMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: SFTLossOptions = {}) {
    const { reader, backend } = openOptions('SFTLossFn', options);
    const aggregation = reader.lossAggMode('token-mean');
    reader.end();
    super(backend, { policyLoss: { name: 'sft', options: {}, aggregation }, keys: ['action_mask'] });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { loss_agg_mode: 'token-mean' };
  }
}
