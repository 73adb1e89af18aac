// Supervised fine-tuning: the negative log-likelihood of the rows.
import type { MetricsOf } from '../../core/declaration.js';
import { aggregationOption } from '../../core/options.js';
import { POLICY_LOSS_FN, policyLossClass } from './policy-loss-fn.js';

/** Supervised fine-tuning: the loss of a token is −logprob, its negative log-likelihood. */
export class SFTLossFn extends policyLossClass({
  name: 'sft',
  summary: 'ℓ = −logprob',
  source: ['Trinity-RFT'],
  reads: ['action_mask'],
  options: { lossAggMode: aggregationOption('token-mean') },
  metrics: { sft_loss: { unit: 'nats' } },
  numerics: { range: 'any finite logprob', outside: 'NaN and Infinity pass through' },
}) {
  static {
    POLICY_LOSS_FN.register('sft', SFTLossFn);
  }
}

/** Options of {@link SFTLossFn}. */
export type SFTLossOptions = NonNullable<ConstructorParameters<typeof SFTLossFn>[0]>;
/** Metrics of {@link SFTLossFn}. */
export type SFTMetrics = MetricsOf<(typeof SFTLossFn)['declaration']['metrics']>;
