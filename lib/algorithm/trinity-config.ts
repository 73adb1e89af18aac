// Creates objectives from Trinity-RFT's configuration files.
import { Lexer, Parser, parseDocument } from 'yaml';
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
 * @throws LossError `ERR_INVALID_INPUT` for text that is not YAML, or has more than 65,536 characters or 64 levels, and for a configuration that is not an object,
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
    throw invalid('an object of keys', describeValue(root));
  const section: unknown = 'algorithm' in root ? root.algorithm : root;
  const { algorithm_type, ...given } = checkConfigKeys('section algorithm of the configuration', section, [
    'algorithm_type',
    ...TRAINER_KEYS,
  ]);
  const algorithm = ALGORITHM_TYPE.get(algorithm_type ?? 'ppo');
  const backend = options?.backend;
  return algorithm.objective(backend === undefined ? given : { ...given, backend });
}

/**
 * The maximum length of a configuration's text. Configurations have a few thousand characters, and the time to parse
 * some texts grows with the square of their length.
 */
export const MAX_CONFIG_CHARACTERS = 2 ** 16;
const MAX_LEVELS = 64;

function parse(text: string): unknown {
  if (text.length > MAX_CONFIG_CHARACTERS)
    throw invalid(`YAML of at most ${MAX_CONFIG_CHARACTERS} characters`, 'more');
  checkNesting(text);
  const document = parseDocument(text);
  const [error] = document.errors;
  if (error) throw notYaml(error);
  try {
    return document.toJS();
  } catch (error) {
    throw notYaml(error as Error);
  }
}

/** Checks how deep the values in a YAML text are nested. The parser would overflow the stack for a deep one. */
function checkNesting(text: string): void {
  const parser = new Parser();
  for (const lexeme of new Lexer().lex(text)) {
    for (const _ of parser.next(lexeme));
    // Each level takes up to two places in the parser's stack.
    if (parser.stack.length > 2 * MAX_LEVELS) throw invalid(`YAML of at most ${MAX_LEVELS} levels`, 'more');
  }
}

function notYaml(error: Error): LossError {
  return invalid('YAML', `text with an error: ${error.message}`, error);
}

function invalid(expected: string, received: string, cause?: Error): LossError {
  return new LossError('ERR_INVALID_INPUT', { at: 'configuration', expected, received }, { cause });
}
