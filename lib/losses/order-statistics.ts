// Quantiles and selections of tokens, and the option that leaves out tokens with a low entropy.

import { number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { ColumnName } from '../batch/columns.js';
import { Expression, type ProgramSymbols } from '../program/expression.js';
import type { Node } from '../program/node.js';

/**
 * Returns a quantile of n values, with linear interpolation between the two nearest.
 * @param ranked returns the value with a rank, from 0 for the smallest.
 */
export function quantile(ranked: (rank: Expression) => Expression, n: Expression, share: number): Expression {
  const { graph } = n;
  const ofRank = (rank: Node) => ranked(new Expression(graph, rank)).node;
  return new Expression(graph, graph.quantile(ofRank, n.node, graph.constant(share)));
}

/**
 * Returns the condition that a token is among the `count` tokens of the batch with the smallest x. Of tokens with equal
 * values, the first are chosen. At least one token is.
 * @param count the same for all rows; rounded down.
 */
export function isAmongSmallest(
  { floor, batchRanked, batchRankAt, isUpTo }: ProgramSymbols,
  x: Expression,
  count: Expression,
): Expression {
  const rank = floor(count).sub(1);
  const last = batchRanked(x, rank);
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
  const { H, tokens, batchRanked } = symbols;
  return H.ge(quantile((rank) => batchRanked(H, rank), tokens, 1 - topEntropyQuantile));
}
