// The class of the algorithm `sapo`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * SAPO: GRPO's advantages, and a soft gate in the place of clipping.
 *
 * Source: arXiv 2511.20347; Trinity-RFT's SAPOAlgorithm.
 */
export class SAPOAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'sapo';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'sapo',
    advantage_fn: 'grpo',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(SAPOAlgorithm);
