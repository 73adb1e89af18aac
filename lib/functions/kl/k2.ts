// The class of the k2 estimator.
import { KLFn, type KLOptions } from './kl-fn.js';

/**
 * k2: δ²/2 with δ = ref_logprob − logprob. Never negative; its gradient is the true divergence's on policy.
 *
 * Source: Schulman, "Approximating KL divergence" (2020).
 */
export class K2Fn extends KLFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: KLOptions = {}) {
    super('K2Fn', 'k2', options);
  }
}
