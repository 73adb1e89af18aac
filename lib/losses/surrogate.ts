// The clipped surrogate, and what several losses build from it: the options and metrics of clipping, the dual clip, the gate
// that replaces a clip, and the policy gradient with a constant weight.
import { number } from '../base/option.js';
import type { CheckedOptions, PassedOptions } from '../base/options.js';
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';
import type { MetricExpression } from '../program/loss-program.js';

/** An option that bounds a ratio from below, without its default. */
export const LEAST = {
  atLeast: 0,
  typical: [0.05, 0.6],
  help: 'the ratio is clipped to at least 1 − this',
} as const;
/** An option that bounds a ratio from above, without its default. */
export const MOST = { ...LEAST, help: 'the ratio is clipped to at most 1 + this' } as const;

/** The options of Trinity-RFT that set the range [1 − low, 1 + high] to which a ratio is clipped. */
export const CLIP_RANGE = {
  clipRange: number({
    atLeast: 0,
    help: 'used for both ends of the clip range, except for an end that has its own value',
  }),
  clipRangeLow: number({ ...LEAST, defaultFrom: 'clipRange', required: true }),
  clipRangeHigh: number({ ...MOST, defaultFrom: 'clipRange', required: true }),
};

/** The options that set the range [1 − low, 1 + high] to which a ratio is clipped. */
export type ClipRangeOptions = PassedOptions<typeof CLIP_RANGE>;

/** Returns the options of a clip range with the defaults low and high. */
export function clipRange(low: number, high: number) {
  return {
    clipRangeLow: number({ ...LEAST, default: low }),
    clipRangeHigh: number({ ...MOST, default: high }),
  };
}

const RATIO_CAP = {
  above: 1,
  typical: [1.1, 5],
  help: 'dual clip: the loss of a token with A < 0 is at most −A times this; null for no limit',
} as const;

/** The option of the dual clip, which is off by default. */
export const DUAL_CLIP = { clipRatioC: number(RATIO_CAP) };

/** Returns the option of a dual clip that is on by default. */
export function dualClip(ratio: number) {
  return { clipRatioC: number({ ...RATIO_CAP, default: ratio, nullable: true }) };
}

/** The metrics of clipping that most losses have. */
export const CLIP_METRICS = {
  pg_clipfrac: { unit: 'fraction of tokens' },
  pg_clipfrac_lower: { unit: 'fraction of tokens' },
  ppo_kl: { unit: 'nats per token' },
};

/** Returns the fractions of tokens whose ratio was clipped and whose loss was limited, and the mean of old − logprob. */
export function clipMetrics(
  clipped: Operand,
  limited: Operand,
  logRatio: Expression,
): Record<keyof typeof CLIP_METRICS, MetricExpression> {
  return {
    pg_clipfrac: { token: clipped },
    pg_clipfrac_lower: { token: limited },
    ppo_kl: { token: logRatio.neg() },
  };
}

/** The numerics of losses that clip the log-ratio. */
export const SATURATING = {
  range: 'logprob − old_logprob from −20 to 20',
  outside: 'the difference is clipped to ±20: the loss saturates and the gradient is 0',
};

/** The numerics of losses that clip only the side of a ratio that the advantage favours. */
export const OVERFLOWING = {
  range: 'differences of log-probabilities from −20 to 20',
  outside: 'ratios are not clipped where A < 0: they overflow from 88 on',
  overflows: 'for A < 0',
} as const;

/** Two bounds. */
export type Range = readonly [low: Operand, high: Operand];

/** Returns the range that options set. */
export function rangeOf({
  clipRangeLow,
  clipRangeHigh,
}: CheckedOptions<ReturnType<typeof clipRange>>): readonly [number, number] {
  return [1 - clipRangeLow, 1 + clipRangeHigh];
}

/** The clipped surrogate of a token. */
export interface Surrogate {
  /** −1 times the smaller of `plain` and `bounded`. */
  readonly loss: Expression;
  /** A·ratio. */
  readonly plain: Expression;
  /** A·clip(ratio). */
  readonly bounded: Expression;
  /** The condition that clipping changed the loss. */
  readonly clipped: Expression;
}

/**
 * Returns the clipped surrogate, the smaller of A·ratio and A·clip(ratio), and the loss that maximises it.
 * @param range the bounds on the ratio; undefined for none.
 * @param unclipped takes the place of the ratio in the first term, if that is not the ratio itself.
 */
export function surrogate(
  symbols: ProgramSymbols,
  ratio: Expression,
  range: Range | undefined,
  { A = symbols.A, unclipped = ratio }: { A?: Expression; unclipped?: Expression } = {},
): Surrogate {
  const plain = A.mul(unclipped);
  const bounded = A.mul(clippedTo(symbols, ratio, range));
  return { loss: symbols.min(plain, bounded).neg(), plain, bounded, clipped: bounded.lt(plain) };
}

/** Clips a ratio to a range, if there is one. */
export function clippedTo({ clip }: ProgramSymbols, ratio: Expression, range: Range | undefined): Expression {
  return range ? clip(ratio, ...range) : ratio;
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

/**
 * Returns a surrogate whose clipped tokens keep a gradient. Their loss is −A times the bound, times `below` under the range
 * or `above` over it, and their gradient equals their loss.
 * @param logRatio the logarithm of the ratio.
 */
export function gentleSurrogate(
  symbols: ProgramSymbols,
  logRatio: Expression,
  [low, high]: readonly [number, number],
  { below, above }: { below: number; above: number },
): { loss: Expression; clipped: Expression } {
  const { A, exp, select } = symbols;
  const ratio = exp(logRatio);
  const one = unitRatio(symbols, logRatio);
  const outside = outsideOf(ratio, A, [low, high]);
  const times = (x: Expression) => A.neg().mul(x);
  const [lowest, highest] = [times(one.mul(below * low)), times(one.mul(above * high))];
  const loss = select(outside.low, lowest, select(outside.high, highest, times(ratio)));
  return { loss, clipped: outside.low.or(outside.high) };
}

/** Returns where a value is below the range and A < 0, and where it is above the range and A > 0. */
export function outsideOf(
  value: Expression,
  A: Expression,
  [low, high]: Range,
): { low: Expression; high: Expression } {
  return { low: A.lt(0).and(value.lt(low)), high: A.gt(0).and(value.gt(high)) };
}

/** Returns the ratio exp(x − sg(x)): its value is 1, and its derivative that of x. */
export function unitRatio({ sg }: ProgramSymbols, x: Expression): Expression {
  return x.sub(sg(x)).add(1);
}

/** Returns SAPO's gate σ(τ·x)·4/τ. */
export function softGate(
  { constant, sigmoid }: ProgramSymbols,
  distance: Expression,
  temperature: Operand,
): Expression {
  return sigmoid(distance.mul(temperature)).mul(constant(4).div(temperature));
}

/** Returns the policy gradient with a constant weight: −A·sg(weight)·logprob. */
export function reinforced({ A, lp, sg }: ProgramSymbols, weight: Operand = 1): Expression {
  return A.neg().mul(sg(weight)).mul(lp);
}
