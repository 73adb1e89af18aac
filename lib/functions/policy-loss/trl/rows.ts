// Values of rows, and reductions over the rows that have tokens.

import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { isBelow } from '../../../program/graph.js';

/** Returns whether all tokens of a row have the same value. */
export function isOfRow({ node }: Expression): boolean {
  return isBelow(node.level, 'token');
}

/** Returns the mean over a row's tokens, or 0 if it has none, also of a value that is the same for the whole row. */
export function meanOfRow({ n, rowMean, select }: ProgramSymbols, value: Expression): Expression {
  return select(n.gt(0), rowMean(value), 0);
}

/** Returns the smallest value of the rows that have unmasked tokens, or 0 if no row has one. */
export function smallestOfRows(
  { n, tokens, select, rowsMin }: ProgramSymbols,
  value: Expression,
): Expression {
  return select(tokens.gt(0), rowsMin(select(n.gt(0), value, Number.MAX_VALUE)), 0);
}
