/** Losses that clip the importance ratio in new ways: where a fact of the batch or the entropy says, or not to zero. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, type Tokens } from '../batch.js';
import {
  complement,
  dualClip,
  greater,
  isNegative,
  isPositive,
  quantile,
  runMean,
  surrogate,
  tokenMean,
  unitRatio,
} from './shared.js';

const aggregated = (x: Tokens, args: Args, perToken: Variable): Variable =>
  x.aggregate(perToken, option(args, 'loss_agg_mode', 'token-mean'));
const dualCap = (args: Args, fallback: number | null): number | null =>
  args.clip_ratio_c === null ? null : option(args, 'clip_ratio_c', fallback);
const clipBounds = (args: Args, low: number, high: number): [number, number] => [
  1 - option(args, 'clip_range_low', low),
  1 + option(args, 'clip_range_high', high),
];
const outcome = (x: Tokens, args: Args, perToken: Variable, metrics: Outcome['metrics']): Outcome => {
  const loss = aggregated(x, args, perToken);
  return { loss, metrics: { pg_loss: loss, ...metrics } };
};

/**
 * A surrogate whose clipped tokens keep a gradient: beta1 of it below the range, beta2 of it above. `clipped` flags
 * these tokens.
 */
function gentleSurrogate(
  advantages: Variable,
  ratio: Variable,
  [low, high]: [number, number],
  [beta1, beta2]: [number, number],
): { loss: Variable; clipped: Variable } {
  const below = ratio.test((r) => r < low).mul(isNegative(advantages));
  const above = ratio.test((r) => r > high).mul(isPositive(advantages));
  const unit = ratio.div(ratio.detach());
  const factor = below.choose(unit.mul(beta1 * low), above.choose(unit.mul(beta2 * high), ratio));
  return { loss: advantages.neg().mul(factor), clipped: below.add(above) };
}

const ceGppo: Formula = (x, args) => {
  const { advantages } = x;
  const d = x.logprob.sub(x.oldLogprob);
  const betas: [number, number] = [option(args, 'beta1', 0.75), option(args, 'beta2', 1)];
  const gentle = gentleSurrogate(advantages, d.exp(), clipBounds(args, 0.2, 0.2), betas);
  const { loss, cut } = dualClip(gentle.loss, advantages, dualCap(args, 10));
  return outcome(x, args, loss, {
    pg_clipfrac: x.mean(gentle.clipped),
    pg_clipfrac_lower: x.mean(cut),
    ppo_kl: x.mean(d.neg()),
  });
};

/** Only tokens whose entropy stays near its old value have a gradient. All of them count in the loss. */
const erc: Formula = (x, args) => {
  const { advantages } = x;
  const d = x.logprob.sub(x.oldLogprob).clip(-20, 20);
  const bounds = clipBounds(args, 0.2, 0.28);
  const ppo = surrogate(advantages, d.exp(), ...bounds);
  const { loss, clipped } =
    option(args, 'base', 'ppo') === 'ppo'
      ? { loss: ppo.loss, clipped: greater(ppo.clipped, ppo.unclipped) }
      : gentleSurrogate(advantages, d.exp(), bounds, [1, 1]);
  const limited = dualClip(loss, advantages, dualCap(args, 10)).loss;
  const low = option(args, 'entropy_ratio_low', 0.95);
  const high = option(args, 'entropy_ratio_high', 1.05);
  const near = x
    .constant('entropy')
    .add(1e-8)
    .div(x.constant('oldEntropy').add(1e-8))
    .test((z) => z > low && z < high);
  return outcome(x, args, near.choose(limited, limited.detach()), {
    pg_clipfrac: x.mean(clipped),
    ppo_kl: x.mean(d.neg()),
    entropy_kept_fraction: tokenMean(x, near),
  });
};

const up: Formula = (x, args) => {
  const { advantages, logprob } = x;
  const d = logprob.sub(x.oldLogprob);
  const [low, high] = clipBounds(args, 0.2, 0.2);
  const clipped = surrogate(advantages, d.exp(), low, high);
  const { loss, cut } = dualClip(clipped.loss, advantages, dualCap(args, null));
  const below = d.exp().test((r) => r < low);
  const perToken = isPositive(advantages).choose(advantages.neg().mul(unitRatio(logprob)), loss);
  return outcome(x, args, perToken, {
    pg_clipfrac: x.mean(below.mul(isNegative(advantages))),
    pg_clipfrac_lower: x.mean(cut),
    ppo_kl: x.mean(d.neg()),
  });
};

interface Bounds {
  low: number;
  high: number;
  /** The positive part of the surrogate divided by the negative part; infinite without a negative part. */
  balance: number;
}

