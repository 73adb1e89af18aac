/** The parts that the losses of several frameworks have in common. */
import type { Operand, Variable } from '../autograd.js';
import type { Tokens } from '../batch.js';

/** Returns 1 − x, for flags and weights. */
export const complement = (x: Variable): Variable => x.neg().add(1);

export const greater = (x: Variable, y: Variable): Variable => x.test((value, i) => value > y.value[i]!);
export const isNegative = (x: Variable): Variable => x.test((value) => value < 0);
export const isPositive = (x: Variable): Variable => x.test((value) => value > 0);
/** Flags the values within bounds, which are inclusive. A bound that is null is open. */
export const within = (x: Variable, low: number | null, high: number | null): Variable =>
  x.test(
    (value) => value >= (low ?? Number.NEGATIVE_INFINITY) && value <= (high ?? Number.POSITIVE_INFINITY),
  );
export const bounded = (x: Variable, low: number | null, high: number | null): Variable =>
  x.clip(low ?? Number.NEGATIVE_INFINITY, high ?? Number.POSITIVE_INFINITY);

/** The clipped surrogate of PPO: `loss` is the larger of −A·ratio and −A·clip(ratio, low, high). */
export function surrogate(
  advantages: Variable,
  ratio: Variable,
  low: number,
  high: number,
): { unclipped: Variable; clipped: Variable; loss: Variable } {
  const unclipped = advantages.neg().mul(ratio);
  const clipped = advantages.neg().mul(ratio.clip(low, high));
  return { unclipped, clipped, loss: unclipped.max(clipped) };
}

/** Limits the loss to −A·cap where A is negative. `cut` flags the tokens where it does so. null switches it off. */
export function dualClip(
  loss: Variable,
  advantages: Variable,
  cap: number | null,
): { loss: Variable; cut: Variable } {
  if (cap === null) return { loss, cut: loss.mul(0).detach() };
  const negative = isNegative(advantages);
  const limit = advantages.neg().mul(cap);
  return { loss: negative.choose(loss.min(limit), loss), cut: greater(loss, limit).mul(negative) };
}

/** The mean over the unmasked tokens, and 0 if there are none. */
export const tokenMean = (x: Tokens, values: Variable): Variable =>
  values.sum().div(Math.max(x.index.length, 1));
/** The mean over each row's unmasked tokens, and 0 for a row without them. */
export const rowMean = (x: Tokens, values: Variable): Variable =>
  x.rowSum(values).div(x.tape.leaf(x.counts.map((n) => Math.max(n, 1))));

/**
 * Returns the mean over each contiguous run of unmasked tokens, for each token of the run. Positions of a run follow
 * each other in one row.
 */
export function runMean(x: Tokens, values: Variable): Variable {
  const runOf: number[] = [];
  x.index.forEach((at, i) => {
    const follows = i > 0 && x.index[i - 1] === at - 1 && x.rowOf[i - 1] === x.rowOf[i];
    runOf.push(i === 0 ? 0 : runOf[i - 1]! + (follows ? 0 : 1));
  });
  const runs = (runOf.at(-1) ?? -1) + 1;
  const lengths = new Float64Array(runs);
  for (const run of runOf) lengths[run]!++;
  return values
    .sumBy(runOf, runs)
    .div(x.tape.leaf(lengths.map((n) => n + 1e-8)))
    .gather(runOf);
}

/** The ratio exp(lp − sg(lp)), whose value is 1 and whose gradient is 1. */
export const unitRatio = (logprob: Variable): Variable => logprob.sub(logprob.detach()).exp();

export const k3 = (delta: Variable): Variable => delta.expm1().sub(delta);

/** Interpolates linearly between the order statistics of some values. `q` is between 0 and 1. */
export function quantile(values: Iterable<number>, q: number): number {
  const sorted = Float64Array.from(values).sort();
  const rank = q * (sorted.length - 1);
  const below = sorted[Math.floor(rank)]!;
  const above = sorted[Math.ceil(rank)]!;
  return below + (above - below) * (rank - Math.floor(rank));
}

export const smallest = (values: ArrayLike<number>): number =>
  values.length ? Array.from(values).reduce((a, b) => Math.min(a, b)) : 0;
export const largest = (values: ArrayLike<number>): number =>
  values.length ? Array.from(values).reduce((a, b) => Math.max(a, b)) : 0;

/** Returns one number that a formula computed from detached values, as a constant of the formula. */
export const whole = (x: Tokens, value: number): Variable => x.tape.leaf([value]);
export type { Operand };
