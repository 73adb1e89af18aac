// The k1 estimator.
import { KL_FN, klClass } from './kl-fn.js';

/** The k1 estimator. */
export class K1Fn extends klClass({
  name: 'k1',
  summary: '−δ',
  details: ['Unbiased, but with high variance, and negative for many tokens.'],
  source: ['Schulman 2020', 'Trinity-RFT'],
  reads: ['ref_logprob', 'action_mask'],
  estimator: 'k1',
  numerics: {
    range: 'any finite logprobs',
    outside: 'NaN and Infinity pass through',
  },
}) {
  static {
    KL_FN.register('k1', K1Fn);
  }
}
