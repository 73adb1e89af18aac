// The class of the algorithm `asymre`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * AsymRE: OPMD's loss with a baseline that is shifted down.
 *
 * Source: arXiv 2506.20520; Trinity-RFT's AsymREAlgorithm.
 */
export class AsymREAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'asymre';
  static override readonly useCritic = false;
  static override readonly useReference = false;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'opmd',
    advantage_fn: 'asymre',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'none',
    entropy_loss_fn: 'none',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(AsymREAlgorithm);
