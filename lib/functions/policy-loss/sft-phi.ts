// Supervised fine-tuning in which each token is weighted by φ = p(1 − p), where p is the token's probability.
import type { MetricsOf } from '../../core/declaration.js';
import { aggregationOption } from '../../core/options.js';
import { POLICY_LOSS_FN, policyLossClass } from './policy-loss-fn.js';

/**
 * Supervised fine-tuning in which each token is weighted by p(1 − p), where p is its probability. Tokens with a
 * probability near 0 or 1 therefore count little. No gradient flows through the weight.
 */
export class SFTPhiLossFn extends policyLossClass({
  name: 'sft_phi',
  summary: 'ℓ = −p(1 − p)·logprob, with p(1 − p) held constant',
  details: ['A log-probability above the logarithm of the cutoff is lowered to it, with gradient 0.'],
  source: ['arXiv 2508.11408', 'Trinity-RFT'],
  reads: ['action_mask'],
  options: {
    lossAggMode: aggregationOption('token-mean'),
    cutoffProb: {
      type: 'number',
      default: 1,
      atLeast: 0,
      atMost: 1,
      typical: [0.2, 0.9],
      help: 'the cutoff: log-probabilities above the logarithm of this are lowered to it; 1 has no effect',
    },
  },
  stopsGradient: true,
  metrics: { sft_phi_loss: { unit: 'nats' } },
  numerics: {
    range: 'logprob of at most 0',
    outside: 'above 0, p(1 − p) is negative, and overflows from 44 on; below −87.3 it is 0',
    /** Where p is near 1, 1 − p loses digits, so errors are measured relative to the terms without this factor. */
    cancels: ({ logprob }) => ({
      value: Math.abs(logprob) * Math.exp(logprob),
      gradient: Math.exp(logprob),
    }),
    variants: [{ cutoff_prob: 0.5 }],
  },
}) {
  static {
    POLICY_LOSS_FN.register('sft_phi', SFTPhiLossFn);
  }
}

/** Options of {@link SFTPhiLossFn}. */
export type SFTPhiLossOptions = NonNullable<ConstructorParameters<typeof SFTPhiLossFn>[0]>;
/** Metrics of {@link SFTPhiLossFn}. */
export type SFTPhiMetrics = MetricsOf<(typeof SFTPhiLossFn)['declaration']['metrics']>;
