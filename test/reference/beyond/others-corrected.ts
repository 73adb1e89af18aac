/** corrected_ppo: PPO with the corrections that seven frameworks have for samples of another policy. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, type Tokens } from '../batch.js';
import {
  bounded,
  complement,
  dualClip,
  greater,
  isNegative,
  rowMean,
  runMean,
  surrogate,
  within,
} from './shared.js';

type Bound = number | null;
type Level = 'token' | 'sequence' | 'geometric' | 'segment';

/** Returns a log-ratio, or another value, of each token, of its row or of its segment. */
function ofLevel(x: Tokens, level: Level, values: Variable): Variable {
  switch (level) {
    case 'token':
      return values;
    case 'sequence':
      return x.spread(x.rowSum(values));
    case 'geometric':
      return x.spread(rowMean(x, values));
    case 'segment':
      return runMean(x, values);
  }
}

/** What the corrections judge: the sampler's log-probabilities and the old policy's. They are constants. */
interface Sampled {
  x: Tokens;
  args: Args;
  old: Variable;
  rollout: Variable;
}

function ratioOf({ x, args, old, rollout }: Sampled, level: Level): Variable {
  const bound = option<Bound>(args, 'log_ratio_bound', null) ?? Number.POSITIVE_INFINITY;
  return ofLevel(x, level, old.sub(rollout)).clip(-bound, bound).exp();
}

/** The weight of each token, and the ratio from which it comes. */
function importance(sampled: Sampled): { weight: Variable; ratio: Variable | null; outside: Variable } {
  const { x, args } = sampled;
  const level = option<Level | 'none'>(args, 'is_level', 'none');
  const ones = x.tape.leaf(x.index.map(() => 1));
  if (level === 'none') return { weight: ones, ratio: null, outside: ones.mul(0) };
  const mode = option(args, 'is_mode', 'none');
  const low = option<Bound>(args, 'is_lower', null);
  const high = option<Bound>(args, 'is_upper', null);
  const ratio = ratioOf(sampled, level);
  const inside = within(ratio, low, high);
  const weights: Record<string, () => Variable> = {
    none: () => ratio,
    truncate: () => bounded(ratio, null, high),
    clip: () => bounded(ratio, low, high),
    mask: () => inside.choose(ratio, 0),
  };
  const weight = weights[mode]!();
  const normalized = option(args, 'is_batch_normalize', false)
    ? weight.div(batchMean(x, level, weight))
    : weight;
  return { weight: normalized, ratio, outside: complement(inside) };
}

/** The mean weight of the batch's tokens, or of its rows, of which those without tokens have weight 0. */
function batchMean(x: Tokens, level: Level, weight: Variable): Variable {
  if (level === 'token') return weight.sum().div(x.index.length);
  if (level === 'sequence') return x.meanOverRows(rowMean(x, weight));
  throw new Error('is_batch_normalize: expected is_level token or sequence');
}

/** Flags the tokens that a bound on the rejection statistic keeps. */
function keptByStatistic(sampled: Sampled): Variable | null {
  const { x, args, old, rollout } = sampled;
  const metric = option<string | null>(args, 'reject_metric', null);
  if (metric === null) return null;
  const level = option<Level>(args, 'reject_level', 'token');
  const statistics: Record<string, () => Variable> = {
    ratio: () => ratioOf(sampled, level),
    diff: () => ofLevel(x, level, old.exp().sub(rollout.exp())),
    tv: () => ofLevel(x, 'geometric', ratioOf(sampled, 'token').sub(1).abs()),
  };
  const inside = within(
    statistics[metric]!(),
    option<Bound>(args, 'reject_lower', null),
    option<Bound>(args, 'reject_upper', null),
  );
  if (metric !== 'tv') return inside;
  const pushed = old
    .sub(rollout)
    .mul(x.advantages)
    .test((product) => product > 0);
  return complement(complement(inside).mul(pushed));
}

/** Flags the tokens of the rows without an outlier. */
function keptByVeto(sampled: Sampled): Variable | null {
  const { x, args } = sampled;
  const low = option<Bound>(args, 'veto_lower', null);
  const high = option<Bound>(args, 'veto_upper', null);
  if (low === null && high === null) return null;
  const outliers = x.rowSum(complement(within(ratioOf(sampled, 'token'), low, high)));
  return x.spread(outliers.test((n) => n === 0));
}

/** Flags all tokens but those with a negative advantage in rows far from the sampling policy. */
function keptByDistance({ x, args, old, rollout }: Sampled): Variable | null {
  const delta = option<Bound>(args, 'opsm_delta', null);
  if (delta === null) return null;
  const from = option(args, 'opsm_reference', 'old') === 'old' ? old : rollout;
  const far = rowMean(x, from.sub(x.logprob.detach())).test((k) => k > delta);
  return complement(x.spread(far).mul(isNegative(x.advantages)));
}

export const correctedPpo: Formula = (x, args) => {
  const { advantages } = x;
  const sampled: Sampled = { x, args, old: x.constant('oldLogprob'), rollout: x.constant('rolloutLogprob') };
  const { weight, ratio, outside } = importance(sampled);
  const kept = [keptByStatistic(sampled), keptByVeto(sampled), keptByDistance(sampled)]
    .filter((flags) => flags !== null)
    .reduce((all, flags) => all.mul(flags), x.tape.leaf(x.index.map(() => 1)));

  const d = x.logprob.sub(sampled.old);
  const [low, high] = [1 - option(args, 'clip_range_low', 0.2), 1 + option(args, 'clip_range_high', 0.28)];
  const ppo = surrogate(advantages, d.exp(), low, high);
  const { loss } = dualClip(ppo.loss, advantages, option<Bound>(args, 'clip_ratio_c', null));
  const aggregated = x.aggregate(
    kept.choose(loss.mul(weight), 0),
    option(args, 'loss_agg_mode', 'token-mean'),
  );
  return {
    loss: aggregated,
    metrics: {
      pg_loss: aggregated,
      pg_clipfrac: x.mean(greater(ppo.clipped, ppo.unclipped)),
      ppo_kl: x.mean(d.neg()),
      ...(ratio ? { is_ratio_mean: x.mean(ratio), is_clipfrac: x.mean(outside) } : {}),
      reject_fraction: x.mean(complement(kept)),
    },
  };
};
