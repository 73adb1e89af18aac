/**
 * Losses that clip the importance ratio in other ways than PPO: the bounds depend on the batch or on the entropy (bapo,
 * m2po_clip, aspo), clipped tokens keep a gradient (ce_gppo, erc), or the ratio or its weight is another one (up, fipo,
 * segment_ppo, rollout_is).
 */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, type Tokens } from '../batch.js';
import { dualClip, greater, limited, surrogate, type TokenLosses } from '../dual-clip.js';
import {
  isNegative,
  isPositive,
  not,
  orNull,
  quantile,
  ratioBounds,
  runMean,
  tokenMean,
  unitRatio,
} from './shared.js';

/** Makes a loss from the losses of its tokens. */
const summed =
  (tokenLosses: (x: Tokens, args: Args) => TokenLosses): Formula =>
  (x, args) => {
    const { perToken, metrics } = tokenLosses(x, args);
    const loss = x.aggregate(perToken, option(args, 'loss_agg_mode', 'token-mean'));
    return { loss, metrics: { ...metrics, pg_loss: loss } };
  };

const dualCap = (args: Args, fallback: number | null) => orNull(args, 'clip_ratio_c', fallback);

/**
 * A surrogate whose clipped tokens keep a gradient: `below` times it under the range, `above` times it over the range.
 * `clipped` flags these tokens.
 */
function gentleSurrogate(
  advantages: Variable,
  ratio: Variable,
  [low, high]: readonly [number, number],
  scale: { below: number; above: number },
): { perToken: Variable; clipped: Variable } {
  const under = ratio.test((r) => r < low).mul(isNegative(advantages));
  const over = ratio.test((r) => r > high).mul(isPositive(advantages));
  const unit = ratio.div(ratio.detach());
  const weight = under.choose(unit.mul(scale.below * low), over.choose(unit.mul(scale.above * high), ratio));
  return { perToken: advantages.neg().mul(weight), clipped: under.add(over) };
}

const ceGppo = summed((x, args) => {
  const d = x.logprob.sub(x.oldLogprob);
  const scale = { below: option(args, 'beta1', 0.75), above: option(args, 'beta2', 1) };
  const gentle = gentleSurrogate(x.advantages, d.exp(), ratioBounds(args, 0.2, 0.2), scale);
  const { perToken, cut } = limited(gentle.perToken, x.advantages, dualCap(args, 10));
  return {
    perToken,
    metrics: {
      pg_clipfrac: x.mean(gentle.clipped),
      pg_clipfrac_lower: x.mean(cut),
      ppo_kl: x.mean(d.neg()),
    },
  };
});

/** Only tokens whose entropy stays near its old value have a gradient. All tokens count in the loss. */
const erc = summed((x, args) => {
  const { advantages } = x;
  const d = x.logprob.sub(x.oldLogprob).clip(-20, 20);
  const bounds = ratioBounds(args, 0.2, 0.28);
  const ppo = surrogate(advantages, d.exp(), bounds);
  const { perToken, clipped } =
    option<string>(args, 'base', 'ppo') === 'ppo'
      ? { perToken: ppo.perToken, clipped: greater(ppo.clipped, ppo.unclipped) }
      : gentleSurrogate(advantages, d.exp(), bounds, { below: 1, above: 1 });
  const loss = limited(perToken, advantages, dualCap(args, 10)).perToken;
  const low = option(args, 'entropy_ratio_low', 0.95);
  const high = option(args, 'entropy_ratio_high', 1.05);
  const entropyRatio = x.constant('entropy').add(1e-8).div(x.constant('oldEntropy').add(1e-8));
  const isNear = entropyRatio.test((ratio) => ratio > low && ratio < high);
  return {
    perToken: isNear.choose(loss, loss.detach()),
    metrics: {
      pg_clipfrac: x.mean(clipped),
      ppo_kl: x.mean(d.neg()),
      entropy_kept_fraction: tokenMean(x, isNear),
    },
  };
});

const up = summed((x, args) => {
  const { advantages, logprob } = x;
  const d = logprob.sub(x.oldLogprob);
  const [low, high] = ratioBounds(args, 0.2, 0.2);
  const ppo = dualClip(x, d, advantages, [low, high], dualCap(args, null));
  const reinforced = advantages.neg().mul(unitRatio(logprob));
  const below = d.exp().test((r) => r < low);
  return {
    perToken: isPositive(advantages).choose(reinforced, ppo.perToken),
    metrics: { ...ppo.metrics, pg_clipfrac: x.mean(below.mul(isNegative(advantages))) },
  };
});

/**
 * Returns the sum of the clipped A·r over the tokens where it is positive, divided by that where it is negative. It is
 * infinite if there are none of the latter.
 */
function balance(advantages: Variable, ratio: Variable, low: number, high: number, epsilon: number): number {
  let [gain, loss] = [0, 0];
  ratio.value.forEach((r, i) => {
    const a = advantages.value[i]!;
    const term = a * (a >= 0 ? Math.min(r, high) : Math.max(r, low));
    gain += Math.max(term, 0);
    loss += Math.max(-term, 0);
  });
  return loss > 0 ? gain / (loss + epsilon) : Number.POSITIVE_INFINITY;
}

