// Options whose argument is a name and a value, such as `--set low=0.2` or `--correction rollout_is=token`.
import { InvalidArgumentError, Option } from 'commander';
import { CORRECTION_FN } from '../../index.js';
import type { TypedOption } from './words.js';

/** The part of a typed option that a sweep varies, and the name of what it sets. */
export interface Setting {
  /** The name in the expression for `--set`, and the option with the name for others: `correction.rollout_is`. For an
   *  option that is not such a setting, the flag without its leading dashes. */
  name: string;
  /** What stands before the value in the option's argument: `low=` in `--set low=0.2`, and otherwise nothing. */
  prefix: string;
  /** Absent if the option was typed without a value. */
  value: string | undefined;
}

const NAMED = ['--set', '--correction', '--masks'];

/** Returns what an option sets, and to which value. */
export function settingOf({ option, value }: TypedOption): Setting {
  const end = NAMED.includes(option.long!) && value !== undefined ? value.indexOf('=') : -1;
  if (end < 0) return { name: option.name().replace(/^no-/, ''), prefix: '', value };
  const key = value!.slice(0, end);
  const name = option.long === '--set' ? key : `${option.name()}.${key}`;
  return { name, prefix: `${key}=`, value: value!.slice(end + 1) };
}

/** Returns the value of a setting among the values of all options, under commander's names for them. */
export function valueOfSetting(typed: TypedOption, values: Readonly<Record<string, unknown>>): unknown {
  const { prefix } = settingOf(typed);
  const own = values[typed.option.attributeName()];
  return prefix === '' ? own : (own as Record<string, unknown>)[prefix.slice(0, -1)];
}

/** Returns the option `--set` of an expression. */
export function setOption(): Option {
  const set = new Option(
    '--set <name=number>',
    'the number for a name in the expression, such as low=0.2; repeatable',
  );
  return set.argParser(parseSet);
}

/** Returns the options `--correction` and `--masks`, which every policy loss has. */
export function correctionOptions(): Option[] {
  const correction = new Option(
    '--correction <name=value>',
    `an argument of a correction, such as rollout_is=token; name=… chooses one of ${CORRECTION_FN.names().join(', ')}; repeatable`,
  );
  const masks = new Option(
    '--masks <name=value>',
    'a mask, such as delta=4, overlong_length=4096 or top_entropy_quantile=0.2; repeatable',
  );
  return [correction, masks].map((option) =>
    option.argParser(parseArgument).helpGroup('Options of every policy loss:'),
  );
}

function parseSet(text: string, before: Record<string, number> = {}): Record<string, number> {
  const [name, value] = parts(text, "Expected a name and a number, such as 'low=0.2'.");
  const number = Number(value);
  if (Number.isNaN(number))
    throw new InvalidArgumentError("Expected a name and a number, such as 'low=0.2'.");
  return { ...before, [name]: number };
}

function parseArgument(text: string, before: Record<string, unknown> = {}): Record<string, unknown> {
  const [name, value] = parts(text, "Expected a name and a value, such as 'rollout_is=token'.");
  const words: Record<string, unknown> = { true: true, false: false };
  const number = Number(value);
  return { ...before, [name]: words[value] ?? (Number.isNaN(number) ? value : number) };
}

function parts(text: string, expected: string): [name: string, value: string] {
  const end = text.indexOf('=');
  const value = text.slice(end + 1).trim();
  if (end <= 0 || value === '') throw new InvalidArgumentError(expected);
  return [text.slice(0, end), value];
}
