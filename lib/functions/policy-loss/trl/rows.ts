// Reductions over the rows that have tokens.
import type { Expression, ProgramSymbols } from '../../../program/expression.js';

/** Returns the smallest value of the rows that have unmasked tokens, or 0 if no row has one. */
export function smallestOfRows(
  { n, tokens, select, rowsMin }: ProgramSymbols,
  value: Expression,
): Expression {
  return select(tokens.gt(0), rowsMin(select(n.gt(0), value, Number.MAX_VALUE)), 0);
}
