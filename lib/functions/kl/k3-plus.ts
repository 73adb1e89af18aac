// The straight-through KL estimator `k3+`, as in verl.
import { KL_FN, klClass } from './kl-fn.js';

/** The straight-through estimator `k3+`: verl's k3 is low_var_kl, so this is low_var_kl+. */
export class K3PlusFn extends klClass({
  name: 'k3+',
  summary: 'the value of low_var_kl, with the gradient of k2',
  details: [
    'Its gradient is that of k2: logprob − ref_logprob.',
    'The same as low_var_kl+, because k3 is limited in verl as low_var_kl is.',
  ],
  source: ['verl'],
  reads: ['ref_logprob', 'action_mask'],
  estimator: 'low_var_kl+',
  numerics: {
    range: 'ref_logprob − logprob from −20 to 20, values up to 10',
    outside: 'difference and value are clipped: the value saturates at 10, and the gradient goes on',
  },
}) {
  static {
    KL_FN.register('k3+', K3PlusFn);
  }
}
