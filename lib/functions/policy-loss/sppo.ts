// sPPO: a policy loss on the logarithm of the ratio, for tokens whose ratio is within a range.
import type { MetricsOf } from '../../core/declaration.js';
import { aggregationOption } from '../../core/options.js';
import { POLICY_LOSS_FN, policyLossClass, RATIO_KEYS } from './policy-loss-fn.js';

/**
 * sPPO: the loss of a token is −advantage·ln(ratio) if the ratio is within a range, and 0 otherwise. The ratio is the
 * token's probability under the current policy divided by that under the old one.
 */
export class sPPOPolicyLossFn extends policyLossClass({
  name: 'sppo',
  summary: 'ℓ = −A·ln r while r is in range, else 0',
  source: ['Trinity-RFT'],
  reads: RATIO_KEYS,
  options: {
    epsilon: {
      type: 'number',
      default: 0.3,
      atLeast: 0,
      typical: [0.05, 0.6],
      help: 'a token counts while its ratio is within [1/(1 + epsilon), 1 + epsilon]',
    },
    lossAggMode: aggregationOption('token-mean'),
  },
  metrics: { pg_clipfrac: { unit: 'fraction of tokens' }, pg_loss: { unit: 'loss' } },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'a token whose ratio is out of range has loss and gradient 0',
  },
}) {
  static {
    POLICY_LOSS_FN.register('sppo', sPPOPolicyLossFn);
  }
}

/** Options of {@link sPPOPolicyLossFn}. */
export type SPPOPolicyLossOptions = NonNullable<ConstructorParameters<typeof sPPOPolicyLossFn>[0]>;
/** Metrics of {@link sPPOPolicyLossFn}. */
export type SPPOMetrics = MetricsOf<(typeof sPPOPolicyLossFn)['declaration']['metrics']>;
