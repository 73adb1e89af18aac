// The clipped surrogate of verl's losses.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { bounded } from '../../correction/verl/arithmetic.js';
import type { MetricExpression } from '../expression-loss.js';

/** The options that say how far a clip range reaches on both sides of its centre. */
export const CLIP_RATIO = {
  clipRatio: {
    type: 'number',
    default: 0.2,
    atLeast: 0,
    typical: [0.05, 0.6],
    help: 'how far the clip range reaches on both sides',
  },
  clipRatioLow: {
    type: 'number',
    atLeast: 0,
    defaultFrom: 'clipRatio',
    typical: [0.05, 0.6],
    help: 'how far the clip range reaches below',
  },
  clipRatioHigh: {
    type: 'number',
    atLeast: 0,
    defaultFrom: 'clipRatio',
    typical: [0.05, 0.6],
    help: 'how far the clip range reaches above',
  },
} as const;

/** The option of the largest ratio. */
export const CLIP_RATIO_C = {
  clipRatioC: {
    type: 'number',
    default: 3,
    above: 1,
    typical: [1.5, 10],
    help: 'the largest ratio that counts',
  },
} as const;

/** The declarations of the metrics that verl's losses have in common. */
export const CLIP_METRICS = {
  pg_clipfrac: { unit: 'fraction of tokens' },
  pg_clipfrac_lower: { unit: 'fraction of tokens' },
  ppo_kl: { unit: 'nats per token' },
} as const;

/** A loss of tokens, not yet aggregated, and its metrics. */
export interface Surrogate {
  readonly perToken: Expression;
  readonly metrics: Record<keyof typeof CLIP_METRICS, MetricExpression>;
}

/**
 * Returns PPO's clipped surrogate, max(−A·r, −A·clip(r)), which is at most −A·clipRatioC where A < 0. The ratio that
 * counts is thus at least 1 − clipRatioLow and at most clipRatioC where A < 0, and at most 1 + clipRatioHigh elsewhere.
 */
export function dualClipped(
  symbols: ProgramSymbols,
  A: Expression,
  { clipRatioLow, clipRatioHigh, clipRatioC }: CheckedOptions<typeof CLIP_RATIO & typeof CLIP_RATIO_C>,
): Surrogate {
  const { exp, clip, min, select } = symbols;
  const d = bounded(symbols, symbols.d);
  const ratio = exp(d);
  const [low, high] = [1 - clipRatioLow, 1 + clipRatioHigh];
  const isNegative = A.lt(0);
  return {
    perToken: A.neg().mul(select(isNegative, clip(ratio, low, clipRatioC), min(ratio, high))),
    metrics: {
      pg_clipfrac: { token: select(isNegative, ratio.lt(low), ratio.gt(high).and(A.gt(0))) },
      pg_clipfrac_lower: { token: ratio.gt(clipRatioC).and(isNegative) },
      ppo_kl: { token: d.neg() },
    },
  };
}
