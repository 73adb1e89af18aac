// The class of the algorithm `rec`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * REC: REINFORCE with clip modes, weights and regularizers.
 *
 * Source: arXiv 2509.24203; Trinity-RFT's RECAlgorithm.
 */
export class RECAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'rec';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'rec',
    advantage_fn: 'rec',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(RECAlgorithm);
