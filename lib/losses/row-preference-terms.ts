// What preference losses of single rows share, which are labelled as desirable or not: KTO and BCO.
import type { Expression, ProgramSymbols } from '../program/expression.js';
import type { MetricExpression } from '../program/loss-program.js';

/** Returns the loss of a row: weight·(1 − σ(β·(z − z₀))) of a desirable row, and weight·(1 − σ(β·(z₀ − z))) of another. */
export function ktoLoss(
  { label, sigmoid, select }: ProgramSymbols,
  /** β·(z − z₀). */
  advance: Expression,
  { desirable, undesirable }: { desirable: number; undesirable: number },
): Expression {
  const isDesirable = label.gt(0);
  return select(isDesirable, sigmoid(advance.neg()).mul(desirable), sigmoid(advance).mul(undesirable));
}

/** Returns the rows of a class: their number, and the sum and the mean of a value. Without rows, all are NaN. */
export function ofClass({ label, rowsSum, select }: ProgramSymbols, isDesirable: boolean) {
  const isMember = isDesirable ? label.gt(0) : label.eq(0);
  const count = rowsSum(isMember);
  const sum = (x: Expression) => rowsSum(select(isMember, x, 0));
  const mean = (x: Expression) => sum(x).div(count);
  return {
    mean,
    /** The sum as a metric, which is absent if the class has no rows. */
    sumIfAny: (x: Expression): MetricExpression => ({ batch: mean(x).mul(count) }),
    countIfAny: { batch: count.mul(count).div(count) } as MetricExpression,
  };
}
