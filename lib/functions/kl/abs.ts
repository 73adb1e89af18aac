// The class of the abs estimator.
import { KLFn, type KLOptions } from './kl-fn.js';

/**
 * abs: |δ| with δ = ref_logprob − logprob; its derivative at 0 is 0.
 *
 * Source: verl; Trinity-RFT's AbsFn.
 */
export class AbsFn extends KLFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: KLOptions = {}) {
    super('AbsFn', 'abs', options);
  }
}
