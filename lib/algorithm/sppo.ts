// The class of the algorithm `sppo`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * sPPO: OPMD's advantages, and log ratios while they are in range.
 *
 * Source: Trinity-RFT's sPPOAlgorithm.
 */
export class sPPOAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'sppo';
  static override readonly useCritic = false;
  static override readonly useReference = false;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'sppo',
    advantage_fn: 'opmd',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'none',
    entropy_loss_fn: 'none',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(sPPOAlgorithm);
