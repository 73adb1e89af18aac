/** corrected_ppo: PPO with the corrections that seven frameworks have for samples of another policy. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, type Tokens } from '../batch.js';
import { greater, limited, surrogate } from '../dual-clip.js';
import {
  type Bound,
  bounded,
  isNegative,
  meanOfRow,
  not,
  ones,
  ratioBounds,
  runMean,
  tokenMean,
  within,
} from './shared.js';

type Level = 'token' | 'sequence' | 'geometric' | 'segment';

/** Returns a log-ratio, or another value, of each token, of its row or of its segment. */
function ofLevel(x: Tokens, level: Level, values: Variable): Variable {
  switch (level) {
    case 'token':
      return values;
    case 'sequence':
      return x.spread(x.rowSum(values));
    case 'geometric':
      return x.spread(meanOfRow(x, values));
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

/** Returns the weight of each token and the ratio from which it comes, or null if tokens have no weight. */
function importance(sampled: Sampled): { weights: Variable; metrics: Outcome['metrics'] } | null {
  const { x, args } = sampled;
  const level = option<Level | 'none'>(args, 'is_level', 'none');
  if (level === 'none') return null;
  const low = option<Bound>(args, 'is_lower', null);
  const high = option<Bound>(args, 'is_upper', null);
  const ratio = ratioOf(sampled, level);
  const inside = within(ratio, low, high);
  const modes: Record<string, () => Variable> = {
    none: () => ratio,
    truncate: () => bounded(ratio, null, high),
    clip: () => bounded(ratio, low, high),
    mask: () => inside.choose(ratio, 0),
  };
  const weights = modes[option(args, 'is_mode', 'none')]!();
  const isNormalized = option(args, 'is_batch_normalize', false);
  return {
    weights: isNormalized ? weights.div(batchMean(x, level, weights)) : weights,
    metrics: { is_ratio_mean: x.mean(ratio), is_clipfrac: x.mean(not(inside)) },
  };
}

/** The mean weight of the batch's tokens, or of its rows, of which those without tokens have weight 0. */
function batchMean(x: Tokens, level: Level, weights: Variable): Variable {
  if (level === 'token') return tokenMean(x, weights);
  if (level === 'sequence') return x.meanOverRows(meanOfRow(x, weights));
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
  return not(not(inside).mul(pushed));
}

/** Flags the tokens of the rows without an outlier. */
function keptByVeto(sampled: Sampled): Variable | null {
  const { x, args } = sampled;
  const low = option<Bound>(args, 'veto_lower', null);
  const high = option<Bound>(args, 'veto_upper', null);
  if (low === null && high === null) return null;
  const outliers = x.rowSum(not(within(ratioOf(sampled, 'token'), low, high)));
  return x.spread(outliers.test((n) => n === 0));
}

/** Flags all tokens but those with a negative advantage in rows far from the sampling policy. */
function keptByDistance({ x, args, old, rollout }: Sampled): Variable | null {
  const delta = option<Bound>(args, 'opsm_delta', null);
  if (delta === null) return null;
  const from = option(args, 'opsm_reference', 'old') === 'old' ? old : rollout;
  const far = meanOfRow(x, from.sub(x.logprob.detach())).test((k) => k > delta);
  return not(x.spread(far).mul(isNegative(x.advantages)));
}

export const correctedPpo: Formula = (x, args) => {
  const { advantages, oldLogprob: old } = x;
  const sampled = { x, args, old, rollout: x.column('rolloutLogprob') };
  const correction = importance(sampled);
  const kept = [keptByStatistic(sampled), keptByVeto(sampled), keptByDistance(sampled)]
    .filter((flags) => flags !== null)
    .reduce((all, flags) => all.mul(flags), ones(x));

  const d = x.logprob.sub(old);
  const ppo = surrogate(advantages, d.exp(), ratioBounds(args, 0.2, 0.28));
  const { perToken } = limited(ppo.perToken, advantages, option<Bound>(args, 'clip_ratio_c', null));
  const weighted = correction ? perToken.mul(correction.weights) : perToken;
  const loss = x.aggregate(kept.choose(weighted, 0), option(args, 'loss_agg_mode', 'token-mean'));
  return {
    loss,
    metrics: {
      pg_loss: loss,
      pg_clipfrac: x.mean(greater(ppo.clipped, ppo.unclipped)),
      ppo_kl: x.mean(d.neg()),
      ...correction?.metrics,
      reject_fraction: x.mean(not(kept)),
    },
  };
};
