// The class of the algorithm `ppo`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * PPO: generalised advantage estimation with a critic, and the clipped surrogate.
 *
 * Source: arXiv 1707.06347; Trinity-RFT's PPOAlgorithm.
 */
export class PPOAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'ppo';
  static override readonly useCritic = true;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = true;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'ppo',
    advantage_fn: 'ppo',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 1,
    sample_strategy: 'default',
  });
}

Object.freeze(PPOAlgorithm);
