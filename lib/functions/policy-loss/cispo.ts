// CISPO: clips the importance weight of a token. Unlike PPO's clip, this does not stop the token's gradient.
import type { MetricsOf } from '../../core/declaration.js';
import { aggregationOption } from '../../core/options.js';
import { POLICY_LOSS_FN, policyLossClass, RATIO_KEYS } from './policy-loss-fn.js';

/**
 * CISPO: the loss of a token is −advantage·weight·logprob, where the weight is the clipped probability ratio between
 * the current policy and the old one. No gradient flows through the weight.
 */
export class CISPOPolicyLossFn extends policyLossClass({
  name: 'cispo',
  summary: 'ℓ = −A·clip(r)·logprob, with the ratio held constant',
  details: ["Clipping bounds a token's weight but keeps its gradient."],
  source: ['arXiv 2506.13585', 'Trinity-RFT'],
  reads: RATIO_KEYS,
  options: {
    clipRangeLow: {
      type: 'number',
      default: 1,
      typical: [0.1, 1],
      help: 'the weight is clipped to at least 1 − this; 1 means no lower bound, as in the paper',
    },
    clipRangeHigh: {
      type: 'number',
      default: 0.28,
      typical: [0.1, 0.6],
      help: 'the weight is clipped to at most 1 + this',
    },
    enableMaskClip: {
      type: 'boolean',
      default: false,
      help: "drop tokens whose ratio has left the mask's range in the direction of their advantage",
    },
    maskClipRangeLow: {
      type: 'number',
      default: 1,
      typical: [0.1, 1],
      help: 'tokens with A < 0 are dropped below a ratio of 1 − this',
    },
    maskClipRangeHigh: {
      type: 'number',
      default: 0.28,
      typical: [0.1, 0.6],
      help: 'tokens with A > 0 are dropped above a ratio of 1 + this',
    },
    lossAggMode: aggregationOption('token-mean'),
  },
  stopsGradient: true,
  metrics: {
    cispo_loss: { unit: 'loss' },
    ppo_kl: { unit: 'nats per token' },
    unmasked_frac: { unit: 'fraction of tokens' },
  },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'the ratio overflows and is clipped: loss and gradient are finite',
  },
}) {
  static {
    POLICY_LOSS_FN.register('cispo', CISPOPolicyLossFn);
  }
}

/** Options of {@link CISPOPolicyLossFn}. */
export type CISPOPolicyLossOptions = NonNullable<ConstructorParameters<typeof CISPOPolicyLossFn>[0]>;
/** Metrics of {@link CISPOPolicyLossFn}. */
export type CISPOMetrics = MetricsOf<(typeof CISPOPolicyLossFn)['declaration']['metrics']>;
