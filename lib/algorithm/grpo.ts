// The class of the algorithm `grpo`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * GRPO: rewards normalised within groups of answers, and PPO's clipped surrogate.
 *
 * Source: arXiv 2402.03300; Trinity-RFT's GRPOAlgorithm.
 */
export class GRPOAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'grpo';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'ppo',
    advantage_fn: 'grpo',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(GRPOAlgorithm);
