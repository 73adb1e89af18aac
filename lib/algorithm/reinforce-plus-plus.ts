// The class of the algorithm `reinforceplusplus`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * REINFORCE++: whitened rewards to go, and PPO's clipped surrogate.
 *
 * Source: arXiv 2501.03262; Trinity-RFT's ReinforcePlusPlusAlgorithm.
 */
export class ReinforcePlusPlusAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'reinforceplusplus';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = true;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'ppo',
    advantage_fn: 'reinforceplusplus',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(ReinforcePlusPlusAlgorithm);
