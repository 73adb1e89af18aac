// The flags of functions, such as `--clip-range-low 0.1` for the option clipRangeLow of a policy loss. Flags and their
// help come from the functions' declarations.
import { InvalidArgumentError, Option } from 'commander';
import { LOSS_AGG_MODES, type OptionDeclaration, toSnakeCase, validValues } from '../core/options.js';
import { ADVANTAGE_FN, LossError, POLICY_LOSS_FN, type RegisteredClass } from '../index.js';
import { flagOf } from './flags.js';

/** The prefix that distinguishes an advantage function's flags from those of its algorithm's policy loss. */
const ADVANTAGE_PREFIX = 'advantage-';

/**
 * Returns the flags of a policy loss.
 * @param taken flags of the command itself, which the loss cannot have too.
 * @throws LossError `ERR_UNKNOWN_NAME` for the loss.
 */
export function lossOptions(loss: string, taken: ReadonlySet<string>): Option[] {
  return optionsOf(POLICY_LOSS_FN.get(loss), '', `Options of ${loss}:`).filter(
    (option) => !taken.has(option.long!),
  );
}

/**
 * Returns the flags of an advantage function, which begin with `--advantage-`.
 * @throws LossError `ERR_UNKNOWN_NAME` for the function.
 */
export function advantageOptions(name: string): Option[] {
  return optionsOf(ADVANTAGE_FN.get(name), ADVANTAGE_PREFIX, `Options of its advantage function ${name}:`);
}

/**
 * Moves the values of an advantage function's flags out of an object.
 * @param values by commander's attribute names; the function's are deleted from it.
 * @returns the function's arguments.
 * @throws LossError `ERR_INVALID_OPTION` if the function does not accept them.
 */
export function takeAdvantageArgs(name: string, values: Record<string, unknown>): Record<string, unknown> {
  const args: Record<string, unknown> = {};
  for (const key of Object.keys(ADVANTAGE_FN.get(name).declaration!.options)) {
    const attribute = new Option(flagOf(key, ADVANTAGE_PREFIX)).attributeName();
    if (attribute in values) args[key] = values[attribute];
    delete values[attribute];
  }
  // Checks the arguments here, because the algorithm's own error would name the option without its --advantage- prefix.
  try {
    ADVANTAGE_FN.create(name, args);
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    const spelt = error.withOptionNames((option) => flagOf(option, ADVANTAGE_PREFIX));
    throw new LossError(error.code, spelt.message, { cause: error });
  }
  return args;
}

/** Returns an option whose value is a number. */
export function numberOption(flags: string, description: string): Option {
  return new Option(flags, description).argParser(parseNumber);
}

/**
 * Returns an option's help with its range and the option that its default comes from.
 * @param hasDefault whether it has a default of its own.
 * @param spell writes the name of another option.
 */
export function helpOf(
  option: OptionDeclaration,
  hasDefault: boolean,
  spell: (option: string) => string,
): string {
  const isNumber = option.type === 'number' || option.type === 'integer';
  const range = isNumber ? validValues(option) : undefined;
  return [
    option.help,
    range === 'a number' ? undefined : range,
    option.defaultFrom === undefined || hasDefault
      ? undefined
      : `if not given, the value of ${spell(option.defaultFrom)}`,
  ]
    .filter((part) => part !== undefined)
    .join('; ');
}

function optionsOf(cls: RegisteredClass<unknown>, prefix: string, group: string): Option[] {
  const defaults = cls.defaultArgs();
  return Object.entries(cls.declaration!.options).flatMap(([name, option]) => {
    const value = defaults[toSnakeCase(name)] ?? option.default;
    const help = helpOf(option, value !== undefined, (other) => flagOf(other, prefix));
    return flagsOf(flagOf(name, prefix), option, help).map((flag) => {
      flag.helpGroup(group);
      return value === undefined || flag.negate ? flag : flag.default(value);
    });
  });
}

function flagsOf(flag: string, option: OptionDeclaration, help: string): Option[] {
  switch (option.type) {
    case 'boolean':
      return [new Option(flag, help), new Option(flag.replace('--', '--no-')).hideHelp()];
    case 'choice':
    case 'aggregation': {
      const choice = new Option(`${flag} <value>`, help);
      // Only help shows the choices. The function itself checks its options, with the same message everywhere.
      choice.argChoices = [...(option.type === 'choice' ? option.choices : LOSS_AGG_MODES)];
      return [choice];
    }
    default:
      return [numberOption(`${flag} <value>`, help)];
  }
}

function parseNumber(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || Number.isNaN(value)) throw new InvalidArgumentError('Expected a number.');
  return value;
}
