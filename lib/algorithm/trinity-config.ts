// Objectives from Trinity-RFT's configuration files.
import { parseDocument } from 'yaml';
import { describeValue, guarded, LossError } from '../core/errors.js';
import { checkConfigKeys, TRAINER_KEYS } from './config.js';
import { ALGORITHM_TYPE } from './index.js';
import type { Objective } from './objective.js';

/**
 * Returns the objective that a Trinity-RFT configuration describes. It reads only the section `algorithm`; a
 * configuration without that key is taken as the section itself. A key that is absent or null has the algorithm's
 * default, and algorithm_type is ppo by default.
 *
 * @param config YAML text, or the parsed object.
 * @param options.backend the training framework whose batch keys are accepted in addition to Trinity's; 'verl' by
 * default.
 * @throws LossError `ERR_INVALID_INPUT` for text that is not YAML, `ERR_INVALID_OPTION` for wrong arguments and for
 * unknown keys of the section (the message names all), `ERR_UNKNOWN_NAME` for unknown algorithms and functions.
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
    throw new LossError('ERR_INVALID_INPUT', {
      at: 'configuration',
      expected: 'an object of keys',
      received: describeValue(root),
    });
  const section: unknown = 'algorithm' in root ? root.algorithm : root;
  const { algorithm_type, ...given } = checkConfigKeys('section algorithm of the configuration', section, [
    'algorithm_type',
    ...TRAINER_KEYS,
  ]);
  const algorithm = ALGORITHM_TYPE.get(algorithm_type ?? 'ppo');
  const backend = options?.backend;
  return algorithm.objective(backend === undefined ? given : { ...given, backend });
}

function parse(text: string): unknown {
  const document = parseDocument(text);
  const [error] = document.errors;
  if (error)
    throw new LossError(
      'ERR_INVALID_INPUT',
      { at: 'configuration', expected: 'YAML', received: `text with an error: ${error.message}` },
      { cause: error },
    );
  return document.toJS();
}
