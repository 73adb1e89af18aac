// The class of the algorithm `mix`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * MIX: GRPO on the policy's own answers and SFT on experts'.
 *
 * Source: arXiv 2505.17826; Trinity-RFT's MIXAlgorithm.
 */
export class MIXAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'mix';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  /** Whether it trains on rollouts beside experts' answers. */
  static readonly useRollout = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'mix',
    advantage_fn: 'grpo',
    entropy_loss_fn: 'mix',
    repeat_times: 8,
    sample_strategy: 'mix',
  });
}

Object.freeze(MIXAlgorithm);
