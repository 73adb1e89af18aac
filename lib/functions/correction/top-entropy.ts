// The option that leaves out tokens with a low entropy. TRL's losses have it themselves, and masks have it for all losses.
import type { ColumnName } from '../../core/native-batch.js';
import type { CheckedOptions } from '../../core/options.js';
import type { Expression, ProgramSymbols } from '../../program/expression.js';
import { quantile } from '../order-statistics.js';

/** The option. With a smaller fraction than 1, a batch must have the entropies and be computed in one call. */
export const TOP_ENTROPY = {
  topEntropyQuantile: {
    type: 'number',
    default: 1,
    atLeast: 0,
    atMost: 1,
    typical: [0.1, 0.9],
    help: 'the fraction of the tokens, those with the highest entropies, that the loss is computed from',
  },
} as const;

/** Returns the optional column that the option needs. */
export function topEntropyNeeds({ topEntropyQuantile }: CheckedOptions<typeof TOP_ENTROPY>): ColumnName[] {
  return topEntropyQuantile < 1 ? ['entropy'] : [];
}

/** Returns the condition that a token is among those with the highest entropies, or undefined if all tokens count. */
export function isTopEntropy(symbols: ProgramSymbols, topEntropyQuantile: number): Expression | undefined {
  if (topEntropyQuantile === 1) return undefined;
  const { H, tokens, batchRank } = symbols;
  return H.ge(quantile(symbols, (rank) => batchRank(H, rank), tokens, 1 - topEntropyQuantile));
}
