// `--loss-expr 'TEXT'`: a policy loss that the command line itself states, with its options `--set NAME=NUMBER`.
import { InvalidArgumentError, Option } from 'commander';
import { aggregationOption, type LossAggMode } from '../core/options.js';
import { expressionLoss } from '../define/loss-from-expression.js';
import { LossError } from '../index.js';
import { policyLossSubject, type Subject } from '../parts/index.js';
import { FUNCTIONS, VALUES } from '../program/symbols.js';
import { flagOf } from './flags.js';
import { schemaOptions } from './function-options.js';
import { inLines } from './output.js';
import type { TypedOption } from './words.js';

/** The part of a command's help that describes the language of expressions. */
export const EXPRESSION_HELP = inLines(
  [
    'An expression gives the loss of one token. It may use the columns and values',
    `${[...VALUES.keys()].join(', ')}, where d is lp - old, r is exp(d), and n is the number of unmasked tokens in the`,
    'row. --set gives other names their numbers. The operators are those of JavaScript: + - * / ** ! < <= > >= == !=',
    `&& || and c ? a : b. The functions are ${[...FUNCTIONS.keys()].join(', ')}.`,
    'sg(x) is x as a constant for the gradient.',
  ]
    .join(' ')
    .split(' '),
  '',
  120,
).join('\n');

/** Returns the options that every expression accepts. */
export function expressionOptions(): Option[] {
  const group = 'Options of an expression:';
  const set = new Option(
    '--set <name=number>',
    'the number for a name in the expression, such as low=0.2; repeatable',
  );
  return [
    set.argParser(parseSet).helpGroup(group),
    ...schemaOptions({ lossAggMode: aggregationOption('token-mean') }, {}, '', group),
  ];
}

/** The part of a typed option that a sweep varies, and the name of what it sets. */
export interface Setting {
  /** The name in the expression for `--set`; otherwise the flag without its leading dashes. */
  name: string;
  /** What stands before the value in the option's argument: `low=` in `--set low=0.2`, and otherwise nothing. */
  prefix: string;
  /** Absent if the option was typed without a value. */
  value: string | undefined;
}

/** Returns what an option sets, and to which value. */
export function settingOf({ option, value }: TypedOption): Setting {
  const end = option.long === '--set' && value !== undefined ? value.indexOf('=') : -1;
  if (end < 0) return { name: option.name().replace(/^no-/, ''), prefix: '', value };
  return { name: value!.slice(0, end), prefix: value!.slice(0, end + 1), value: value!.slice(end + 1) };
}

/** Returns the value of a setting among the values of all options, under commander's names for them. */
export function valueOfSetting(typed: TypedOption, values: Readonly<Record<string, unknown>>): unknown {
  const { name, prefix } = settingOf(typed);
  const own = values[typed.option.attributeName()];
  return prefix === '' ? own : (own as Record<string, number>)[name];
}

/**
 * Makes a subject from the loss that `--loss-expr` states.
 * @param typed the option's value: an expression, after a name and a colon if the loss has a name.
 * @param values the values of the options from {@link expressionOptions}, under commander's names for them.
 * @throws LossError `ERR_UNKNOWN_NAME` or `ERR_INVALID_OPTION` for an error in the text or a wrong option.
 */
export function expressionSubject(typed: string, values: Readonly<Record<string, unknown>>): Subject {
  const [prefix = '', given] = NAMED.exec(typed) ?? [];
  // With spaces instead of the name, a position in an error message is a position in the typed value.
  const text = typed.replace(prefix, ' '.repeat(prefix.length));
  const name = given ?? shortened(text);
  const { set = {}, lossAggMode } = values as { set?: Record<string, number>; lossAggMode?: LossAggMode };
  checkNames(text, set);
  try {
    return policyLossSubject(
      name,
      expressionLoss('--loss-expr', text, { name: name || undefined, options: set, lossAggMode }),
    );
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    const spelt = error.withOptionNames((option) =>
      Object.hasOwn(set, option) ? `--set ${option}` : flagOf(option),
    );
    throw new LossError(error.code, spelt.message, { cause: error });
  }
}

// The library ignores a number that the expression does not use. On the command line, it is probably a typing error.
function checkNames(text: string, set: Readonly<Record<string, number>>): void {
  const names: readonly string[] = text.match(/[a-z_$][\w$]*/gi) ?? [];
  const unused = Object.keys(set).find((name) => !names.includes(name));
  if (unused !== undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      at: `--set ${unused}`,
      expected: 'a name that the expression contains',
      received: 'another name',
    });
}

// No expression begins with a name and a colon, so the prefix cannot be meant as a part of the expression.
const NAMED = /^\s*([a-z_][\w-]*)\s*:\s*/i;

const LONGEST_NAME = 48;

function shortened(text: string): string {
  const line = text.trim().replaceAll(/\s+/g, ' ');
  return line.length > LONGEST_NAME ? `${line.slice(0, LONGEST_NAME - 1)}…` : line;
}

function parseSet(text: string, before: Record<string, number> = {}): Record<string, number> {
  const end = text.indexOf('=');
  const value = Number(text.slice(end + 1));
  if (end <= 0 || text.slice(end + 1).trim() === '' || Number.isNaN(value))
    throw new InvalidArgumentError("Expected a name and a number, such as 'low=0.2'.");
  return { ...before, [text.slice(0, end)]: value };
}
