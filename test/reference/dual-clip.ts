/** The clipped losses of PPO for each token, which several losses use. */
import type { Variable } from './autograd.js';
import type { Outcome, Tokens } from './batch.js';

/** The losses of tokens before aggregation, with the metrics of the loss. */
export interface TokenLosses {
  perToken: Variable;
  metrics: Outcome['metrics'];
}

export const greater = (x: Variable, y: Variable): Variable => x.test((value, i) => value > y.value[i]!);

/** Returns −A·ratio, the same with the ratio clipped to the two bounds, and the larger of both as `perToken`. */
export function surrogate(
  advantages: Variable,
  ratio: Variable,
  [low, high]: readonly [number, number],
): { unclipped: Variable; clipped: Variable; perToken: Variable } {
  const unclipped = advantages.neg().mul(ratio);
  const clipped = advantages.neg().mul(ratio.clip(low, high));
  return { unclipped, clipped, perToken: unclipped.max(clipped) };
}

/**
 * Limits losses to `cap` times the advantage's size where the advantage is negative. `cut` flags the tokens whose loss
 * is larger. Without a cap, nothing changes.
 */
export function limited(
  perToken: Variable,
  advantages: Variable,
  cap: number | null,
): { perToken: Variable; cut: Variable } {
  const negative = advantages.test((a) => a < 0);
  const limit = advantages.neg().mul(cap ?? Number.POSITIVE_INFINITY);
  return {
    perToken: cap === null ? perToken : negative.choose(limit.min(perToken), perToken),
    cut: greater(perToken, limit).mul(negative),
  };
}

/**
 * Clips the ratio exp(d) to the two bounds. Where the advantage is negative, a token's loss is at most `ratioCap` times
 * the advantage's size.
 */
export function dualClip(
  x: Tokens,
  d: Variable,
  advantages: Variable,
  bounds: readonly [number, number],
  ratioCap: number | null,
): TokenLosses {
  const ppo = surrogate(advantages, d.exp(), bounds);
  const { perToken, cut } = limited(ppo.perToken, advantages, ratioCap);
  return {
    perToken,
    metrics: {
      pg_clipfrac: x.mean(greater(ppo.clipped, ppo.unclipped)),
      pg_clipfrac_lower: x.mean(cut),
      ppo_kl: x.mean(d.neg()),
    },
  };
}
