// The straight-through KL estimator `k2+`, as in verl.
import { KL_FN, klClass } from './kl-fn.js';

/** The straight-through estimator `k2+`: the same as k2. */
export class K2PlusFn extends klClass({
  name: 'k2+',
  summary: 'k2, δ² / 2, which has the gradient of k2 already',
  details: ['The same as k2.'],
  source: ['verl'],
  reads: ['ref_logprob', 'action_mask'],
  estimator: 'k2',
  numerics: {
    range: 'a difference up to 2.6e19',
    outside: 'its square overflows to Infinity',
  },
}) {
  static {
    KL_FN.register('k2+', K2PlusFn);
  }
}
