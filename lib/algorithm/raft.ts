// The class of the algorithm `raft`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * RAFT: SFT on the best of the policy's own answers.
 *
 * Source: arXiv 2304.06767; Trinity-RFT's RAFTAlgorithm.
 */
export class RAFTAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'raft';
  static override readonly useCritic = false;
  static override readonly useReference = false;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'sft',
    kl_loss_fn: 'none',
    entropy_loss_fn: 'none',
    sample_strategy: 'default',
  });
}

Object.freeze(RAFTAlgorithm);
