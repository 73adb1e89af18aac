/** TRL's losses outside the GRPO trainer. Many of them are sums over rows, to which a row without tokens adds a term. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, type Tokens } from '../batch.js';
import { k3, largest, rowMean, smallest, surrogate, tokenMean } from './shared.js';
import {
  beyondRange,
  clipMetrics,
  entropyMetric,
  type Metrics,
  oldLogprob,
  topEntropy,
  weights,
} from './trl-options.js';

function clipRange(args: Args, fallback: number): { below: number; above: number } {
  const below = option(args, 'epsilon', fallback);
  return { below, above: option(args, 'epsilon_high', below) };
}

/** A geometric mean of the ratios of each row, whose logarithms are clipped on the side that the advantage favours. */
const gmpo: Formula = (x, args) => {
  const { below, above } = clipRange(args, 0.4);
  const { advantages } = x;
  const d = x.logprob.sub(oldLogprob(x));
  const limited = advantages
    .test((a) => a > 0)
    .choose(d.clip(Number.NEGATIVE_INFINITY, above), d.clip(-below, Number.POSITIVE_INFINITY));
  const top = topEntropy(x, args);
  const counts = x.tape.leaf(x.rowSum(top).value.map((n) => Math.max(n, 1)));
  const ratio = x.rowSum(limited.mul(top)).div(counts).exp();
  let perRow = x.perRow('advantages').neg().mul(ratio);
  const beyond = beyondRange(d, advantages, -below, above);
  const metrics: Metrics = { ...clipMetrics(x, false, beyond.low, beyond.high), ...entropyMetric(x) };
  const beta = option(args, 'beta', 0);
  if (beta !== 0) {
    const kl = k3(x.refLogprob.sub(x.logprob));
    metrics.kl = tokenMean(x, kl);
    perRow = perRow.add(rowMean(x, kl).mul(beta));
  }
  return { loss: x.meanOverRows(perRow).div(option(args, 'gradient_accumulation_steps', 1)), metrics };
};

const asyncGrpo: Formula = (x, args) => {
  const { below, above } = clipRange(args, 0.2);
  const { advantages } = x;
  const d = x.logprob.sub(x.oldLogprob);
  const ratio = d.exp();
  const processes = option(args, 'num_processes', 1);
  const tokens = Math.max(option(args, 'global_n_tokens', x.index.length), processes);
  const beyond = beyondRange(ratio, advantages, 1 - below, 1 + above);
  const [low, high] = [tokenMean(x, beyond.low), tokenMean(x, beyond.high)];
  return {
    loss: surrogate(advantages, ratio, 1 - below, 1 + above)
      .loss.sum()
      .mul(processes / (option(args, 'gradient_accumulation_steps', 1) * tokens)),
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
  const { below, above } = clipRange(args, 0.2);
  const advantages = x.perRow('advantages');
  const ratio = x.rowSum(x.logprob.sub(x.oldLogprob)).exp();
  const { low, high } = beyondRange(ratio, advantages, 1 - below, 1 + above);
  return {
    loss: x.meanOverRows(surrogate(advantages, ratio, 1 - below, 1 + above).loss),
    metrics: clipMetrics(x, true, low, high),
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
  const log = x.logprob.sub(x.refLogprob);
  const preference = x.perRow('probability').sub(0.5);
  const perToken = log
    .detach()
    .mul(option(args, 'beta', 0.1))
    .sub(x.spread(preference))
    .mul(x.logprob);
  return {
    loss: x.meanOverRows(x.rowSum(perToken)),
    metrics: {
      'loss/score': x.meanOverRows(preference.mul(x.rowSum(x.logprob))),
      'loss/kl': x.meanOverRows(x.rowSum(log)),
    },
  };
};

/** Returns, for each token, the sum over the row's tokens before it. */
function runningSum(x: Tokens, values: Variable): Variable {
  const before = new Float64Array(values.length);
  for (let i = 1; i < before.length; i++)
    before[i] = x.rowOf[i] === x.rowOf[i - 1] ? before[i - 1]! + values.value[i - 1]! : 0;
  return x.tape.leaf(before);
}

const iwOpd: Formula = (x, args) => {
  const sampler = x.batch.rolloutLogprob ? x.constant('rolloutLogprob') : x.logprob.detach();
  const advantages = x.constant('teacherLogprob').sub(sampler);
  const size = advantages.abs();
  const total = x.spread(x.rowSum(size)).max(option(args, 'iw_opd_epsilon', 1e-8));
  const weight = runningSum(x, size)
    .div(total)
    .neg()
    .add(1)
    .mul(option(args, 'iw_opd_gamma', 0.5))
    .add(1);
  const weighted = weight.mul(advantages);
  return {
    loss: weighted
      .neg()
      .mul(x.logprob)
      .sum()
      .div(option(args, 'num_items_in_batch', Math.max(x.index.length, 1))),
    metrics: {
      'iw_opd/mean_advantage': tokenMean(x, weighted),
      'iw_opd/mean_abs_advantage': tokenMean(x, size),
      'iw_opd/mean_weight': tokenMean(x, weight),
      'iw_opd/min_weight': smallest(weight.value),
      'iw_opd/max_weight': largest(weight.value),
    },
  };
};

const sdpoSampledToken: Formula = (x, args) => {
  const cap = args.distillation_is_clip === null ? null : option(args, 'distillation_is_clip', 2);
  const { logprob } = x;
  let perToken = logprob.sub(x.constant('teacherLogprob')).detach().mul(logprob);
  if (cap !== null && x.batch.oldLogprob) {
    const d = logprob.sub(x.oldLogprob).detach();
    perToken = perToken.mul(d.clip(-20, 20).exp().clip(Number.NEGATIVE_INFINITY, cap));
  }
  return {
    loss: perToken.mul(weights(x, 'grpo', {})).sum(),
    metrics: { 'self_distillation/distillation_loss': tokenMean(x, perToken) },
  };
};

export const furtherFormulas: Record<string, Formula> = {
  gmpo,
  async_grpo: asyncGrpo,
  rloo,
  a2po,
  nash_md: nashMd,
  iw_opd: iwOpd,
  sdpo_sampled_token: sdpoSampledToken,
};
