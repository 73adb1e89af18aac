// The class of the KL function that estimates nothing.
import { KLFn, type KLOptions } from './kl-fn.js';

/**
 * none: no estimate. The values, the loss and its gradient are 0, rewards are the scores, and there are no metrics.
 *
 * Source: Trinity-RFT's DummyKLFn.
 */
export class DummyKLFn extends KLFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: KLOptions = {}) {
    super('DummyKLFn', undefined, options);
  }
}
