// Quantiles and selections of tokens, and the option that leaves out tokens with a low entropy.

import { number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { ColumnName } from '../batch/columns.js';
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';

/**
 * Returns a quantile of n values, with linear interpolation between the two nearest.
 * @param ranked returns the value with a rank, from 0 for the smallest.
 */
export function quantile(
  { floor, max }: ProgramSymbols,
  ranked: (rank: Operand) => Expression,
  n: Expression,
  share: number,
): Expression {
  const rank = max(n.sub(1).mul(share), 0);
  const low = ranked(rank);
  return low.add(
    ranked(rank.add(1))
      .sub(low)
      .mul(rank.sub(floor(rank))),
  );
}

/**
 * Returns the condition that a token is among the `count` tokens of the batch with the smallest x. Of tokens with equal
 * values, the first are chosen. At least one token is.
 * @param count the same for all rows; rounded down.
 */
export function isAmongSmallest(
  { floor, batchRank, batchRankAt, isUpTo }: ProgramSymbols,
  x: Expression,
  count: Expression,
): Expression {
  const rank = floor(count).sub(1);
  const last = batchRank(x, rank);
  return x.lt(last).or(x.eq(last).and(isUpTo(batchRankAt(x, rank))));
}

/** The option. With a smaller fraction than 1, a batch must have the entropies and be computed in one call. */
export const TOP_ENTROPY = {
  topEntropyQuantile: number({
    default: 1,
    atLeast: 0,
    atMost: 1,
    typical: [0.1, 0.9],
    help: 'the fraction of the tokens, those with the highest entropies, that the loss is computed from',
  }),
};

/** Returns the optional column that the option needs. */
export function topEntropyNeeds({ topEntropyQuantile }: CheckedOptions<typeof TOP_ENTROPY>): ColumnName[] {
  return topEntropyQuantile < 1 ? ['entropy'] : [];
}

/** Returns the condition that a token is among those with the highest entropies, or undefined if all tokens count. */
export function isTopEntropy(
  symbols: ProgramSymbols,
  { topEntropyQuantile }: CheckedOptions<typeof TOP_ENTROPY>,
): Expression | undefined {
  if (topEntropyQuantile === 1) return undefined;
  const { H, tokens, batchRank } = symbols;
  return H.ge(quantile(symbols, (rank) => batchRank(H, rank), tokens, 1 - topEntropyQuantile));
}
