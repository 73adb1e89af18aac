// What the value losses share: the clipped error of a token, means over tokens and rows, and explained variances.
import type { TokenValues } from '../base/declaration.js';
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';
import { lossMetric, type MetricExpression } from '../program/loss-program.js';

/** A function that turns an error into a loss. */
type LossOfError = (symbols: ProgramSymbols, error: Expression) => Expression;

/** The loss of a token, and the condition that clipping raised it. */
export interface ClippedError {
  readonly loss: Expression;
  readonly clipped: Expression;
}

/**
 * Returns the larger of the losses of values and of values that are clipped to within `range` of old_values. Where both
 * losses are equal, half of each has a derivative.
 * @param range undefined for no clipping.
 */
export function clippedError(
  symbols: ProgramSymbols,
  range: number | undefined,
  of: LossOfError = squared,
): ClippedError {
  const { values, oldValues, returns, clip, select, max } = symbols;
  const plain = of(symbols, values.sub(returns));
  if (range === undefined) return { loss: plain, clipped: symbols.constant(0) };
  const near = clip(values, oldValues.sub(range), oldValues.add(range));
  const bounded = of(symbols, near.sub(returns));
  return {
    loss: select(plain.eq(bounded), plain.add(bounded).mul(0.5), max(plain, bounded)),
    clipped: bounded.gt(plain),
  };
}

/**
 * Returns the size of the terms that cancel in the square of a clipped error, for `cancels`. A bound is rounded, so its
 * error relative to a return near it may be large. A range of 0.5 is the largest that is a default.
 */
export function termsOfClipped({ value, oldValue, return: target }: TokenValues): { value: number } {
  const bound = Math.abs(oldValue) + 0.5;
  return { value: bound * Math.max(Math.abs(value - target), Math.abs(oldValue - target)) };
}

const squared: LossOfError = ({ square }, error) => square(error);

/** Returns half the square of an error. */
export const halfSquared: LossOfError = ({ square }, error) => square(error).mul(0.5);

/** Returns Huber's loss: half the square of an error below `delta`, and linear above. */
export function huber(delta: number): LossOfError {
  return ({ abs, square, select }, error) => {
    const size = abs(error);
    return select(size.lt(delta), square(error).mul(0.5), size.sub(delta / 2).mul(delta));
  };
}

/** What options that say how far values may be from old_values have in common. */
export const RANGE = {
  atLeast: 0,
  typical: [0.1, 2],
  help: 'how far a value may be from old_values before it is clipped',
} as const;

/** The same where clipping is optional. */
export const OPTIONAL_RANGE = { ...RANGE, help: `${RANGE.help}; null for no clipping` } as const;

/** Returns the metric of tokens that is the sum of x times a weight. */
export function weightedSum(symbols: ProgramSymbols, x: Operand, weight: Expression): MetricExpression {
  return lossMetric(symbols, weight.mul(x));
}

/** Returns the weights of tokens in three means: over all tokens, and, in two ways, over the rows of the means of rows. */
export function meanWeights({ constant, tokens, rows, n, max }: ProgramSymbols) {
  const one = constant(1);
  return {
    /** 1/max(N, 1). */
    ofTokens: one.div(max(tokens, 1)),
    /** 1/(B·max(n, 1)). */
    ofRows: one.div(rows.mul(max(n, 1))),
    /** 1/(B·(n + 1e-8)). */
    ofRowsNear: one.div(rows.mul(n.add(1e-8))),
  };
}

/** Returns the sum of the squares of the differences from the mean over the batch's tokens. */
export function sumOfSquares({ batchMean, batchSum, square }: ProgramSymbols, x: Expression): Expression {
  return batchSum(square(x.sub(batchMean(x))));
}

/** Returns verl's explained variance of old_values, from sample variances; 0 for fewer than two tokens. */
export function explainedBySamples(symbols: ProgramSymbols): MetricExpression {
  const { returns, oldValues, batchSum, select, constant, max } = symbols;
  const count = batchSum(1);
  const variance = (x: Expression) => sumOfSquares(symbols, x).div(max(count.sub(1), 1));
  const explained = constant(1).sub(variance(returns.sub(oldValues)).div(variance(returns).add(1e-5)));
  return { batch: select(count.lt(2), 0, explained) };
}
