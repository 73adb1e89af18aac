// Creates objectives from Trinity-RFT's configuration files.
import { parseDocument } from 'yaml';
import { describeValue, guarded, LossError } from '../core/errors.js';
import { checkConfigKeys, TRAINER_KEYS } from './config.js';
import { ALGORITHM_TYPE } from './index.js';
import type { Objective } from './objective.js';

/**
 * Returns the objective that a Trinity-RFT configuration describes. Only the section `algorithm` of the configuration
 * is read. A configuration without the key `algorithm` is taken to be that section itself. If a key of the section is
 * absent or null, the algorithm's default applies. The default algorithm_type is ppo.
 *
 * @param config YAML text, or the object that it parses to.
 * @param options.backend the training framework whose batch keys are accepted in addition to Trinity's; 'verl' by
 * default.
 * @throws LossError `ERR_INVALID_INPUT` for text that is not YAML and for a configuration that is not an object,
 * `ERR_INVALID_OPTION` for invalid arguments and for unknown keys of the section (the message names all of them),
 * `ERR_UNKNOWN_NAME` for unknown algorithms and functions.
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