/** Raises the bounds of the ratio, first the lower and then the upper, until the balance reaches its target. */
function adaptedBounds(args: Args, balanceOf: (low: number, high: number) => number): [number, number] {
  const target = option(args, 'adv_ratio_target', 1);
  let low = option(args, 'ratio_lower_start', 0.6);
  let high = option(args, 'ratio_upper_start', 1.2);
  const [lowStep, lowMost] = [option(args, 'ratio_lower_step', 0.05), option(args, 'ratio_lower_max', 0.8)];
  const [highStep, highMost] = [option(args, 'ratio_upper_step', 0.05), option(args, 'ratio_upper_max', 2)];
  while (lowStep > 0 && low < lowMost && balanceOf(low, high) < target)
    low = Math.min(low + lowStep, lowMost);
  while (highStep > 0 && high < highMost && balanceOf(low, high) < target)
    high = Math.min(high + highStep, highMost);
  return [low, high];
}

const bapo = summed((x, args) => {
  const d = x.logprob.sub(x.oldLogprob).clip(-20, 20);
  const ratio = d.detach().exp();
  const balanceOf = (low: number, high: number) =>
    balance(x.advantages, ratio, low, high, option(args, 'eps', 1e-8));
  const [low, high] = adaptedBounds(args, balanceOf);
  const { perToken, metrics } = dualClip(x, d, x.advantages, [low, high], dualCap(args, 3));
  const reached = balanceOf(low, high);
  return {
    perToken,
    metrics: {
      ...metrics,
      clip_low: low,
      clip_high: high,
      ...(Number.isFinite(reached) ? { pos_neg_ratio: reached } : {}),
    },
  };
});

/** Flags the tokens whose entropy is at most the quantile of their row. */
function lowEntropy(x: Tokens, q: number): Variable {
  const entropy = x.constant('entropy');
  const quantiles = x.rows.map((_, row) =>
    quantile(
      entropy.value.filter((_, i) => x.rowOf[i] === row),
      q,
    ),
  );
  return entropy.test((h, i) => h <= quantiles[x.rowOf[i]!]!);
}

/** Weighs positive tokens by the inverse of their ratio. Tokens with too large a weight get a plain policy gradient. */
const aspo = summed((x, args) => {
  const { advantages, logprob } = x;
  const ratio = logprob.sub(x.oldLogprob).clip(-20, 20).exp();
  const isLow = lowEntropy(x, option(args, 'entropy_quantile', 0.8));
  const range = (side: 'low' | 'high') =>
    isLow.choose(
      option(args, `low_entropy_clip_range_${side}`, 0.2),
      option(args, `high_entropy_clip_range_${side}`, 0.4),
    );
  const negative = isNegative(advantages);
  const bounded = negative.choose(ratio.max(range('low').neg().add(1)), ratio.min(range('high').add(1)));
  // The value of the flipped ratio is 1/bounded, but its derivative has the sign of that of the ratio.
  const flipped = bounded.div(bounded.detach().square());
  const weight = negative.choose(bounded, flipped);
  const cap = negative.choose(
    option(args, 'negative_clip_ratio_c', 3),
    option(args, 'positive_clip_ratio_c', 3),
  );
  const isTooLarge = greater(weight, cap);
  const share = (flags: Variable) => isTooLarge.mul(flags).sum().div(flags.sum().add(1e-8));
  return {
    perToken: advantages.neg().mul(isTooLarge.choose(cap.mul(logprob), weight)),
    metrics: {
      pg_clipfrac_upper: x.mean(greater(ratio, bounded)),
      pg_clipfrac_lower: x.mean(greater(bounded, ratio)),
      negative_clipfrac_dual: share(negative),
      positive_clipfrac_dual: share(isPositive(advantages)),
    },
  };
});

interface BudgetRange {
  /** How far the clip range reaches below and above 1. */
  low: number;
  high: number;
  /** The second moment of the log-ratios before and after clipping. */
  m2: number;
  m2After: number;
}

/** Clips the squares so that their mean is within the budget. They are in ascending order. */
function withinBudget(squares: Float64Array, args: Args): BudgetRange {
  const n = squares.length;
  let total = 0;
  const sums = Array.from(squares, (v) => (total += v));
  const m2 = n ? total / n : 0;
  const budget = option(args, 'm2_budget', 0.04);
  if (m2 <= budget + 1e-12) return { low: 1, high: 99999, m2, m2After: m2 };

  const first = squares.findIndex((v, k) => (v - 1e-12) * (n - k - 1) + sums[k]! >= budget * n - 1e-12);
  const last = first - 1;
  const reach = first === 0 ? 0 : Math.sqrt(squares[last]! - 1e-12);
  return {
    low: Math.max(1 - Math.exp(-reach), option(args, 'miniclip_low', 0.3)),
    high: Math.max(Math.exp(reach) - 1, option(args, 'miniclip_high', 0.5)),
    m2,
    m2After: first === 0 ? m2 : (squares[last]! * (n - first) + sums[last]!) / n,
  };
}