/** Widens the bounds step by step, until the positive part of the surrogate is `adv_ratio_target` of the negative. */
function adaptiveBounds(advantages: ArrayLike<number>, ratio: Float64Array, args: Args): Bounds {
  const balance = (low: number, high: number) => {
    let [gain, pain] = [0, 0];
    ratio.forEach((r, i) => {
      const a = advantages[i]!;
      const term = a * (a >= 0 ? Math.min(r, high) : Math.max(r, low));
      gain += Math.max(term, 0);
      pain += Math.max(-term, 0);
    });
    return pain > 0 ? gain / (pain + option(args, 'eps', 1e-8)) : Number.POSITIVE_INFINITY;
  };
  const target = option(args, 'adv_ratio_target', 1);
  let low = option(args, 'ratio_lower_start', 0.6);
  let high = option(args, 'ratio_upper_start', 1.2);
  const [lowStep, lowest] = [option(args, 'ratio_lower_step', 0.05), option(args, 'ratio_lower_max', 0.8)];
  const [highStep, highest] = [option(args, 'ratio_upper_step', 0.05), option(args, 'ratio_upper_max', 2)];
  while (lowStep > 0 && balance(low, high) < target && low < lowest) low = Math.min(low + lowStep, lowest);
  while (highStep > 0 && balance(low, high) < target && high < highest)
    high = Math.min(high + highStep, highest);
  return { low, high, balance: balance(low, high) };
}

const bapo: Formula = (x, args) => {
  const { advantages } = x;
  const d = x.logprob.sub(x.oldLogprob).clip(-20, 20);
  const ratio = d.exp();
  const { low, high, balance } = adaptiveBounds(advantages.value, ratio.detach().value, args);
  const clipped = surrogate(advantages, ratio, low, high);
  const { loss, cut } = dualClip(clipped.loss, advantages, dualCap(args, 3));
  return outcome(x, args, loss, {
    pg_clipfrac: x.mean(greater(clipped.clipped, clipped.unclipped)),
    pg_clipfrac_lower: x.mean(cut),
    ppo_kl: x.mean(d.neg()),
    clip_low: low,
    clip_high: high,
    ...(Number.isFinite(balance) ? { pos_neg_ratio: balance } : {}),
  });
};

/** Flags the tokens whose entropy is at most the quantile of their row. */
function lowEntropy(x: Tokens, q: number): Variable {
  const entropy = x.constant('entropy');
  const ofRow = x.rows.map((_, b) =>
    quantile(
      entropy.value.filter((_, i) => x.rowOf[i] === b),
      q,
    ),
  );
  return entropy.test((h, i) => h <= ofRow[x.rowOf[i]!]!);
}

/** Positive tokens weigh the inverse of their ratio. A weight beyond its bound becomes a plain policy gradient. */
const aspo: Formula = (x, args) => {
  const { advantages, logprob } = x;
  const ratio = logprob.sub(x.oldLogprob).clip(-20, 20).exp();
  const low = lowEntropy(x, option(args, 'entropy_quantile', 0.8));
  const range = (side: 'low' | 'high', ofLow: number, ofHigh: number) =>
    low.choose(
      option(args, `low_entropy_clip_range_${side}`, ofLow),
      option(args, `high_entropy_clip_range_${side}`, ofHigh),
    );
  const negative = isNegative(advantages);
  const clipped = negative.choose(
    ratio.max(complement(range('low', 0.2, 0.4))),
    ratio.min(range('high', 0.2, 0.4).add(1)),
  );
  const caps = {
    negative: option(args, 'negative_clip_ratio_c', 3),
    positive: option(args, 'positive_clip_ratio_c', 3),
  };
  const tooLarge = clipped.test((s, i) =>
    advantages.value[i]! < 0 ? s > caps.negative : 1 / s > caps.positive,
  );
  const flipped = clipped.div(clipped.square().detach());
  const weight = tooLarge.choose(
    negative.choose(caps.negative, caps.positive).mul(logprob),
    negative.choose(clipped, flipped),
  );
  const share = (of: Variable) =>
    tooLarge
      .mul(of)
      .sum()
      .div(of.sum().item + 1e-8);
  return outcome(x, args, advantages.neg().mul(weight), {
    pg_clipfrac_upper: x.mean(greater(ratio, clipped)),
    pg_clipfrac_lower: x.mean(greater(clipped, ratio)),
    negative_clipfrac_dual: share(negative),
    positive_clipfrac_dual: share(isPositive(advantages)),
  });
};

