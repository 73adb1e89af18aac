// The KL estimator `abs`: the absolute difference of the two log-probabilities.
import { KL_FN, klClass } from './kl-fn.js';

/** The KL estimator `abs`: the absolute difference between logprob and ref_logprob. */
export class AbsFn extends klClass({
  name: 'abs',
  summary: '|δ|',
  details: ['Its derivative at 0 is 0.'],
  source: ['verl', 'Trinity-RFT'],
  reads: ['ref_logprob', 'action_mask'],
  estimator: 'abs',
  numerics: {
    range: 'any finite logprobs',
    outside: 'NaN and Infinity pass through',
  },
}) {
  static {
    KL_FN.register('abs', AbsFn);
  }
}
