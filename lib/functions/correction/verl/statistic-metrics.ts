// The metrics of the statistics by which verl's rollout correction rejects tokens and rows.
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import type { MetricExpression } from '../../../program/loss-program.js';
import { meanOfBatch, meanOfRow } from './arithmetic.js';
import { STATISTIC_NAMES, type Statistic, type StatisticName } from './rollout-weights.js';

const UNITS = {
  masked_fraction: 'fraction of tokens',
  seq_masked_fraction: 'fraction of rows',
  mean: 'nats',
  max: 'nats',
  min: 'nats',
  std: 'nats',
  fraction_high: 'fraction',
  fraction_low: 'fraction',
  seq_mean: 'nats',
  seq_std: 'nats',
  seq_max: 'nats',
  seq_min: 'nats',
  seq_max_deviation: 'nats',
  seq_fraction_high: 'fraction of rows',
  seq_fraction_low: 'fraction of rows',
} as const;

type MetricName = `rollout_corr/rollout_rs_${StatisticName}_${keyof typeof UNITS}`;

function metricName(statistic: StatisticName, metric: string): MetricName {
  return `rollout_corr/rollout_rs_${statistic}_${metric}` as MetricName;
}

/** The declarations of the metrics. */
export const STATISTIC_METRICS = Object.fromEntries(
  STATISTIC_NAMES.flatMap((statistic) =>
    Object.entries(UNITS).map(([metric, unit]) => [
      metricName(statistic, metric),
      { unit, when: `with ${statistic} in rollout_rs, when the whole batch is computed in one call` },
    ]),
  ),
) as unknown as Record<MetricName, { unit: string; when: string }>;

/** Returns the metrics of one statistic. Means over rows leave out rows without tokens. */
export function statisticMetrics(
  symbols: ProgramSymbols,
  { name, level, value, low, high, isTwoSided, passed }: Statistic,
): [MetricName, MetricExpression][] {
  const { n, abs, clip, constant, rowMin, rowMax, rowSum } = symbols;
  const isOfTokens = level === 'token';
  const ofRow = isOfTokens ? meanOfRow(symbols, value) : value;
  const rows = filledRows(symbols);
  const fraction = (flag: Expression) =>
    isOfTokens ? meanOfBatch(symbols, flag) : meanOfFilled(symbols, flag);
  const metrics = {
    masked_fraction: meanOfBatch(symbols, passed.not()),
    seq_masked_fraction: meanOfFilled(symbols, rowSum(passed).lt(n)),
    mean: meanOfBatch(symbols, value),
    max: maxOfFilled(symbols, isOfTokens ? rowMax(value) : value),
    min: minOfFilled(symbols, isOfTokens ? rowMin(value) : value),
    std: deviationOfTokens(symbols, clip(value, low, high)),
    fraction_high: fraction(value.gt(high)),
    fraction_low: isTwoSided ? fraction(value.lt(low)) : constant(0),
    seq_mean: meanOfFilled(symbols, ofRow),
    seq_std: deviationOfRows(symbols, ofFilled(symbols, ofRow, 0), rows),
    seq_max: maxOfFilled(symbols, ofRow),
    seq_min: minOfFilled(symbols, ofRow),
    seq_max_deviation: maxOfFilled(symbols, abs(ofRow)),
    seq_fraction_high: meanOfFilled(symbols, ofRow.gt(high)),
    ...(isTwoSided && { seq_fraction_low: meanOfFilled(symbols, ofRow.lt(low)) }),
  };
  return Object.entries(metrics).map(([metric, batch]) => [metricName(name, metric), { batch }]);
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

// Larger than every float32 number.
const LARGE = 1e300;

/** Returns the largest value of the rows with unmasked tokens, or 0 if there are none. */
export function maxOfFilled(symbols: ProgramSymbols, x: Expression): Expression {
  return symbols.select(symbols.tokens.gt(0), symbols.rowsMax(ofFilled(symbols, x, -LARGE)), 0);
}

/** Returns the smallest value of the rows with unmasked tokens, or 0 if there are none. */
export function minOfFilled(symbols: ProgramSymbols, x: Expression): Expression {
  return symbols.select(symbols.tokens.gt(0), symbols.rowsMin(ofFilled(symbols, x, LARGE)), 0);
}

function meanOfFilled(symbols: ProgramSymbols, x: Expression): Expression {
  return symbols.rowsSum(ofFilled(symbols, x, 0)).div(symbols.max(filledRows(symbols), 1));
}

function ofFilled({ n, select }: ProgramSymbols, x: Expression, otherwise: number): Expression {
  return select(n.gt(0), x, otherwise);
}

function filledRows({ n, rowsSum }: ProgramSymbols): Expression {
  return rowsSum(n.gt(0));
}
