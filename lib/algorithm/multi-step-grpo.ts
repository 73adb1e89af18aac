// The class of the algorithm `multi_step_grpo`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * Multi-step GRPO: runs of several steps, each with its last step's advantage.
 *
 * Source: Trinity-RFT's MultiStepGRPOAlgorithm.
 */
export class MultiStepGRPOAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'multi_step_grpo';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'ppo',
    advantage_fn: 'step_wise_grpo',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 8,
    sample_strategy: 'default',
  });
}

Object.freeze(MultiStepGRPOAlgorithm);
