// The straight-through KL estimator `abs+`, as in verl.
import { KL_FN, klClass } from './kl-fn.js';

/** The straight-through estimator `abs+`: the value of abs, the gradient of k2. */
export class AbsPlusFn extends klClass({
  name: 'abs+',
  summary: 'the value of abs, |δ|, with the gradient of k2',
  details: ['Its gradient is that of k2: logprob − ref_logprob.'],
  source: ['verl'],
  reads: ['ref_logprob', 'action_mask'],
  estimator: 'abs+',
  numerics: {
    range: 'any finite logprobs',
    outside: 'value and gradient stay finite while the difference is',
  },
}) {
  static {
    KL_FN.register('abs+', AbsPlusFn);
  }
}
