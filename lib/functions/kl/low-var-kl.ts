// The KL estimator `low_var_kl`: k3 with a limited input and a limited value.
import { KL_FN, klClass } from './kl-fn.js';

/** The KL estimator `low_var_kl`: k3 with ref_logprob − logprob clipped to ±20, and the value clipped to ±10. */
export class LowVarKLFn extends klClass({
  name: 'low_var_kl',
  summary: 'k3 with δ clipped to ±20 and the value to ±10',
  source: ['verl', 'Trinity-RFT'],
  reads: ['ref_logprob', 'action_mask'],
  estimator: 'low_var_kl',
  numerics: {
    range: 'ref_logprob − logprob from −20 to 20, values up to 10',
    outside: 'difference and value are clipped: the value saturates at 10 and the gradient is 0',
  },
}) {
  static {
    KL_FN.register('low_var_kl', LowVarKLFn);
  }
}
