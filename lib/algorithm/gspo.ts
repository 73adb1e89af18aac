// The class of the algorithm `gspo`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * GSPO: GRPO's advantages, and one ratio per sequence.
 *
 * Source: arXiv 2507.18071; Trinity-RFT's GSPOAlgorithm.
 */
export class GSPOAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'gspo';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'gspo',
    advantage_fn: 'grpo',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(GSPOAlgorithm);
