// The clipped surrogate of TRL's losses.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, Operand, ProgramSymbols } from '../../../program/expression.js';
import type { MetricExpression } from '../expression-loss.js';
import type { Ratio } from './ratio.js';
import { isOfRow, meanOfRow, smallestOfRows } from './rows.js';

/** The options that set the range to which a ratio is clipped. */
export const CLIP_RANGE = {
  epsilon: {
    type: 'number',
    default: 0.2,
    atLeast: 0,
    typical: [0.05, 0.6],
    help: 'the ratio is clipped to at least 1 − this',
  },
  epsilonHigh: {
    type: 'number',
    atLeast: 0,
    defaultFrom: 'epsilon',
    typical: [0.05, 0.6],
    help: 'the ratio is clipped to at most 1 + this',
  },
} as const;

/** The options of {@link clipped}. */
export const CLIP = {
  ...CLIP_RANGE,
  delta: {
    type: 'number',
    above: 0,
    typical: [1.5, 5],
    help: 'an upper bound on the ratio for tokens with A < 0 also (two-sided clipping); no bound if absent',
  },
} as const;

/** The declarations of the metrics of {@link clipMetrics}. */
export const CLIP_METRICS = {
  'clip_ratio/low_mean': { unit: 'fraction of tokens' },
  'clip_ratio/high_mean': { unit: 'fraction of tokens' },
  'clip_ratio/region_mean': { unit: 'fraction of tokens' },
  'clip_ratio/low_min': { unit: 'fraction of tokens', when: 'when the whole batch is computed in one call' },
  'clip_ratio/high_max': { unit: 'fraction of tokens', when: 'when the whole batch is computed in one call' },
} as const;

/** How the clipped losses behave outside the range of their inputs, for their declarations. */
export const CLIP_NUMERICS = {
  range: 'logprob − old_logprob from −20 to 20',
  outside: 'the ratio is not clipped where A < 0 and no delta is given: it overflows from 88.7 on',
  overflows: 'for A < 0',
} as const;

/** Returns the loss −min(min(r, δ)·A, clip(r, 1−ε, 1+ε_h)·A) of a token, and the metrics of its clipping. */
export function clipped(
  symbols: ProgramSymbols,
  { value: ratio, perRow }: Ratio,
  { epsilon, epsilonHigh, delta }: CheckedOptions<typeof CLIP>,
): { loss: Expression; metrics: Record<keyof typeof CLIP_METRICS, MetricExpression> } {
  const { A, min } = symbols;
  const bounded = delta === undefined ? ratio : min(ratio, delta);
  const [low, high] = [1 - epsilon, 1 + epsilonHigh];
  return {
    loss: clippedLoss(symbols, A, ratio, bounded, [low, high]),
    metrics: clipMetrics(symbols, outside(bounded, A, [low, high]), perRow && isOfRow(A)),
  };
}

/**
 * Returns −min(bounded·A, clip(r, low, high)·A).
 * @param bounded the ratio, or the smaller of the ratio and a bound.
 */
export function clippedLoss(
  { min, clip }: ProgramSymbols,
  A: Expression,
  ratio: Expression,
  bounded: Expression,
  [low, high]: readonly [Operand, Operand],
): Expression {
  return min(bounded.mul(A), clip(ratio, low, high).mul(A)).neg();
}

/** Returns where a value is below the range and A < 0, and where it is above the range and A > 0. */
export function outside(
  value: Expression,
  A: Expression,
  [low, high]: readonly [Operand, Operand],
): { low: Expression; high: Expression } {
  return { low: value.lt(low).and(A.lt(0)), high: value.gt(high).and(A.gt(0)) };
}

/**
 * Returns the metrics of clipping.
 * @param perRow whether a whole row is clipped or not. The metrics then count rows, including those without tokens.
 */
export function clipMetrics(
  symbols: ProgramSymbols,
  { low, high }: { low: Expression; high: Expression },
  perRow: boolean,
): Record<keyof typeof CLIP_METRICS, MetricExpression> {
  const { rowsMin, rowsMax } = symbols;
  const mean = (flag: Expression) => (perRow ? { row: meanOfRow(symbols, flag) } : { token: flag });
  const lowOfRow = meanOfRow(symbols, low);
  return {
    'clip_ratio/low_mean': mean(low),
    'clip_ratio/high_mean': mean(high),
    'clip_ratio/region_mean': mean(low.or(high)),
    'clip_ratio/low_min': { batch: perRow ? rowsMin(lowOfRow) : smallestOfRows(symbols, lowOfRow) },
    'clip_ratio/high_max': { batch: rowsMax(meanOfRow(symbols, high)) },
  };
}
