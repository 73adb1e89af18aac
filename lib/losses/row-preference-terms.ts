// What preference losses of single rows share, which are labelled as desirable or not: KTO and BCO.
import { number } from '../base/option.js';
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

/** The options of a running mean over calls. */
export const RUNNING_OPTIONS = {
  runningMean: number({
    default: 0,
    typical: [-0.5, 0.5],
    help: 'the mean of the rewards of the calls before',
  }),
  runningCount: number({
    default: 1e-24,
    above: 0,
    typical: [1, 20],
    help: 'how much the calls before count in the mean: the number of their rows',
  }),
};

/**
 * Returns the running mean after a call, as a constant for the gradient, and the state for the next call.
 * @param mean the mean of the call.
 * @param count how much the call counts.
 */
export function runningMean(
  { sg, constant }: ProgramSymbols,
  { runningMean, runningCount }: { runningMean: number; runningCount: number },
  mean: Expression,
  count: Expression | number,
) {
  const counted = constant(1).mul(count);
  const total = counted.add(runningCount);
  const next = sg(mean.sub(runningMean).mul(counted.div(total)).add(runningMean));
  return { next, state: { running_mean: next, running_count: total } };
}
