// The class of the algorithm `topr`.
import { AlgorithmType } from './algorithm-type.js';

/**
 * TOPR: rewards as they are, and truncated ratios where they are bad.
 *
 * Source: arXiv 2503.14286; Trinity-RFT's TOPRAlgorithm.
 */
export class TOPRAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'topr';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'experience';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'topr',
    advantage_fn: 'reinforce',
    kl_penalty_fn: 'none',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    repeat_times: 2,
    sample_strategy: 'default',
  });
}

Object.freeze(TOPRAlgorithm);
