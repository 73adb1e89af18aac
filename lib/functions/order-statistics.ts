// Quantiles and selections of tokens that losses and masks share.
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
