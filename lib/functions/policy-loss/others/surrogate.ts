// The clipped surrogate, the dual clip, and variants of both that several losses share.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import type { MetricExpression } from '../expression-loss.js';

/** Returns the options that set the range [1 − low, 1 + high] to which a ratio is clipped, with these defaults. */
export function clipRange(low: number, high: number) {
  return {
    clipRangeLow: {
      type: 'number',
      default: low,
      atLeast: 0,
      typical: [0.05, 0.6],
      help: 'the ratio is clipped to at least 1 − this',
    },
    clipRangeHigh: {
      type: 'number',
      default: high,
      atLeast: 0,
      typical: [0.05, 0.6],
      help: 'the ratio is clipped to at most 1 + this',
    },
  } as const;
}
type ClipRange = CheckedOptions<ReturnType<typeof clipRange>>;

const RATIO_CAP = {
  type: 'number',
  above: 1,
  typical: [1.1, 5],
  help: 'dual clip: the loss of a token with A < 0 is at most −A times this; null for no limit',
} as const;

/** The option of the dual clip, which is off by default. */
export const DUAL_CLIP = { clipRatioC: RATIO_CAP } as const;

/** Returns the option of a dual clip that is on by default. */
export function dualClip(ratio: number) {
  return { clipRatioC: { ...RATIO_CAP, default: ratio, nullable: true } } as const;
}

/** The loss of a token. */
export interface Clipped {
  readonly loss: Expression;
  /** The condition that clipping changed the loss. */
  readonly clipped: Expression;
}

/** Returns the clipped surrogate: the larger of −A·ratio and the same with the ratio clipped to the bounds. */
export function surrogate(
  { A: own, max, clip }: ProgramSymbols,
  ratio: Expression,
  low: Expression | number,
  high: Expression | number,
  A = own,
): Clipped {
  const unclipped = A.neg().mul(ratio);
  const bounded = A.neg().mul(clip(ratio, low, high));
  return { loss: max(unclipped, bounded), clipped: bounded.gt(unclipped) };
}

/** Returns the clipped surrogate with the bounds that the options set. */
export function surrogateOf(
  symbols: ProgramSymbols,
  ratio: Expression,
  { clipRangeLow, clipRangeHigh }: ClipRange,
  A?: Expression,
): Clipped {
  return surrogate(symbols, ratio, 1 - clipRangeLow, 1 + clipRangeHigh, A);
}

/**
 * Returns a surrogate whose clipped tokens keep a gradient. Their loss is −A times the bound, times `below` under the range
 * or `above` over it, and their gradient equals their loss.
 * @param logRatio the logarithm of the ratio.
 */
export function gentleSurrogate(
  symbols: ProgramSymbols,
  logRatio: Expression,
  { clipRangeLow, clipRangeHigh }: ClipRange,
  { below, above }: { below: number; above: number },
): Clipped {
  const { A, exp, select } = symbols;
  const ratio = exp(logRatio);
  const unit = unitRatio(symbols, logRatio);
  const [low, high] = [1 - clipRangeLow, 1 + clipRangeHigh];
  const isBelow = A.lt(0).and(ratio.lt(low));
  const isAbove = A.gt(0).and(ratio.gt(high));
  const kept = select(isBelow, unit.mul(below * low), select(isAbove, unit.mul(above * high), ratio));
  return { loss: A.neg().mul(kept), clipped: isBelow.or(isAbove) };
}

/** Returns the ratio exp(x − sg(x)): its value is 1, and its derivative that of x. */
export function unitRatio({ sg }: ProgramSymbols, x: Expression): Expression {
  return x.sub(sg(x)).add(1);
}

/**
 * Limits the losses of tokens with A < 0 to −A·cap, where the gradient is 0. Without a cap, nothing changes.
 * @returns the loss, and the condition that it was limited.
 */
export function limited(
  { A: own, constant, select }: ProgramSymbols,
  loss: Expression,
  cap: number | undefined,
  A = own,
): { loss: Expression; cut: Expression } {
  if (cap === undefined) return { loss, cut: constant(0) };
  const limit = A.neg().mul(cap);
  const cut = A.lt(0).and(loss.gt(limit));
  return { loss: select(cut, limit, loss), cut };
}

/** The declarations of the metrics of {@link clipMetrics}. */
export const CLIP_METRICS = {
  pg_clipfrac: { unit: 'fraction of tokens' },
  pg_clipfrac_lower: { unit: 'fraction of tokens' },
  ppo_kl: { unit: 'nats per token' },
  pg_loss: { unit: 'loss' },
} as const;

/** Returns the fractions of tokens whose ratio was clipped and whose loss was limited, and the mean of old − logprob. */
export function clipMetrics(
  clipped: Expression,
  cut: Expression,
  logRatio: Expression,
): Record<'pg_clipfrac' | 'pg_clipfrac_lower' | 'ppo_kl', MetricExpression> {
  return {
    pg_clipfrac: { token: clipped },
    pg_clipfrac_lower: { token: cut },
    ppo_kl: { token: logRatio.neg() },
  };
}
