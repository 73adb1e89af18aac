// The class of the algorithm `rloo`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * RLOO: each reward less the mean of the group's others, and PPO's clipped surrogate.
 *
 * Source: arXiv 2402.14740; Trinity-RFT's RLOOAlgorithm.
 */
export class RLOOAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'rloo';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = true;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'ppo',
    advantage_fn: 'rloo',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(RLOOAlgorithm);
