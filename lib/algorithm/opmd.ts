// The class of the algorithm `opmd`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * OPMD: online policy mirror descent.
 *
 * Source: arXiv 2505.17826; Trinity-RFT's OPMDAlgorithm.
 */
export class OPMDAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'opmd';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'opmd',
    advantage_fn: 'opmd',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(OPMDAlgorithm);
