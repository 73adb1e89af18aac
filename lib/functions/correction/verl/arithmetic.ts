// How verl limits log-ratios and computes means.
import type { Expression, ProgramSymbols } from '../../../program/expression.js';

/** Returns a log-ratio, limited so that the ratio stays finite. */
export function bounded({ clip }: ProgramSymbols, logRatio: Expression): Expression {
  return clip(logRatio, -20, 20);
}

/** Returns the mean over the unmasked tokens of the row. Like verl, it divides by their number plus 1e-8. */
export function meanOfRow({ rowSum, n }: ProgramSymbols, x: Expression): Expression {
  return rowSum(x).div(n.add(1e-8));
}

/** Returns the mean over the unmasked tokens of the batch. Like verl, it divides by their number plus 1e-8. */
export function meanOfBatch({ batchSum, tokens }: ProgramSymbols, x: Expression): Expression {
  return batchSum(x).div(tokens.add(1e-8));
}
