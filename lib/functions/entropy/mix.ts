// The class of the entropy loss over the policy's own rows.
import { EntropyLossFn, type EntropyLossOptions } from './entropy-loss-fn.js';

/**
 * mix: the entropy of the rows that the policy sampled; experts' rows (expert_mask) are left out.
 *
 * Source: Trinity-RFT's MixEntropyLossFn.
 */
export class MixEntropyLossFn extends EntropyLossFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: EntropyLossOptions = {}) {
    super('MixEntropyLossFn', 'usual', options);
  }
}
