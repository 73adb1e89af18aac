// `--loss-expr 'TEXT'`: a loss that the command line itself states, with its options `--set NAME=NUMBER`.
import { Option } from 'commander';
import { brief } from '../../base/errors.js';
import { aggregation } from '../../base/option.js';
import type { LossAggMode } from '../../base/options.js';
import { VARIABLES } from '../../define/build-loss.js';
import { expressionLoss } from '../../define/loss-from-expression.js';
import { type LossCorrectionOptions, LossError } from '../../index.js';
import type { Variable } from '../../program/graph.js';
import { FUNCTIONS, VALUES } from '../../program/symbols.js';
import { type Subject, subjectOfLoss } from '../parts/index.js';
import { flagOf } from './flags.js';
import { schemaOptions } from './function-options.js';
import { correctionOptions, setOption } from './settings.js';

/** The part of a command's help that describes the language of expressions. */
export const EXPRESSION_HELP = [
  'An expression gives the loss of one token, or of one row. It may use the columns and values',
  `${[...VALUES.keys()].join(', ')}, where d is lp - old, r is exp(d), n is the number of unmasked tokens in the`,
  "row, t is the token's position among them, and group_size is the number of rows in the row's group.",
  '--set gives other names their numbers. The operators are those of JavaScript: + - * / ** ! < <= > >= == !=',
  `&& || and c ? a : b. The functions are ${[...FUNCTIONS.keys()].join(', ')}.`,
  'sg(x) is x as a constant for the gradient. chosen(x) and rejected(x) are the values of the two rows of a pair.',
  'The gradients are with respect to lp and to H, the entropy. Without these, they are with respect to value or reward.',
].join(' ');

/** Returns the options that every expression accepts. */
export function expressionOptions(): Option[] {
  const group = 'Options of an expression:';
  return [
    setOption().helpGroup(group),
    ...schemaOptions({ lossAggMode: aggregation('token-mean') }, {}, '', group),
    new Option(
      '--variable <name>',
      'the column by which the loss is differentiated; by default, the first of these that its gradient depends on',
    )
      .choices(VARIABLES)
      .helpGroup(group),
    ...correctionOptions(),
  ];
}

type Typed = {
  set?: Record<string, number>;
  lossAggMode?: LossAggMode;
  variable?: Variable;
} & LossCorrectionOptions;

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
  const { set = {}, lossAggMode, variable, ...further } = values as Typed;
  checkNames(text, set);
  try {
    return subjectOfLoss(
      name,
      expressionLoss<never, Variable>('--loss-expr', text, {
        ...further,
        name: name || undefined,
        options: set,
        lossAggMode,
        variable,
      }),
    );
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    const name = error.at?.endsWith('unknown name')
      ? /^[\w$]+/.exec(text.slice(error.position))?.[0]
      : undefined;
    const hinted =
      name === undefined
        ? error
        : error.with({ hint: `To give ${brief(name)} a number, add --set ${brief(name)}=…` });
    const spelt = hinted.withOptionNames((option) =>
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
