// The policy gradient with importance weights, without PPO's clip.
import type { MetricsOf } from '../../core/declaration.js';
import { aggregationOption } from '../../core/options.js';
import { POLICY_LOSS_FN, policyLossClass, RATIO_KEYS } from './policy-loss-fn.js';

/**
 * The policy gradient with importance weights: the loss of a token is −advantage·ratio. The ratio of the current
 * policy's probability to the old policy's corrects for the old policy having sampled the token.
 */
export class ImportanceSamplingLossFn extends policyLossClass({
  name: 'importance_sampling',
  summary: 'ℓ = −A·r',
  details: ['logprob − old_logprob is clipped to ±20 nats before it is exponentiated.'],
  source: ['Trinity-RFT', 'Tinker'],
  reads: RATIO_KEYS,
  options: { lossAggMode: aggregationOption('token-mean') },
  metrics: {
    pg_loss: { unit: 'loss' },
    'ratio/mean': { unit: 'ratio, mean over tokens' },
    approx_kl: { unit: 'nats per token' },
  },
  numerics: {
    range: 'logprob − old_logprob from −20 to 20',
    outside: 'the difference is clipped to ±20: the loss saturates and the gradient is 0',
  },
}) {
  static {
    POLICY_LOSS_FN.register('importance_sampling', ImportanceSamplingLossFn);
  }
}

/** Options of {@link ImportanceSamplingLossFn}. */
export type ImportanceSamplingLossOptions = NonNullable<
  ConstructorParameters<typeof ImportanceSamplingLossFn>[0]
>;
/** Metrics of {@link ImportanceSamplingLossFn}. */
export type ImportanceSamplingMetrics = MetricsOf<
  (typeof ImportanceSamplingLossFn)['declaration']['metrics']
>;
