// The class of the algorithm `cispo`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * CISPO: GRPO's advantages, and clipped ratios as constant weights.
 *
 * Source: arXiv 2506.13585; Trinity-RFT's CISPOAlgorithm.
 */
export class CISPOAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'cispo';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'cispo',
    advantage_fn: 'grpo',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(CISPOAlgorithm);