/** The clip ranges that keep the second moment of the log-ratios of harmful tokens within the budget. */
function budgetRanges(
  advantages: ArrayLike<number>,
  d: Float64Array,
  args: Args,
): { low: number; high: number; m2: number; m2After: number } {
  const tiny = 1e-12;
  const harmful = (difference: number, a: number) =>
    (a > tiny && Math.exp(difference) > 1 + tiny) || (a < -tiny && Math.exp(difference) < 1 - tiny);
  const v = d
    .filter((difference, i) => harmful(difference, advantages[i]!))
    .map((difference) => difference ** 2)
    .sort();
  const n = v.length;
  const running: number[] = [];
  for (const value of v) running.push((running.at(-1) ?? 0) + value);
  const m2 = n ? running.at(-1)! / n : 0;
  const budget = option(args, 'm2_budget', 0.04);
  if (m2 <= budget + tiny) return { low: 1, high: 99999, m2, m2After: m2 };

  const k = v.findIndex((value, i) => (value - tiny) * (n - i - 1) + running[i]! >= budget * n - tiny);
  const reach = k === 0 ? 0 : Math.sqrt(v[k - 1]! - tiny);
  return {
    low: Math.max(1 - Math.exp(-reach), option(args, 'miniclip_low', 0.3)),
    high: Math.max(Math.exp(reach) - 1, option(args, 'miniclip_high', 0.5)),
    m2,
    m2After: k === 0 ? m2 : (v[k - 1]! * (n - k) + running[k - 1]!) / n,
  };
}

const m2poClip: Formula = (x, args) => {
  const { advantages } = x;
  const d = x.logprob.sub(x.oldLogprob);
  const { low, high, m2, m2After } = budgetRanges(advantages.value, d.detach().value, args);
  const { loss, clipped, unclipped } = surrogate(advantages, d.exp(), 1 - low, 1 + high);
  return outcome(x, args, loss, {
    pg_clipfrac: x.mean(greater(clipped, unclipped)),
    ppo_kl: x.mean(d.neg()),
    clip_low: low,
    clip_high: high,
    m2,
    m2_after: m2After,
  });
};

/** Returns, for each token, the sum over the row's tokens from it on, discounted by their distance in columns. */
function discountedFuture(x: Tokens, values: Float64Array, discount: number): Float64Array {
  const future = Float64Array.from(values);
  for (let i = future.length - 2; i >= 0; i--) {
    if (x.rowOf[i] !== x.rowOf[i + 1]) continue;
    future[i]! += discount ** (x.index[i + 1]! - x.index[i]!) * future[i + 1]!;
  }
  return future;
}

/** Weighs each token by the change of the policy on the tokens after it. */
const fipo: Formula = (x, args) => {
  const { advantages } = x;
  const [low, high] = clipBounds(args, 0.2, 0.28);
  const cap = option(args, 'delta', Number.POSITIVE_INFINITY);
  const d = x.logprob.sub(x.oldLogprob);
  const ratio = d.exp();
  const counted = ratio.test((r) => r > cap).choose(0, d.detach());
  const discount = 2 ** (-1 / option(args, 'decay_rate', 32));
  const future = x.tape.leaf(discountedFuture(x, counted.value, discount));

  const range = args.influence_clip_range === null ? 0 : option(args, 'influence_clip_range', 0.2);
  const least = option(args, 'influence_clip_high_only', true) ? 1 : 1 - range;
  const influence = range ? future.exp().clip(least, 1 + range) : future.exp();
  const threshold =
    args.safety_threshold === null ? Number.POSITIVE_INFINITY : option(args, 'safety_threshold', 4);
  const unsafe = ratio.test((r) => r > threshold).mul(isNegative(advantages));
  const weight = unsafe.choose(influence.clip(0.8, 1), influence);

  const capped = ratio.clip(Number.NEGATIVE_INFINITY, cap);
  const clipped = surrogate(advantages, ratio, low, high).clipped;
  return outcome(x, args, advantages.neg().mul(capped).max(clipped).mul(weight), {
    future_kl_mean: tokenMean(x, future),
    influence_weight_mean: tokenMean(x, weight),
    safety_keep_ratio: tokenMean(x, complement(unsafe)),
    low_clip: tokenMean(x, capped.test((r) => r < low).mul(isNegative(advantages))),
    high_clip: tokenMean(x, capped.test((r) => r > high).mul(isPositive(advantages))),
  });
};

/** The tokens of a contiguous run share the mean of their log-ratios, and the gradient goes through this mean. */
const segmentPpo: Formula = (x, args) => {
  const { advantages } = x;
  const [low, high] = clipBounds(args, 0.2, 0.2);
  const ratio = runMean(x, x.logprob.sub(x.oldLogprob)).exp();
  const clipped = surrogate(advantages, ratio, low, high);
  return outcome(x, args, dualClip(clipped.loss, advantages, dualCap(args, null)).loss, {
    ratio_high_clipfrac: x.mean(ratio.test((r) => r > high)),
    ratio_low_clipfrac: x.mean(ratio.test((r) => r < low)),
  });
};

const rolloutIs: Formula = (x, args) => {
  const [low, high] = clipBounds(args, 0.2, 0.28);
  const { logprob } = x;
  const ratio = logprob.sub(x.constant('rolloutLogprob')).detach().clip(-20, 20).exp();
  const inside = ratio.test((r) => r > low && r < high);
  return outcome(x, args, ratio.mul(inside).neg().mul(x.advantages).mul(logprob), {
    pg_clipfrac: tokenMean(x, complement(inside)),
  });
};

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
