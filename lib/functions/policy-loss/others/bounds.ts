// Values of tokens and of their rows, and bounds on them.
import type { Expression, ProgramSymbols } from '../../../program/expression.js';

/** What a statistic is computed for: each token, the sum or mean over its row, or the mean over its segment. */
export type StatisticLevel = 'token' | 'sequence' | 'geometric' | 'segment';

/** Returns a value for each token, the sum or mean over its row, or the mean over its segment. */
export function ofLevel(symbols: ProgramSymbols, level: StatisticLevel, x: Expression): Expression {
  const { rowSum, rowMean } = symbols;
  switch (level) {
    case 'token':
      return x;
    case 'sequence':
      return rowSum(x);
    case 'geometric':
      return rowMean(x);
    case 'segment':
      return segmentMean(symbols, x);
  }
}

/** Returns the mean over the segment of a token: the contiguous run of unmasked tokens that holds it. */
export function segmentMean({ runSum, constant }: ProgramSymbols, x: Expression): Expression {
  // The derivative needs the reciprocal too.
  return runSum(x).mul(constant(1).div(runSum(1).add(1e-8)));
}

/** Returns the condition that x is within bounds, which are inclusive. A bound that is undefined is open. */
export function within(
  { constant }: ProgramSymbols,
  x: Expression,
  low: number | undefined,
  high: number | undefined,
): Expression {
  const above = low === undefined ? constant(1) : x.ge(low);
  return high === undefined ? above : above.and(x.le(high));
}

/** Limits x to bounds. A bound that is undefined is open. */
export function bounded(
  { clip, min, max }: ProgramSymbols,
  x: Expression,
  low: number | undefined,
  high: number | undefined,
): Expression {
  if (low !== undefined && high !== undefined) return clip(x, low, high);
  const above = low === undefined ? x : max(x, low);
  return high === undefined ? above : min(above, high);
}

/** Returns the estimate k3 of a KL divergence from a log-ratio: eˣ − 1 − x. */
export function k3({ expm1 }: ProgramSymbols, x: Expression): Expression {
  return expm1(x).sub(x);
}
