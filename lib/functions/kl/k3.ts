// The class of the k3 estimator.
import { KLFn, type KLOptions } from './kl-fn.js';

/**
 * k3: exp(δ) − 1 − δ with δ = ref_logprob − logprob. Unbiased and never negative.
 *
 * Source: Schulman, "Approximating KL divergence" (2020).
 */
export class K3Fn extends KLFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: KLOptions = {}) {
    super('K3Fn', 'k3', options);
  }
}
