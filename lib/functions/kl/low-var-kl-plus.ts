// The straight-through KL estimator `low_var_kl+`, as in verl.
import { KL_FN, klClass } from './kl-fn.js';

/** The straight-through estimator `low_var_kl+`: the value of low_var_kl, the gradient of k2. */
export class LowVarKLPlusFn extends klClass({
  name: 'low_var_kl+',
  summary: 'the value of low_var_kl, with the gradient of k2',
  details: [
    'Its gradient is that of k2: logprob − ref_logprob.',
    'It has this gradient also where low_var_kl is clipped.',
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
    KL_FN.register('low_var_kl+', LowVarKLPlusFn);
  }
}
