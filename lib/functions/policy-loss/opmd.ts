// OPMD (online policy mirror descent): the policy gradient, divided by 1 + τ.
import type { MetricsOf } from '../../core/declaration.js';
import { aggregationOption } from '../../core/options.js';
import { POLICY_LOSS_FN, policyLossClass } from './policy-loss-fn.js';

/** OPMD: the loss of a token is −advantage·logprob / (1 + τ), where τ is the option `tau`. */
export class OPMDPolicyLossFn extends policyLossClass({
  name: 'opmd',
  summary: 'ℓ = −A·logprob / (1 + τ)',
  source: ['arXiv 2505.17826', 'Trinity-RFT'],
  reads: ['action_mask', 'advantages'],
  options: {
    tau: { type: 'number', default: 1, atLeast: 0, typical: [0, 3], help: 'the loss is divided by 1 + this' },
    lossAggMode: aggregationOption('token-mean'),
  },
  metrics: { opmd_loss: { unit: 'loss' } },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'products beyond 3.4e38 overflow to ±Infinity',
  },
}) {
  static {
    POLICY_LOSS_FN.register('opmd', OPMDPolicyLossFn);
  }
}

/** Options of {@link OPMDPolicyLossFn}. */
export type OPMDPolicyLossOptions = NonNullable<ConstructorParameters<typeof OPMDPolicyLossFn>[0]>;
/** Metrics of {@link OPMDPolicyLossFn}. */
export type OPMDMetrics = MetricsOf<(typeof OPMDPolicyLossFn)['declaration']['metrics']>;
