/** The clipped loss of PPO for each token, which several losses use. */
import type { Variable } from './autograd.js';
import type { Outcome, Tokens } from './batch.js';

/** The losses of tokens before aggregation, with the metrics of the loss. */
export interface TokenLosses {
  perToken: Variable;
  metrics: Outcome['metrics'];
}

export const greater = (x: Variable, y: Variable): Variable => x.test((value, i) => value > y.value[i]!);

/**
 * Clips the ratio exp(d) to the two bounds. Where the advantage is negative, a token's loss is at most `ratioCap` times
 * the advantage's size.
 */
export function dualClip(
  x: Tokens,
  d: Variable,
  advantages: Variable,
  [low, high]: readonly [number, number],
  ratioCap: number,
): TokenLosses {
  const ratio = d.exp();
  const p1 = advantages.neg().mul(ratio);
  const p2 = advantages.neg().mul(ratio.clip(low, high));
  const c = p1.max(p2);
  const p3 = advantages.neg().mul(ratioCap);
  const negative = advantages.test((a) => a < 0);
  return {
    perToken: negative.choose(p3.min(c), c),
    metrics: {
      pg_clipfrac: x.mean(greater(p2, p1)),
      pg_clipfrac_lower: x.mean(greater(c, p3).mul(negative)),
      ppo_kl: x.mean(d.neg()),
    },
  };
}
