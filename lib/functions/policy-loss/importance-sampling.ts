// The class of the plain importance-weighted policy gradient.
import type { TrinityArgs } from '../../core/options.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn, RATIO_KEYS } from './policy-loss-fn.js';

/** Options of {@link ImportanceSamplingLossFn}. */
export interface ImportanceSamplingLossOptions extends AggregatedLossOptions {}

/** Metrics of {@link ImportanceSamplingLossFn}. */
export type ImportanceSamplingMetrics = Record<'pg_loss' | 'ratio/mean' | 'approx_kl', number>;

/**
 * The importance-weighted policy gradient: ℓ = −A·exp(d), d = logprob − old_logprob clipped to ±20 nats.
 *
 * Reads old_logprob, action_mask, advantages. Metrics: pg_loss, ratio/mean, approx_kl (nats per token).
 *
 * Source: Trinity-RFT's ImportanceSamplingLossFn, after the Tinker library.
 */
export class ImportanceSamplingLossFn extends PolicyLossFn<ImportanceSamplingMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: ImportanceSamplingLossOptions = {}) {
    const { reader, backend } = openOptions('ImportanceSamplingLossFn', options);
    const aggregation = reader.lossAggMode('token-mean');
    reader.end();
    super(backend, {
      policyLoss: { name: 'importance_sampling', options: {}, aggregation },
      keys: RATIO_KEYS,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { loss_agg_mode: 'token-mean' };
  }
}
