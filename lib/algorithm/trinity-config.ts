// Objectives from Trinity-RFT's configuration files.
import { parseDocument } from 'yaml';
import { describeValue, guarded, LossError } from '../core/errors.js';
import { checkConfigKeys, TRAINER_KEYS } from './config.js';
import { ALGORITHM_TYPE } from './index.js';
import type { Objective } from './objective.js';

/**
 * The objective that a Trinity-RFT configuration names. Of the file only the section `algorithm` is read; without one,
 * the whole is taken for that section. A key that is absent or null comes from the algorithm's defaults; algorithm_type is
 * ppo by default.
 *
 * @param config YAML text, or the object that it parses to.
 * @param options.backend whose names the batch's keys may have, beside Trinity's; 'verl' by default.
 * @throws LossError `ERR_INVALID_INPUT` for text that is not YAML, `ERR_INVALID_OPTION` for unknown keys of the section
 * (all are named) and for arguments, `ERR_UNKNOWN_NAME` for unknown algorithms and functions.
 */
export function fromTrinityConfig(
  config: string | Readonly<Record<string, unknown>>,
  options?: { backend?: string },
): Objective {
  return guarded(() => read(config, options));
}

function read(config: unknown, options: { backend?: string } | undefined): Objective {
  const root = typeof config === 'string' ? parse(config) : config;
  if (root === null || typeof root !== 'object' || Array.isArray(root))
    throw new LossError(
      'ERR_INVALID_INPUT',
      `configuration: expected an object of keys, not ${describeValue(root)}`,
    );
  const section: unknown = 'algorithm' in root ? root.algorithm : root;
  const { algorithm_type, ...given } = checkConfigKeys("the configuration's section algorithm", section, [
    'algorithm_type',
    ...TRAINER_KEYS,
  ]) as ReturnType<typeof checkConfigKeys> & { algorithm_type?: string };
  const algorithm = ALGORITHM_TYPE.get(algorithm_type ?? 'ppo');
  const backend = options?.backend;
  return algorithm.objective(backend === undefined ? given : { ...given, backend });
}

function parse(text: string): unknown {
  const document = parseDocument(text);
  const [error] = document.errors;
  if (error)
    throw new LossError('ERR_INVALID_INPUT', `configuration: expected YAML, and ${error.message}`, {
      cause: error,
    });
  return document.toJS();
}