const m2poClip = summed((x, args) => {
  const { advantages } = x;
  const d = x.logprob.sub(x.oldLogprob);
  const ratio = d.exp();
  // The tokens that moved in the direction that their advantage favours.
  const moved = ratio.test((r, i) => {
    const a = advantages.value[i]!;
    return (a > 1e-12 && r > 1 + 1e-12) || (a < -1e-12 && r < 1 - 1e-12);
  });
  const squares = d
    .detach()
    .square()
    .value.filter((_, i) => moved.value[i]);
  const { low, high, m2, m2After } = withinBudget(squares.sort(), args);
  const ppo = surrogate(advantages, ratio, [1 - low, 1 + high]);
  return {
    perToken: ppo.perToken,
    metrics: {
      pg_clipfrac: x.mean(greater(ppo.clipped, ppo.unclipped)),
      ppo_kl: x.mean(d.neg()),
      clip_low: low,
      clip_high: high,
      m2,
      m2_after: m2After,
    },
  };
});

/** Returns for each token the sum over its row from the token on, discounted by the distance in columns. */
function discountedFuture(x: Tokens, values: Variable, discount: number): Variable {
  const sums = values.value.slice();
  for (let i = sums.length - 2; i >= 0; i--)
    if (x.rowOf[i] === x.rowOf[i + 1]) sums[i]! += discount ** (x.index[i + 1]! - x.index[i]!) * sums[i + 1]!;
  return x.tape.leaf(sums);
}

/** Returns the weight of each token for the policy's changes after it, and which tokens are not kept down by it. */
function futureInfluence(x: Tokens, args: Args, ratio: Variable, future: Variable) {
  const range = orNull(args, 'influence_clip_range', 0.2) ?? 0;
  const least = option(args, 'influence_clip_high_only', true) ? 1 : 1 - range;
  const influence = range === 0 ? future.exp() : future.exp().clip(least, 1 + range);
  const threshold = orNull(args, 'safety_threshold', 4) ?? Number.POSITIVE_INFINITY;
  const isUnsafe = ratio.test((r) => r > threshold).mul(isNegative(x.advantages));
  return { weight: isUnsafe.choose(influence.clip(0.8, 1), influence), isSafe: not(isUnsafe) };
}

const fipo = summed((x, args) => {
  const { advantages } = x;
  const [low, high] = ratioBounds(args, 0.2, 0.28);
  const cap = option(args, 'delta', Number.POSITIVE_INFINITY);
  const d = x.logprob.sub(x.oldLogprob);
  const ratio = d.exp();
  const counted = ratio.test((r) => r > cap).choose(0, d.detach());
  const future = discountedFuture(x, counted, 2 ** (-1 / option(args, 'decay_rate', 32)));
  const { weight, isSafe } = futureInfluence(x, args, ratio, future);
  const capped = ratio.clip(Number.NEGATIVE_INFINITY, cap);
  const { clipped } = surrogate(advantages, ratio, [low, high]);
  const outside = (holds: (r: number) => boolean, flags: Variable) =>
    tokenMean(x, capped.test(holds).mul(flags));
  return {
    perToken: advantages.neg().mul(capped).max(clipped).mul(weight),
    metrics: {
      future_kl_mean: tokenMean(x, future),
      influence_weight_mean: tokenMean(x, weight),
      safety_keep_ratio: tokenMean(x, isSafe),
      low_clip: outside((r) => r < low, isNegative(advantages)),
      high_clip: outside((r) => r > high, isPositive(advantages)),
    },
  };
});

const segmentPpo = summed((x, args) => {
  const [low, high] = ratioBounds(args, 0.2, 0.2);
  const d = runMean(x, x.logprob.sub(x.oldLogprob));
  return {
    perToken: dualClip(x, d, x.advantages, [low, high], dualCap(args, null)).perToken,
    metrics: {
      ratio_high_clipfrac: x.mean(d.exp().test((r) => r > high)),
      ratio_low_clipfrac: x.mean(d.exp().test((r) => r < low)),
    },
  };
});

const rolloutIs = summed((x, args) => {
  const [low, high] = ratioBounds(args, 0.2, 0.28);
  const ratio = x.logprob.sub(x.column('rolloutLogprob')).detach().clip(-20, 20).exp();
  const inside = ratio.test((r) => r > low && r < high);
  return {
    perToken: x.advantages.neg().mul(ratio.mul(inside)).mul(x.logprob),
    metrics: { pg_clipfrac: tokenMean(x, not(inside)) },
  };
});

export const clippedFormulas: Record<string, Formula> = {
  ce_gppo: ceGppo,
  erc,
  up,
  bapo,
  aspo,
  m2po_clip: m2poClip,
  fipo,
  segment_ppo: segmentPpo,
  rollout_is: rolloutIs,
};
