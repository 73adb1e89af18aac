// The k3 estimator.
import { KL_FN, klClass } from './kl-fn.js';

/** The k3 estimator. */
export class K3Fn extends klClass({
  name: 'k3',
  summary: 'e^δ − 1 − δ',
  details: ['Unbiased and never negative.'],
  source: ['Schulman 2020', 'Trinity-RFT'],
  reads: ['ref_logprob', 'action_mask'],
  estimator: 'k3',
  numerics: {
    range: 'ref_logprob − logprob up to 88.7',
    outside: 'the exponential overflows: the value is Infinity and the gradient −Infinity',
    overflows: 'always',
  },
}) {
  static {
    KL_FN.register('k3', K3Fn);
  }
}
