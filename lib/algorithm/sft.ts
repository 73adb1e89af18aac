// SFT's class.
import { guarded } from '../core/errors.js';
import { AlgorithmType, type TrinityConfig } from './algorithm-type.js';
import { checkOffline } from './offline.js';

/**
 * SFT: supervised fine-tuning on given answers.
 *
 * Source: Trinity-RFT's SFTAlgorithm.
 */
export class SFTAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'sft';
  static override readonly useCritic = false;
  static override readonly useReference = false;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = true;
  static override readonly schema = 'sft';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'sft',
    kl_loss_fn: 'none',
    entropy_loss_fn: 'none',
    sample_strategy: 'default',
  });

  /**
   * Of a whole configuration: mode both and explore are errors, mode train needs an experience buffer, and
   * synchronization becomes that by checkpoints.
   */
  static override checkConfig(config: TrinityConfig): TrinityConfig {
    return guarded(() => checkOffline('SFT', config), 'ERR_INVALID_OPTION');
  }
}

Object.freeze(SFTAlgorithm);
