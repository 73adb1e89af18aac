// The class of the algorithm `on_policy_distill`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * On-policy distillation: a teacher's log-probabilities less the policy's own as advantages.
 *
 * Source: arXiv 2306.13649; Trinity-RFT's OnPolicyDistillAlgorithm.
 */
export class OnPolicyDistillAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'on_policy_distill';
  static override readonly useCritic = false;
  static override readonly useReference = false;
  static override readonly computeAdvantageInTrainer = true;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'ppo',
    advantage_fn: 'on_policy_distill',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'none',
    entropy_loss_fn: 'none',
    repeat_times: 8,
    sample_strategy: 'default',
  });
}

Object.freeze(OnPolicyDistillAlgorithm);
