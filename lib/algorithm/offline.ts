// Checks the configurations of SFT and DPO, which train on given experiences instead of samples from the policy.
import { describeValue, guarded, LossError } from '../base/errors.js';
import { emitWarning } from '../base/node.js';
import type { TrinityConfig } from './algorithm-type.js';

/** Implements checkConfig() of SFT. */
export function checkSftConfig(config: TrinityConfig): TrinityConfig {
  return guarded(() => checkExperiences('SFT', config), 'ERR_INVALID_OPTION');
}

/** Implements checkConfig() of DPO. */
export function checkDpoConfig(config: TrinityConfig): TrinityConfig {
  return guarded(() => {
    const whole = checkExperiences('DPO', config);
    const { algorithm } = whole;
    if (algorithm !== null && typeof algorithm === 'object')
      return { ...whole, algorithm: checkDpoSection(algorithm as TrinityConfig) };
    return checkDpoSection(whole);
  }, 'ERR_INVALID_OPTION');
}

function checkDpoSection(section: TrinityConfig): TrinityConfig {
  const checked = { ...section, repeat_times: 2 };
  if (section.kl_loss_fn !== 'none' && section.kl_loss_fn !== null) return checked;
  warn('DPO needs a KL loss: kl_loss_fn is set to k2');
  return { ...checked, kl_loss_fn: 'k2' };
}

/**
 * Checks that a whole configuration trains on given experiences: it rejects the modes 'both' and 'explore', and
 * requires the path of an experience buffer in mode 'train'. Returns the configuration, with `checkpoint` as the method
 * of synchronization if it has a `synchronizer` section. A configuration that is only an `algorithm` section has none
 * of these keys, and is returned unchanged.
 * @throws LossError `ERR_INVALID_OPTION`
 */
function checkExperiences(algorithm: string, config: TrinityConfig): TrinityConfig {
  if (config === null || typeof config !== 'object')
    throw new LossError('ERR_INVALID_OPTION', {
      at: `checkConfig of ${algorithm}`,
      expected: 'an object of configuration keys',
      received: describeValue(config),
    });
  const { mode } = config;
  if (mode === 'both' || mode === 'explore')
    throw new LossError('ERR_INVALID_OPTION', {
      at: `checkConfig of ${algorithm}`,
      option: 'mode',
      expected: "'train'",
      received: describeValue(mode),
    });
  const path = ['buffer', 'trainer_input', 'experience_buffer', 'path'];
  if (mode === 'train' && !valueAt(config, path))
    throw new LossError('ERR_INVALID_OPTION', {
      at: `checkConfig of ${algorithm}`,
      option: path.join('.'),
      expected: 'the path of the experiences to train on',
      received: describeValue(valueAt(config, path)),
    });
  const { synchronizer } = config;
  if (synchronizer === null || typeof synchronizer !== 'object') return config;
  if (valueAt(config, ['synchronizer', 'sync_method']) === 'checkpoint') return config;
  warn(`${algorithm} synchronizes by checkpoints only: synchronizer.sync_method is set to checkpoint`);
  return { ...config, synchronizer: { ...synchronizer, sync_method: 'checkpoint' } };
}

function warn(message: string): void {
  emitWarning(message, { type: 'PolicyLossWarning' });
}

function valueAt(config: unknown, path: readonly string[]): unknown {
  let value = config;
  for (const key of path) {
    if (value === null || typeof value !== 'object') return undefined;
    value = (value as Record<string, unknown>)[key];
  }
  return value;
}
