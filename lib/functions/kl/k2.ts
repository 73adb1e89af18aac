// The k2 estimator.
import { KL_FN, klClass } from './kl-fn.js';

/** The k2 estimator. */
export class K2Fn extends klClass({
  name: 'k2',
  summary: 'δ² / 2',
  details: ['Never negative.', 'On policy, its expected gradient is the gradient of the true divergence.'],
  source: ['Schulman 2020', 'Trinity-RFT'],
  reads: ['ref_logprob', 'action_mask'],
  estimator: 'k2',
  numerics: {
    range: 'a difference up to 2.6e19',
    outside: 'its square overflows to Infinity',
  },
}) {
  static {
    KL_FN.register('k2', K2Fn);
  }
}
