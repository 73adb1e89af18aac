// The class of supervised fine-tuning weighted by φ.
import type { TrinityArgs } from '../../core/options.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn } from './policy-loss-fn.js';

/** Options of {@link SFTPhiLossFn}. */
export interface SFTPhiLossOptions extends AggregatedLossOptions {
  /** Log-probabilities above ln of this count as that; from 0 to 1, 1 (no cut) by default. */
  cutoffProb?: number | null | undefined;
}

/** Metrics of {@link SFTPhiLossFn}. */
export type SFTPhiMetrics = Record<'sft_phi_loss', number>;

/**
 * Supervised fine-tuning weighted by φ = p(1 − p), held constant: tokens that are certain already, or hopeless,
 * count little. ℓ = −min(logprob, ln cutoffProb)·φ.
 *
 * Reads action_mask. Metric: sft_phi_loss.
 *
 * Source: CHORD, arXiv 2508.11408; Trinity-RFT's SFTPhiLossFn.
 */
export class SFTPhiLossFn extends PolicyLossFn<SFTPhiMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION`: cutoffProb outside [0, 1]. */
  constructor(options: SFTPhiLossOptions = {}) {
    const { reader, backend } = openOptions('SFTPhiLossFn', options);
    const native = {
      cutoff_prob: reader.number('cutoffProb', 1, { holds: (x) => x >= 0 && x <= 1, says: 'from 0 to 1' }),
    };
    const aggregation = reader.lossAggMode('token-mean');
    reader.end();
    super(backend, { policyLoss: { name: 'sft_phi', options: native, aggregation }, keys: ['action_mask'] });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { loss_agg_mode: 'token-mean', cutoff_prob: 1.0 };
  }
}
