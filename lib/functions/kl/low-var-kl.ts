// The class of the low_var_kl estimator.
import { KLFn, type KLOptions } from './kl-fn.js';

/**
 * low_var_kl: k3 with δ clipped to ±20 nats and the estimate to ±10.
 *
 * Source: verl; Trinity-RFT's LowVarKLFn.
 */
export class LowVarKLFn extends KLFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: KLOptions = {}) {
    super('LowVarKLFn', 'low_var_kl', options);
  }
}
