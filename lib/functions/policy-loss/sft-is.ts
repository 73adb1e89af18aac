// Supervised fine-tuning with an importance weight: each token is weighted by its own probability.
import type { MetricsOf } from '../../core/declaration.js';
import { aggregationOption } from '../../core/options.js';
import { POLICY_LOSS_FN, policyLossClass } from './policy-loss-fn.js';

/**
 * Supervised fine-tuning in which each token is weighted by its own probability. No gradient flows through the weight.
 */
export class SFTISLossFn extends policyLossClass({
  name: 'sft_is',
  summary: 'ℓ = −p·logprob, with the probability p held constant',
  source: ['Trinity-RFT'],
  reads: ['action_mask'],
  options: { lossAggMode: aggregationOption('token-mean') },
  stopsGradient: true,
  metrics: { sft_is_loss: { unit: 'nats' } },
  numerics: {
    range: 'logprob up to 88.7 (a log-probability is at most 0)',
    outside: 'the probability overflows to Infinity; below −87.3 it is 0',
  },
}) {
  static {
    POLICY_LOSS_FN.register('sft_is', SFTISLossFn);
  }
}

/** Options of {@link SFTISLossFn}. */
export type SFTISLossOptions = NonNullable<ConstructorParameters<typeof SFTISLossFn>[0]>;
/** Metrics of {@link SFTISLossFn}. */
export type SFTISMetrics = MetricsOf<(typeof SFTISLossFn)['declaration']['metrics']>;
