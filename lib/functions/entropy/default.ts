// The class of the entropy loss over all rows.
import { EntropyLossFn, type EntropyLossOptions } from './entropy-loss-fn.js';

/**
 * default: the entropy of all unmasked tokens.
 *
 * Source: Trinity-RFT's DefaultEntropyLossFn.
 */
export class DefaultEntropyLossFn extends EntropyLossFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: EntropyLossOptions = {}) {
    super('DefaultEntropyLossFn', 'all', options);
  }
}
