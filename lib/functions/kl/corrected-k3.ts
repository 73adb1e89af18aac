// The class of the corrected_k3 estimator.
import { KLFn, type KLOptions } from './kl-fn.js';

/**
 * corrected_k3: k3 times the importance ratio exp(logprob − old_logprob), clipped to [0, 2]; the gradient flows
 * through both factors. Without old_logprob in the batch it is k3.
 *
 * Source: Trinity-RFT's CorrectedK3Fn.
 */
export class CorrectedK3Fn extends KLFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: KLOptions = {}) {
    super('CorrectedK3Fn', 'corrected_k3', options);
  }

  /** @internal */
  override get takesOldLogprob(): boolean {
    return true;
  }
}
