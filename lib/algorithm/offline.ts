// What algorithms that train on given experiences, without a policy that samples, ask of a whole configuration.
import { describeValue, LossError } from '../core/errors.js';
import type { TrinityConfig } from './algorithm-type.js';

/**
 * Checks the parts of a whole configuration that say where experiences come from; an `algorithm` section alone has none
 * of them. Gives a corrected copy.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function checkOffline(algorithm: string, config: TrinityConfig): TrinityConfig {
  if (config === null || typeof config !== 'object')
    throw new LossError(
      'ERR_INVALID_OPTION',
      `${algorithm}: expected a configuration's keys, not ${describeValue(config)}`,
    );
  const { mode } = config;
  if (mode === 'both' || mode === 'explore')
    throw new LossError(
      'ERR_INVALID_OPTION',
      `${algorithm} does not support mode ${describeValue(mode)}: expected 'train'`,
    );
  if (mode === 'train' && !at(config, 'buffer', 'trainer_input', 'experience_buffer', 'path'))
    throw new LossError(
      'ERR_INVALID_OPTION',
      `buffer.trainer_input.experience_buffer.path: expected where ${algorithm}'s experiences are, and there is none`,
    );
  const { synchronizer } = config;
  if (synchronizer === null || typeof synchronizer !== 'object') return config;
  if (at(config, 'synchronizer', 'sync_method') === 'checkpoint') return config;
  warn(`${algorithm} synchronizes by checkpoints only: synchronizer.sync_method is set to checkpoint`);
  return { ...config, synchronizer: { ...synchronizer, sync_method: 'checkpoint' } };
}

/** A warning to people, once for each call. */
export function warn(message: string): void {
  process.emitWarning(message, { type: 'PolicyLossWarning' });
}

function at(config: unknown, ...path: string[]): unknown {
  let value = config;
  for (const key of path) {
    if (value === null || typeof value !== 'object') return undefined;
    value = (value as Record<string, unknown>)[key];
  }
  return value;
}
