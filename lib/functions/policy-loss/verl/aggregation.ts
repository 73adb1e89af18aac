// How verl combines the losses of the tokens into one number.
import { LossError } from '../../../core/errors.js';
import { aggregationOption, type CheckedOptions, type LossAggMode } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';

/** The options that set the divisors of verl's aggregation modes. */
export const DIVISORS = {
  lossScaleFactor: {
    type: 'number',
    above: 0,
    typical: [1, 64],
    help: 'seq-mean-token-sum-norm also divides by this; the row length T if absent',
  },
  dpSize: {
    type: 'integer',
    default: 1,
    atLeast: 1,
    help: 'the number of processes whose gradients are averaged; the loss is multiplied by it',
  },
  batchNumTokens: {
    type: 'integer',
    atLeast: 1,
    typical: [1, 200],
    help: 'token-mean divides by this; the number of unmasked tokens of the batch if absent',
  },
  globalBatchSize: {
    type: 'integer',
    atLeast: 1,
    typical: [1, 32],
    help: 'the modes seq-mean-… divide by this; the number of rows with unmasked tokens if absent',
  },
} as const;

/** The options of losses whose aggregation mode can be chosen. */
export const AGGREGATION = { lossAggMode: aggregationOption('token-mean'), ...DIVISORS } as const;

type Divisor = (symbols: ProgramSymbols, options: CheckedOptions<typeof AGGREGATION>) => Expression;

// A batch can have rows without having tokens in any of them.
const rows: Divisor = ({ n, constant, rowsSum, max }, { globalBatchSize }) =>
  globalBatchSize === undefined ? max(rowsSum(n.gt(0)), 1) : constant(globalBatchSize);

/** What each mode divides the sum of the tokens' losses by. */
const DIVISOR_OF_MODE: Record<LossAggMode, Divisor> = {
  'token-mean': ({ tokens, constant }, { batchNumTokens }) =>
    batchNumTokens === undefined ? tokens : constant(batchNumTokens),
  'token-sum': ({ constant }) => constant(1),
  'seq-mean-token-sum': rows,
  'seq-mean-token-mean': (symbols, options) => rows(symbols, options).mul(symbols.n.add(1e-8)),
  'seq-mean-token-sum-norm': (symbols, options) =>
    rows(symbols, options).mul(options.lossScaleFactor ?? symbols.rowLength),
};

/**
 * Returns the weight of a token's loss in the loss of the batch.
 * @throws LossError `ERR_INVALID_OPTION` if there are several processes and the mode needs a count of all of them that
 * the options do not give.
 */
export function weightOf(
  owner: string,
  symbols: ProgramSymbols,
  options: CheckedOptions<typeof AGGREGATION>,
): Expression {
  const { lossAggMode, dpSize } = options;
  const needed = { 'token-mean': 'batchNumTokens', 'token-sum': undefined } as const;
  const count = lossAggMode in needed ? needed[lossAggMode as keyof typeof needed] : 'globalBatchSize';
  if (dpSize > 1 && count !== undefined && options[count] === undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      at: owner,
      option: count,
      expected: (spell) => `a number, because ${spell('dpSize')} is ${dpSize}`,
      received: 'nothing',
    });
  return symbols.constant(dpSize).div(DIVISOR_OF_MODE[lossAggMode](symbols, options));
}
