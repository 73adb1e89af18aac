// The class of the algorithm `jsd`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * JSD: on-policy distillation by the generalised Jensen-Shannon divergence.
 *
 * Source: arXiv 2306.13649; Trinity-RFT.
 */
export class JSDAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'jsd';
  static override readonly useCritic = false;
  static override readonly useReference = false;
  static override readonly computeAdvantageInTrainer = true;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'ppo',
    advantage_fn: 'jsd',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'none',
    entropy_loss_fn: 'none',
    repeat_times: 8,
    sample_strategy: 'default',
  });
}

Object.freeze(JSDAlgorithm);
