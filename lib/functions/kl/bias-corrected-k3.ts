// The KL estimator `bias_corrected_k3`: k3, corrected without a limit because an older policy sampled the rows.
import { KL_FN, klClass } from './kl-fn.js';

/**
 * The KL estimator `bias_corrected_k3`. An older policy sampled the rows, so k3 is multiplied by the ratio of the current
 * policy's probability to the older policy's. Unlike in `corrected_k3`, the ratio is not limited.
 */
export class BiasCorrectedK3Fn extends klClass({
  name: 'bias_corrected_k3',
  summary: 'k3 times the ratio to the old policy',
  details: [
    'The gradient flows through both factors.',
    'Without old_logprob in the batch, the old policy is the current one: the value is that of k3, and the gradient logprob − ref_logprob.',
  ],
  source: ['arXiv 2512.02556', 'TRL'],
  reads: ['ref_logprob', 'action_mask', 'old_logprob'],
  estimator: 'bias_corrected_k3',
  estimatorWithoutOld: 'bias_corrected_k3_on_policy',
  numerics: {
    range: "as k3's, and logprob − old_logprob up to 88.7",
    outside: "as k3's: Infinity, or NaN where the ratio is 0",
    overflows: 'always',
  },
}) {
  static {
    KL_FN.register('bias_corrected_k3', BiasCorrectedK3Fn);
  }
}
