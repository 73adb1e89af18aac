// TOPR: REINFORCE in which tokens with a low advantage are weighted by their truncated ratio.
import type { MetricsOf } from '../../core/declaration.js';
import { aggregationOption } from '../../core/options.js';
import { POLICY_LOSS_FN, policyLossClass, RATIO_KEYS } from './policy-loss-fn.js';

/**
 * TOPR: the loss of a token is −advantage·weight·logprob. If the advantage is at most advantageThreshold (0 by
 * default), the weight is the probability ratio between the current policy and the old one, truncated to [0, 1].
 * Otherwise the weight is 1.
 */
export class TOPRPolicyLossFn extends policyLossClass({
  name: 'topr',
  summary: 'ℓ = −α·A·logprob, with α = clip(r, 0, 1) where A ≤ 0 and 1 elsewhere',
  details: ['α is held constant.'],
  source: ['arXiv 2503.14286', 'Trinity-RFT'],
  reads: RATIO_KEYS,
  options: {
    advantageThreshold: {
      type: 'number',
      default: 0,
      typical: [-0.5, 0.5],
      help: 'tokens with an advantage up to this are weighted by the truncated ratio',
    },
    lossAggMode: aggregationOption('token-mean'),
  },
  stopsGradient: true,
  metrics: {
    topr_loss: { unit: 'loss' },
    avg_alpha: { unit: 'weight, mean over tokens' },
    avg_ratio: { unit: 'ratio, mean over tokens' },
  },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside:
      'the ratio overflows and is truncated to 1 where A is at most the threshold; the metric avg_ratio is Infinity',
  },
}) {
  static {
    POLICY_LOSS_FN.register('topr', TOPRPolicyLossFn);
  }
}

/** Options of {@link TOPRPolicyLossFn}. */
export type TOPRPolicyLossOptions = NonNullable<ConstructorParameters<typeof TOPRPolicyLossFn>[0]>;
/** Metrics of {@link TOPRPolicyLossFn}. */
export type TOPRMetrics = MetricsOf<(typeof TOPRPolicyLossFn)['declaration']['metrics']>;
