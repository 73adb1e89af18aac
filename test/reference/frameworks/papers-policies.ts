/**
 * Losses with three policies (decoupled_ppo, m2po), with bounds on the change of probabilities (prime_rl, prime_rl_ipo,
 * ref_kl), and of groups (real).
 */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, type Tokens } from '../batch.js';
import { greater, limited, surrogate } from '../dual-clip.js';
import { k3, klEstimators } from '../kl.js';
import {
  type Bound,
  bounded,
  groupOfRows,
  isNegative,
  isPositive,
  meanOfRow,
  not,
  ones,
  orNull,
  perCount,
  ratioBounds,
  tokenMean,
  within,
} from './shared.js';

/** The mean over the flagged tokens, with the epsilon that metrics have. */
const flaggedMean = (flags: Variable, values: Variable): Variable =>
  flags.choose(values, 0).sum().div(flags.sum().add(1e-8));

function ofRow(x: Tokens, how: string, values: Variable): Variable {
  if (how === 'sum') return x.rowSum(values);
  if (how === 'mean') return meanOfRow(x, values);
  return values.extremeBy(x.rowOf, x.rows.length, 1);
}

interface Rejection {
  /** Flags the tokens that stay in the loss. */
  kept: Variable;
  weights: Variable;
  /** Flags the tokens that are rejected, or whose weight is limited. */
  filtered: Variable;
}

/** Rejects tokens or rows on which prox and old differ too much, or limits their weights. `log` is prox − old. */
function rejection(x: Tokens, args: Args, log: Variable): Rejection | null {
  const level = option<string | null>(args, 'rejection_level', null);
  if (level === null) return null;
  const metric = option<string>(args, 'rejection_metric', 'ratio');
  const perRow = level === 'sequence';
  // Their difference is old − prox, so k1 is `log` itself.
  const statistic = metric === 'ratio' ? log : klEstimators[metric.replace('kl_', '')]!.formula(log.neg(), x);
  const judged = perRow ? x.spread(ofRow(x, option(args, 'rejection_agg', 'sum'), statistic)) : statistic;
  const low = option<Bound>(args, 'rejection_lower', null);
  const high = orNull(args, 'rejection_upper', 5);
  const inside = within(metric === 'ratio' ? judged.exp() : judged, low, high);
  const weights = (perRow && metric === 'ratio' ? x.spread(meanOfRow(x, log)) : log).exp();
  if (option(args, 'rejection_action', 'mask') === 'mask')
    return { kept: inside, weights, filtered: not(inside) };
  const clamped = inside.choose(weights, bounded(weights, low, high));
  const isChanged = clamped.test((weight, i) => weight !== weights.value[i]);
  return { kept: ones(x), weights: clamped, filtered: isChanged };
}

const decoupledPpo: Formula = (x, args) => {
  const prox = x.column('proxLogprob');
  const log = prox.sub(x.oldLogprob);
  const rejected = rejection(x, args, log);
  const { kept, weights } = rejected ?? { kept: ones(x), weights: ones(x) };

  const d = x.logprob.sub(prox);
  const perRow = option<string>(args, 'importance_sampling_level', 'token') === 'sequence';
  const ofLevel = (values: Variable) =>
    perRow ? x.spread(perCount(x.rowSum(values.mul(kept)), x.rowSum(kept))) : values;
  const [ratio, advantages] = [ofLevel(d).exp(), ofLevel(x.advantages)];
  const ppo = surrogate(advantages, ratio, ratioBounds(args, 0.2, 0.2));
  const { perToken, cut } = limited(ppo.perToken, advantages, option<Bound>(args, 'clip_ratio_c', null));
  const counted = option(args, 'rejected_in_denominator', true) ? ones(x) : kept;
  const loss = perCount(kept.choose(perToken.mul(weights), 0).sum(), counted.sum());

  const metrics: Outcome['metrics'] = {
    pg_loss: loss,
    importance_weight: x.mean(kept.mul(ratio)),
    approx_kl: x.mean(d),
    clip_ratio: x.mean(kept.mul(greater(ppo.clipped, ppo.unclipped))),
    dual_clip_ratio: x.mean(kept.mul(cut)),
  };
  if (rejected) {
    const weighed = kept.mul(isPositive(weights));
    metrics.behave_imp_weight = flaggedMean(weighed, weights);
    metrics.behave_approx_kl = flaggedMean(weighed, log);
    metrics.filtered_fraction = tokenMean(x, rejected.filtered);
  }
  return { loss, metrics };
};

/** Flags the values that remain when the largest are dropped until the mean is below a threshold. One always remains. */
function withoutLargest(values: Variable, threshold: number): Variable {
  const ascending = Array.from(values.value.keys()).sort((i, j) => values.value[i]! - values.value[j]!);
  let remaining = 1;
  let sum = 0;
  ascending.forEach((i, k) => {
    sum += values.value[i]!;
    if (sum / (k + 1) < threshold) remaining = k + 1;
  });
  const kept = new Set(ascending.slice(0, remaining));
  return values.test((_, i) => kept.has(i));
}

