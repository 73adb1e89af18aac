// Sums, means, extremes and deviations over rows and over the batch, as the frameworks compute them.
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';
import { isBelow } from '../program/node.js';

/** Returns a log-ratio, limited so that the ratio stays finite. */
export function limitedLog({ clip }: ProgramSymbols, logRatio: Expression): Expression {
  return clip(logRatio, -20, 20);
}

/** The level of a statistic: each token, the sum or mean over its row, or the mean over its segment. */
export type Level = 'token' | 'sequence' | 'geometric' | 'segment';

/**
 * Returns a value for each token, the sum or mean over its row, or the mean over its segment.
 * @param rowMean returns the mean over a row.
 */
export function ofLevel(
  symbols: ProgramSymbols,
  level: Level,
  x: Expression,
  rowMean: (x: Expression) => Expression = symbols.rowMean,
): Expression {
  switch (level) {
    case 'token':
      return x;
    case 'sequence':
      return symbols.rowSum(x);
    case 'geometric':
      return rowMean(x);
    case 'segment':
      return segmentMean(symbols, x);
  }
}

/** Returns the mean over the segment of a token: its turn, which is the contiguous unmasked tokens around it. */
export function segmentMean({ turnSum, constant }: ProgramSymbols, x: Expression): Expression {
  // The derivative needs the reciprocal too.
  return turnSum(x).mul(constant(1).div(turnSum(1).add(1e-8)));
}

/** Returns whether all tokens of a row have the same value. */
export function isOfRow({ node }: Expression): boolean {
  return isBelow(node.level, 'token');
}

/** Returns the mean over a row's tokens, or 0 if it has none, also of a value that is the same for the whole row. */
export function meanOrZero({ n, rowMean, select }: ProgramSymbols, value: Expression): Expression {
  return select(n.gt(0), rowMean(value), 0);
}

/** Returns the mean over the unmasked tokens of the row. Like verl, it divides by their number plus 1e-8. */
export function meanOfRow({ rowSum, n }: ProgramSymbols, x: Expression): Expression {
  return rowSum(x).div(n.add(1e-8));
}

/** Returns the mean over the unmasked tokens of the batch. Like verl, it divides by their number plus 1e-8. */
export function meanOfBatch({ batchSum, tokens }: ProgramSymbols, x: Expression): Expression {
  return batchSum(x).div(tokens.add(1e-8));
}

/** Returns the number of rows with unmasked tokens. */
export function filledRows({ n, rowsSum }: ProgramSymbols): Expression {
  return rowsSum(n.gt(0));
}

/** Returns the mean of a value of the rows with unmasked tokens, or 0 if there are none. */
export function meanOfFilled(symbols: ProgramSymbols, x: Expression): Expression {
  return symbols.rowsSum(ofFilled(symbols, x, 0)).div(symbols.max(filledRows(symbols), 1));
}

/** Returns the value of a row with unmasked tokens, or another one for a row without. */
export function ofFilled({ n, select }: ProgramSymbols, x: Expression, otherwise: number): Expression {
  return select(n.gt(0), x, otherwise);
}

/** The largest finite float32 number. */
export const LARGEST_FLOAT = (2 - 2 ** -23) * 2 ** 127;

/** Returns the largest value of the rows with unmasked tokens, or another one if there are none. */
export function maxOfFilled(symbols: ProgramSymbols, x: Expression, otherwise: Operand = 0): Expression {
  return symbols.select(
    symbols.tokens.gt(0),
    symbols.rowsMax(ofFilled(symbols, x, -LARGEST_FLOAT)),
    otherwise,
  );
}

/** Returns the smallest value of the rows with unmasked tokens, or another one if there are none. */
export function minOfFilled(symbols: ProgramSymbols, x: Expression, otherwise: Operand = 0): Expression {
  return symbols.select(
    symbols.tokens.gt(0),
    symbols.rowsMin(ofFilled(symbols, x, LARGEST_FLOAT)),
    otherwise,
  );
}

/**
 * Returns the standard deviation over the unmasked tokens, from the mean of the squares. Of a single token, the 1e-8 in
 * the divisors would leave more than 0.
 */
export function deviationOfTokens(symbols: ProgramSymbols, x: Expression): Expression {
  const { tokens, square, sqrt, max, select } = symbols;
  const variance = meanOfBatch(symbols, square(x)).sub(square(meanOfBatch(symbols, x)));
  return select(tokens.lt(2), 0, sqrt(max(variance, 0)));
}

/**
 * Returns the standard deviation of a sample of rows, computed in one pass; 0 for a single row.
 * @param x a value per row, which is 0 in rows that do not count.
 * @param count the number of rows that count.
 */
export function deviationOfRows(
  { rowsSum, square, sqrt, max }: ProgramSymbols,
  x: Expression,
  count: Expression,
): Expression {
  const squares = rowsSum(square(x)).sub(square(rowsSum(x)).div(max(count, 1)));
  return sqrt(max(squares, 0).div(max(count.sub(1), 1)));
}
