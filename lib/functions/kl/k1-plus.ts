// The straight-through KL estimator `k1+`, as in verl.
import { KL_FN, klClass } from './kl-fn.js';

/** The straight-through estimator `k1+`: the value of k1, the gradient of k2. */
export class K1PlusFn extends klClass({
  name: 'k1+',
  summary: 'the value of k1, −δ, with the gradient of k2',
  details: [
    'Its gradient is that of k2: logprob − ref_logprob.',
    'On policy, this is an unbiased gradient of the true divergence, which k1 itself does not have.',
  ],
  source: ['verl'],
  reads: ['ref_logprob', 'action_mask'],
  estimator: 'k1+',
  numerics: {
    range: 'any finite logprobs',
    outside: 'value and gradient stay finite while the difference is',
  },
}) {
  static {
    KL_FN.register('k1+', K1PlusFn);
  }
}
