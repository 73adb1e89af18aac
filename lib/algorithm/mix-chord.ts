// The class of the algorithm `mix_chord`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * MIX-CHORD: MIX with the experts' share scheduled over the steps.
 *
 * Source: arXiv 2508.11408; Trinity-RFT's MIXCHORDAlgorithm.
 */
export class MIXCHORDAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'mix_chord';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  /** Whether it trains on rollouts beside experts' answers. */
  static readonly useRollout = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'mix_chord',
    advantage_fn: 'grpo',
    entropy_loss_fn: 'mix',
    repeat_times: 8,
    sample_strategy: 'mix',
  });
}

Object.freeze(MIXCHORDAlgorithm);
