// The metric that repeats the loss.
import type { Expression, ProgramSymbols } from '../../program/expression.js';
import type { MetricExpression } from './expression-loss.js';

/**
 * Returns the metric whose value is the loss of the batch.
 * @param loss the loss of a token, including its weight in the batch.
 */
export function lossMetric({ tokens }: ProgramSymbols, loss: Expression): MetricExpression {
  // A metric of tokens is divided by N + 1e-8.
  return { token: loss.mul(tokens.add(1e-8)) };
}