const m2po: Formula = (x, args) => {
  const { advantages } = x;
  const prox = x.column('proxLogprob');
  const kept = withoutLargest(x.oldLogprob.sub(prox).square(), option(args, 'm2_threshold', 0.04));
  const d = x.logprob.sub(prox);
  const ppo = surrogate(advantages, d.exp(), ratioBounds(args, 0.2, 0.2));
  const { perToken, cut } = limited(ppo.perToken, advantages, option<Bound>(args, 'clip_ratio_c', null));
  const loss = perCount(kept.choose(perToken, 0).sum(), kept.sum());
  return {
    loss,
    metrics: {
      pg_loss: loss,
      importance_weight: flaggedMean(kept, d.exp()),
      approx_kl: flaggedMean(kept, d),
      clip_ratio: flaggedMean(kept, greater(ppo.clipped, ppo.unclipped)),
      dual_clip_ratio: flaggedMean(kept, cut),
      m2_masked_fraction: tokenMean(x, not(kept)),
    },
  };
};

/** How much the probability of each token has changed. */
const probabilityChange = (x: Tokens): Variable => x.logprob.exp().sub(x.oldLogprob.exp());

/** The mean over all rows of each row's mean over its flagged tokens. */
const meanOverRows = (x: Tokens, flags: Variable, values: Variable): Variable =>
  x.meanOverRows(perCount(x.rowSum(flags.choose(values, 0)), x.rowSum(flags)));

/** Reinforces the tokens that are not dropped, and penalizes the square of the log-ratio of all of them. */
function trustRegion(x: Tokens, args: Args, advantages: Variable, dropped: Variable): Outcome {
  const d = x.logprob.sub(x.oldLogprob);
  const reinforced = dropped.choose(0, advantages.neg().mul(d.exp()));
  const loss = tokenMean(x, reinforced.add(d.square().mul(option(args, 'kl_tau', 1e-3))));
  return {
    loss,
    metrics: {
      pg_loss: loss,
      masked_mismatch_kl: meanOverRows(x, dropped, k3(d)),
      unmasked_mismatch_kl: meanOverRows(x, not(dropped), k3(d)),
      is_masked: meanOverRows(x, ones(x), dropped),
    },
  };
}

const primeRl: Formula = (x, args) => {
  const { advantages } = x;
  const change = probabilityChange(x);
  const tooLow = change.test((c) => c < -option(args, 'dppo_mask_low', 0.2));
  const tooHigh = change.test((c) => c > option(args, 'dppo_mask_high', 0.2));
  const [positive, negative] = [isPositive(advantages), isNegative(advantages)];
  const dropped = positive.choose(tooHigh, tooLow);
  const { loss, metrics } = trustRegion(x, args, advantages.mul(option(args, 'adv_tau', 1)), dropped);
  return {
    loss,
    metrics: {
      ...metrics,
      is_masked_low: meanOverRows(x, ones(x), negative.mul(tooLow)),
      is_masked_high: meanOverRows(x, ones(x), positive.mul(tooHigh)),
      masked_advantage_positive: meanOverRows(x, dropped, positive),
      masked_advantage_negative: meanOverRows(x, dropped, negative),
    },
  };
};

const primeRlIpo: Formula = (x, args) => {
  const threshold = option(args, 'ipo_threshold', 0.1);
  const dropped = probabilityChange(x).test((change) => Math.abs(change) > threshold);
  return trustRegion(x, args, x.advantages.mul(option(args, 'adv_tau', 1)), dropped);
};

const refKl: Formula = (x, args) => {
  const low = orNull(args, 'mask_low', 0.2) ?? Number.POSITIVE_INFINITY;
  const dropped = probabilityChange(x).test((change) => change < -low);
  const distance = x.refLogprob.sub(x.logprob).detach();
  const { loss, metrics } = trustRegion(x, args, distance.mul(option(args, 'coef', 1)), dropped);
  return { loss, metrics: { ...metrics, ref_kl: meanOverRows(x, ones(x), distance) } };
};

/** Returns ln(1 + Σ e^z) over the flagged rows of each group. */
function logOnePlusSum(z: Variable, flags: Variable, groupOf: number[], groups: number): Variable {
  // The largest exponent is subtracted, so that e^z does not overflow.
  const largest = flags.choose(z, 0).detach().extremeBy(groupOf, groups, 1).max(0);
  const sum = flags.choose(z.sub(largest.gather(groupOf)).exp(), 0).sumBy(groupOf, groups);
  return sum.add(largest.neg().exp()).log().add(largest);
}

/** Classifies the rows of each group: those with a positive advantage, and all others. */
const real: Formula = (x, args) => {
  const tau = option(args, 'tau', 0.5);
  const score = meanOfRow(x, x.logprob.sub(x.oldLogprob)).div(tau);
  const positive = isPositive(meanOfRow(x, x.advantages));
  const negative = not(positive);
  const groupOf = groupOfRows(x);
  const groups = new Set(groupOf).size;
  const both = positive.sumBy(groupOf, groups).mul(negative.sumBy(groupOf, groups));
  const perGroup = logOnePlusSum(score, negative, groupOf, groups).add(
    logOnePlusSum(score.neg(), positive, groupOf, groups),
  );
  const loss = isPositive(both)
    .choose(perGroup, 0)
    .sum()
    .div(groups || 1);
  return { loss, metrics: { pg_loss: loss } };
};

export const policiesFormulas: Record<string, Formula> = {
  decoupled_ppo: decoupledPpo,
  m2po,
  prime_rl: primeRl,
  prime_rl_ipo: primeRlIpo,
  ref_kl: refKl,
  real,
};
