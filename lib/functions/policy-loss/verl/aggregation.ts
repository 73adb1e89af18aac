// How verl combines the losses of the tokens into one number.
import { LossError } from '../../../core/errors.js';
import { aggregationOption, type CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { VERL_AGGREGATIONS } from '../aggregation.js';

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
  return VERL_AGGREGATIONS[lossAggMode].weight(symbols, options);
}
