// Functions' own options on the command line: `--clip-range-low 0.1` for clip_range_low of a policy loss. The classes
// know their options; nothing here lists them again.
import { InvalidArgumentError, Option } from 'commander';
import { closest, distance } from 'fastest-levenshtein';
import { toCamelCase, toSnakeCase } from '../core/options.js';
import { ADVANTAGE_FN, LossError, POLICY_LOSS_FN, type TrinityValue } from '../index.js';

/**
 * The options that a command takes for a loss: those of its defaultArgs(), and of the words given those that are
 * further options of its constructor.
 *
 * @param loss its name in the registry.
 * @param words the command line's words.
 * @param taken option names that are the command's own, such as `--json`: the loss's of such a name is not among them.
 * @throws LossError `ERR_UNKNOWN_NAME` for the loss, `ERR_INVALID_OPTION` for a word that is nobody's option.
 */
export function lossOptions(loss: string, words: readonly string[], taken: ReadonlySet<string>): Option[] {
  const defaults = POLICY_LOSS_FN.get(loss).defaultArgs();
  const options = Object.entries(defaults)
    .flatMap(([key, value]) => optionsFor(key, value))
    .filter((option) => !taken.has(option.long!));
  const known = new Set([...taken, ...options.map((option) => option.long)]);
  for (const flag of flagsIn(words)) {
    if (known.has(flag)) continue;
    const further = askedFor(loss, flag, taken);
    for (const option of further) known.add(option.long);
    options.push(...further);
  }
  return options.map((option) => option.helpGroup(`Options of ${loss}:`));
}

const ADVANTAGE = 'advantage_';

/**
 * The options that a command takes for an advantage function: those of its defaultArgs(), as `--advantage-…`.
 *
 * @param name its name in the registry.
 * @throws LossError `ERR_UNKNOWN_NAME` for the function.
 */
export function advantageOptions(name: string): Option[] {
  return Object.entries(ADVANTAGE_FN.get(name).defaultArgs())
    .flatMap(([key, value]) => optionsFor(`${ADVANTAGE}${key}`, value))
    .map((option) => option.helpGroup(`Options of its advantage function ${name}:`));
}

/** Takes the values of {@link advantageOptions} out of those given on the command line: the function's arguments. */
export function takeAdvantageArgs(name: string, given: Record<string, unknown>): Record<string, unknown> {
  const args: Record<string, unknown> = {};
  for (const key of Object.keys(ADVANTAGE_FN.get(name).defaultArgs())) {
    const attribute = toCamelCase(`${ADVANTAGE}${key}`);
    if (attribute in given) args[key] = given[attribute];
    delete given[attribute];
  }
  return args;
}

/** The value of the last `--name value` or `--name=value`. */
export function optionValue(name: string, words: readonly string[]): string | undefined {
  let value: string | undefined;
  words.forEach((word, i) => {
    if (word === name) value = words[i + 1];
    else if (word.startsWith(`${name}=`)) value = word.slice(name.length + 1);
  });
  return value;
}

export function flagsIn(words: readonly string[]): string[] {
  const end = words.indexOf('--');
  return (end < 0 ? words : words.slice(0, end))
    .filter((word) => word.startsWith('--'))
    .map((word) => word.replace(/=.*/s, ''));
}

/** Makes what options say; a class's complaint, which names options as code does, is put in the command line's spelling. */
export function inKebabCase<T>(make: () => T): T {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    const message = error.message.replace('known are backend, ', 'known are ');
    throw new LossError(error.code, respelt(message, kebab), { cause: error });
  }
}

/** A class's complaint in the spelling of configuration files. */
export function inSnakeCase(message: string): string {
  return respelt(message, toSnakeCase);
}

function respelt(message: string, spell: (name: string) => string): string {
  return message.replace(/\b[a-z]+(?:[A-Z][a-z]*)+\b/g, (name) => (name.endsWith('Fn') ? name : spell(name)));
}

function kebab(name: string): string {
  return toSnakeCase(name).replace(/_/g, '-');
}

function optionsFor(key: string, value: TrinityValue): Option[] {
  const name = kebab(key);
  if (typeof value === 'boolean')
    return [
      new Option(`--${name}`, 'switch it on').default(value),
      new Option(`--no-${name}`, 'switch it off'),
    ];
  const option =
    typeof value === 'number'
      ? numberOption(`--${name} <value>`)
      : new Option(`--${name} <value>`).argParser(parseEither);
  return [value === null || value === undefined ? option : option.default(value)];
}

// An option that the class has no default argument for. Whether there is one, and whether it is a switch, only the
// class can tell: it refuses a name that it does not know, even without a value, and true where it wants more.
function askedFor(loss: string, flag: string, taken: ReadonlySet<string>): Option[] {
  const name = flag.slice(flag.startsWith('--no-') ? '--no-'.length : '--'.length);
  const key = name.replace(/-/g, '_');
  if (key === 'backend')
    throw new LossError(
      'ERR_INVALID_OPTION',
      `${flag}: the columns of rollout files have the same names for any backend`,
    );
  try {
    POLICY_LOSS_FN.create(loss, { [key]: undefined });
  } catch (error) {
    if (!isAboutOptions(error)) throw error;
    const own = [...taken];
    const nearest = closest(flag, own);
    const near = distance(flag, nearest) <= 2 ? `. Did you mean '${nearest}'?` : '';
    throw new LossError(error.code, `${error.message} (the command's own: ${own.join(', ')})${near}`, {
      cause: error,
    });
  }
  try {
    POLICY_LOSS_FN.create(loss, { [key]: true });
  } catch (error) {
    if (!isAboutOptions(error)) throw error;
    return [new Option(`--${name} <value>`).argParser(parseEither)];
  }
  return [new Option(`--${name}`), new Option(`--no-${name}`).default(undefined)];
}

function isAboutOptions(error: unknown): error is LossError {
  return error instanceof LossError && error.code === 'ERR_INVALID_OPTION';
}

/** An option whose value is a number. */
export function numberOption(flags: string, description?: string): Option {
  return new Option(flags, description).argParser(parseNumber);
}

function parseNumber(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || Number.isNaN(value)) throw new InvalidArgumentError('Expected a number.');
  return value;
}

function parseEither(text: string): number | string {
  return text.trim() === '' || Number.isNaN(Number(text)) ? text : Number(text);
}
