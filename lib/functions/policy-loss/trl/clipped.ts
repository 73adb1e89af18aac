// The clipped surrogate of TRL's losses.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import type { MetricExpression } from '../expression-loss.js';

/** The options that set the range to which a ratio is clipped. */
export const CLIP = {
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
  delta: {
    type: 'number',
    above: 0,
    typical: [1.5, 5],
    help: 'an upper bound on the ratio for tokens with A < 0 also (two-sided clipping); no bound if absent',
  },
} as const;

/** The declarations of the metrics of {@link clipped}. */
export const CLIP_METRICS = {
  'clip_ratio/low_mean': { unit: 'fraction of tokens' },
  'clip_ratio/high_mean': { unit: 'fraction of tokens' },
  'clip_ratio/region_mean': { unit: 'fraction of tokens' },
  'clip_ratio/low_min': { unit: 'fraction of tokens', when: 'when the whole batch is computed in one call' },
  'clip_ratio/high_max': { unit: 'fraction of tokens', when: 'when the whole batch is computed in one call' },
} as const;

/** Returns the loss −min(min(r, δ)·A, clip(r, 1−ε, 1+ε_high)·A) of a token, and the metrics of its clipping. */
export function clipped(
  { A, min, clip, rowMean, rowsMin, rowsMax }: ProgramSymbols,
  ratio: Expression,
  { epsilon, epsilonHigh, delta }: CheckedOptions<typeof CLIP>,
): { loss: Expression; metrics: Record<keyof typeof CLIP_METRICS, MetricExpression> } {
  const bounded = delta === undefined ? ratio : min(ratio, delta);
  const loss = min(bounded.mul(A), clip(ratio, 1 - epsilon, 1 + epsilonHigh).mul(A)).neg();
  const low = bounded.lt(1 - epsilon).and(A.lt(0));
  const high = bounded.gt(1 + epsilonHigh).and(A.gt(0));
  return {
    loss,
    metrics: {
      'clip_ratio/low_mean': { token: low },
      'clip_ratio/high_mean': { token: high },
      'clip_ratio/region_mean': { token: low.or(high) },
      'clip_ratio/low_min': { batch: rowsMin(rowMean(low)) },
      'clip_ratio/high_max': { batch: rowsMax(rowMean(high)) },
    },
  };
}
