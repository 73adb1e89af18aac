// The command-line flags of functions, such as `--clip-range-low 0.1` for the option clipRangeLow of a loss. The
// flags and their help texts are made from the declarations of the functions.
import { InvalidArgumentError, Option } from 'commander';
import {
  LOSS_AGG_MODES,
  type OptionDeclaration,
  type OptionSchema,
  type TrinityArgs,
  toSnakeCase,
  validValues,
} from '../../base/options.js';
import { ADVANTAGE_FN, LOSS_FN, LossError, PolicyLossFn, type RegisteredClass } from '../../index.js';
import { flagOf } from './flags.js';
import { correctionOptions } from './settings.js';

/**
 * The prefix of an advantage function's flags. It keeps them apart from the flags of the policy loss of the same
 * algorithm.
 */
const ADVANTAGE_PREFIX = 'advantage-';

/**
 * Returns the flags of a loss. A policy loss also has those of corrections.
 * @param taken the command's own flags. Options of the loss that would have the same flags are left out.
 * @throws LossError `ERR_UNKNOWN_NAME` for an unknown loss.
 */
export function lossOptions(loss: string, taken: ReadonlySet<string>): Option[] {
  const cls = LOSS_FN.get(loss);
  const own = optionsOf(cls, '', `Options of ${loss}:`);
  const shared = cls.prototype instanceof PolicyLossFn ? correctionOptions() : [];
  return [...own, ...shared].filter((option) => !taken.has(option.long!));
}

/**
 * Returns the flags of an advantage function. They begin with `--advantage-`.
 * @throws LossError `ERR_UNKNOWN_NAME` for an unknown advantage function.
 */
export function advantageOptions(name: string): Option[] {
  return optionsOf(ADVANTAGE_FN.get(name), ADVANTAGE_PREFIX, `Options of its advantage function ${name}:`);
}

/**
 * Moves the values of an advantage function's flags out of an object that has the values of all flags.
 * @param values the values of the flags, under commander's names for them (camelCase). The values of the function's own
 * flags are deleted from this object.
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

/** Returns a command-line option whose value must be a number. */
export function numberOption(flags: string, description: string): Option {
  return new Option(flags, description).argParser(parseNumber);
}

/**
 * Returns the help text of an option. It includes the valid range of a number. If the option takes its default from
 * another option, the text names that option.
 * @param hasDefault whether the option has a default of its own.
 * @param spell returns another option's name as the text shall spell it, for example as a flag.
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
  return schemaOptions(cls.declaration!.options, cls.defaultArgs(), prefix, group);
}

/**
 * Returns the flags of declared options.
 * @param defaults the defaults that replace those of the schema, under snake_case names.
 * @param prefix a prefix of the flags' names, such as `advantage-`.
 * @param group the heading of the flags in the help.
 */
export function schemaOptions(
  schema: OptionSchema,
  defaults: TrinityArgs,
  prefix: string,
  group: string,
): Option[] {
  return Object.entries(schema).flatMap(([name, option]) => {
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
      // Commander only shows the choices in the help and does not check them. The function itself checks its options,
      // so the message for an invalid choice is the same as in the library.
      choice.argChoices = [...(option.type === 'choice' ? option.choices : LOSS_AGG_MODES)];
      return [choice];
    }
    case 'text':
      return [new Option(`${flag} <value>`, help)];
    case 'list': {
      const read: (each: string) => string | number = option.of === 'text' ? String : parseNumber;
      const list = new Option(`${flag} <values>`, `${help}; separated by commas`);
      return [list.argParser((text) => text.split(',').map(read))];
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
