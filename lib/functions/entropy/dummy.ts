// The class of the entropy loss over no rows.
import { EntropyLossFn, type EntropyLossOptions } from './entropy-loss-fn.js';

/**
 * none: no entropy. The loss and its gradient are 0 and there is no metric.
 *
 * Source: Trinity-RFT's DummyEntropyLossFn.
 */
export class DummyEntropyLossFn extends EntropyLossFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: EntropyLossOptions = {}) {
    super('DummyEntropyLossFn', 'none', options);
  }
}
