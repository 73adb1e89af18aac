// The class of the k1 estimator.
import { KLFn, type KLOptions } from './kl-fn.js';

/**
 * k1: −δ with δ = ref_logprob − logprob. Unbiased, of high variance, and negative for many tokens.
 *
 * Source: Schulman, "Approximating KL divergence" (2020).
 */
export class K1Fn extends KLFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: KLOptions = {}) {
    super('K1Fn', 'k1', options);
  }
}
