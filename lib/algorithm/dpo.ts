// DPO's class.
import { guarded } from '../core/errors.js';
import { AlgorithmType, type TrinityConfig } from './algorithm-type.js';
import { checkOffline, warn } from './offline.js';

/**
 * DPO: preferences between pairs of answers.
 *
 * Source: arXiv 2305.18290; Trinity-RFT's DPOAlgorithm.
 */
export class DPOAlgorithm extends AlgorithmType {
  static override readonly algorithmName = 'dpo';
  static override readonly useCritic = false;
  static override readonly useReference = true;
  static override readonly computeAdvantageInTrainer = false;
  static override readonly canBalanceBatch = false;
  static override readonly schema = 'dpo';
  /** @internal */
  static override readonly defaults = Object.freeze({
    policy_loss_fn: 'dpo',
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    sample_strategy: 'default',
  });

  /**
   * The algorithm must have a KL loss: none becomes k2. Two answers a prompt are what it has. Of a whole configuration
   * also: mode both and explore are errors, mode train needs an experience buffer, and synchronization becomes that by
   * checkpoints.
   */
  static override checkConfig(config: TrinityConfig): TrinityConfig {
    return guarded(() => {
      const whole = checkOffline('DPO', config);
      const { algorithm } = whole;
      if (algorithm !== null && typeof algorithm === 'object')
        return { ...whole, algorithm: checkSection(algorithm as TrinityConfig) };
      return checkSection(whole);
    }, 'ERR_INVALID_OPTION');
  }
}

Object.freeze(DPOAlgorithm);

function checkSection(section: TrinityConfig): TrinityConfig {
  const checked = { ...section, repeat_times: 2 };
  if (section.kl_loss_fn !== 'none' && section.kl_loss_fn !== null) return checked;
  warn('DPO must have a KL loss: kl_loss_fn is set to k2');
  return { ...checked, kl_loss_fn: 'k2' };
}
