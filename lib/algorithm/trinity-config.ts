// Creates objectives from Trinity-RFT's configuration files.
import { guarded } from '../base/errors.js';
import { checkConfigKeys, TRAINER_KEYS } from './config.js';
import { type ConfigObject, readConfig } from './configurations/text.js';
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
 * @throws LossError `ERR_INVALID_INPUT` for text that is not YAML, or has more than 65,536 characters or 64 levels, and
 * for a configuration that is not an object, `ERR_INVALID_OPTION` for invalid arguments and for unknown keys of the
 * section (the message names all of them), `ERR_UNKNOWN_NAME` for unknown algorithms and functions.
 */
export function fromTrinityConfig(
  config: string | Readonly<Record<string, unknown>>,
  options?: { backend?: string },
): Objective {
  return guarded(() => trinityObjective(readConfig(config), options?.backend));
}

/** Returns the objective that the keys of a Trinity-RFT configuration describe. */
export function trinityObjective(root: ConfigObject, backend: string | undefined): Objective {
  const section: unknown = 'algorithm' in root ? root.algorithm : root;
  const { algorithm_type, ...given } = checkConfigKeys('section algorithm of the configuration', section, [
    'algorithm_type',
    ...TRAINER_KEYS,
  ]);
  const algorithm = ALGORITHM_TYPE.get(algorithm_type ?? 'ppo');
  return algorithm.objective(backend === undefined ? given : { ...given, backend });
}
