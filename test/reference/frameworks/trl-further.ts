/** TRL's losses outside the GRPO trainer. Many of them are sums over rows, and rows without tokens count in these. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, type Tokens } from '../batch.js';
import { surrogate } from '../dual-clip.js';
import { k3 } from '../kl.js';
import { extreme, isPositive, meanOfRow, orNull, perCount, tokenMean } from './shared.js';
import { clipMetrics, entropyMetric, oldLogprob, outside, topEntropy, weights } from './trl-options.js';

/** Returns how far the clip range reaches below and above. */
function clipRange(args: Args, fallback: number): [number, number] {
  const below = option(args, 'epsilon', fallback);
  return [below, option(args, 'epsilon_high', below)];
}
function ratioBounds(args: Args): [number, number] {
  const [below, above] = clipRange(args, 0.2);
  return [1 - below, 1 + above];
}

/** Returns the advantage of each row: if the batch has one per token, the mean over the row's tokens. */
const advantageOfRow = (x: Tokens): Variable =>
  x.hasAdvantagePerRow ? x.perRow('advantages') : meanOfRow(x, x.advantages);

/** Takes the geometric mean of a row's ratios. Their logarithms are clipped on the side that the advantage favours. */
const gmpo: Formula = (x, args) => {
  const [below, above] = clipRange(args, 0.4);
  const { advantages } = x;
  const d = x.logprob.sub(oldLogprob(x));
  const clipped = isPositive(advantages).choose(
    d.clip(Number.NEGATIVE_INFINITY, above),
    d.clip(-below, Number.POSITIVE_INFINITY),
  );
  const top = topEntropy(x, args);
  const ratio = perCount(x.rowSum(clipped.mul(top)), x.rowSum(top)).exp();
  const perRow = advantageOfRow(x).neg().mul(ratio);
  const beta = option(args, 'beta', 0);
  const kl = beta === 0 ? undefined : k3(x.refLogprob.sub(x.logprob));
  const penalized = kl ? perRow.add(meanOfRow(x, kl).mul(beta)) : perRow;
  return {
    loss: x.meanOverRows(penalized).div(option(args, 'gradient_accumulation_steps', 1)),
    metrics: {
      ...clipMetrics(x, false, outside(d, advantages, [-below, above])),
      ...(kl ? { kl: tokenMean(x, kl) } : {}),
      ...entropyMetric(x),
    },
  };
};

const asyncGrpo: Formula = (x, args) => {
  const bounds = ratioBounds(args);
  const d = x.logprob.sub(x.oldLogprob);
  const ratio = d.exp();
  const processes = option(args, 'num_processes', 1);
  const tokens = Math.max(option(args, 'global_n_tokens', x.index.length), processes);
  const steps = option(args, 'gradient_accumulation_steps', 1);
  const clipped = outside(ratio, x.advantages, bounds);
  const [low, high] = [tokenMean(x, clipped.low), tokenMean(x, clipped.high)];
  return {
    loss: surrogate(x.advantages, ratio, bounds)
      .perToken.sum()
      .mul(processes / (steps * tokens)),
    metrics: {
      ratio: tokenMean(x, ratio),
      kl: tokenMean(x, k3(d)),
      'clip_ratio/low_mean': low,
      'clip_ratio/low_min': low,
      'clip_ratio/high_mean': high,
      'clip_ratio/high_max': high,
      'clip_ratio/region_mean': low.add(high),
      ...entropyMetric(x),
    },
  };
};

const rloo: Formula = (x, args) => {
  const bounds = ratioBounds(args);
  const advantages = advantageOfRow(x);
  const ratio = x.rowSum(x.logprob.sub(x.oldLogprob)).exp();
  return {
    loss: x.meanOverRows(surrogate(advantages, ratio, bounds).perToken),
    metrics: clipMetrics(x, true, outside(ratio, advantages, bounds)),
  };
};

const a2po: Formula = (x, args) => {
  const implicit = x.rowSum(x.logprob.sub(x.refLogprob)).mul(option(args, 'beta2', 1e-3));
  const advantage = x.perRow('rewards').sub(x.perRow('vStar'));
  return {
    loss: x.meanOverRows(implicit.sub(advantage).square()),
    metrics: { implicit_reward: x.meanOverRows(implicit), advantage: x.meanOverRows(advantage) },
  };
};

const nashMd: Formula = (x, args) => {
  const { logprob } = x;
  const logRatio = logprob.sub(x.refLogprob);
  const preference = x.perRow('probability').sub(0.5);
  const penalty = logRatio.detach().mul(option(args, 'beta', 0.1));
  return {
    loss: x.meanOverRows(x.rowSum(penalty.sub(x.spread(preference)).mul(logprob))),
    metrics: {
      'loss/score': x.meanOverRows(preference.mul(x.rowSum(logprob))),
      'loss/kl': x.meanOverRows(x.rowSum(logRatio)),
    },
  };
};

/** Returns for each token the sum over the row's tokens before it. The result has no gradient. */
function sumBefore(x: Tokens, values: Variable): Variable {
  const sums = new Float64Array(values.length);
  for (let i = 1; i < sums.length; i++)
    if (x.rowOf[i] === x.rowOf[i - 1]) sums[i] = sums[i - 1]! + values.value[i - 1]!;
  return x.tape.leaf(sums);
}

const iwOpd: Formula = (x, args) => {
  const sampler = x.batch.rolloutLogprob ? x.column('rolloutLogprob') : x.logprob;
  const advantages = x.column('teacherLogprob').sub(sampler).detach();
  const sizes = advantages.abs();
  const total = x.spread(x.rowSum(sizes)).max(option(args, 'iw_opd_epsilon', 1e-8));
  const shareAfter = sumBefore(x, sizes).div(total).neg().add(1);
  const weight = shareAfter.mul(option(args, 'iw_opd_gamma', 0.5)).add(1);
  const weighted = weight.mul(advantages);
  const items = option(args, 'num_items_in_batch', Math.max(x.index.length, 1));
  return {
    loss: weighted.neg().mul(x.logprob).sum().div(items),
    metrics: {
      'iw_opd/mean_advantage': tokenMean(x, weighted),
      'iw_opd/mean_abs_advantage': tokenMean(x, sizes),
      'iw_opd/mean_weight': tokenMean(x, weight),
      'iw_opd/min_weight': extreme(weight, -1),
      'iw_opd/max_weight': extreme(weight, 1),
    },
  };
};

const sdpoSampledToken: Formula = (x, args) => {
  const cap = orNull(args, 'distillation_is_clip', 2);
  const { logprob } = x;
  const reinforced = logprob.sub(x.column('teacherLogprob')).detach().mul(logprob);
  const isCorrected = cap !== null && x.batch.oldLogprob;
  const perToken = isCorrected
    ? reinforced.mul(logprob.sub(x.oldLogprob).detach().clip(-20, 20).exp().clip(0, cap))
    : reinforced;
  return {
    loss: perToken.mul(weights(x, 'grpo', {})).sum(),
    metrics: { 'self_distillation/distillation_loss': tokenMean(x, perToken) },
  };
};

/** TRL's losses outside the GRPO trainer. */
export const furtherFormulas: Record<string, Formula> = {
  gmpo,
  async_grpo: asyncGrpo,
  rloo,
  a2po,
  nash_md: nashMd,
  iw_opd: iwOpd,
  sdpo_sampled_token: sdpoSampledToken,
};
