/** verl's policy losses that are sums over tokens. */
import { drawn } from '../../support/drawn.js';
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, type Tokens } from '../batch.js';
import { dualClip, greater, type TokenLosses } from '../dual-clip.js';
import { klEstimators } from '../kl.js';
import { extreme, meanOfRow, not, plainMean, prefixed } from './shared.js';
import { type AggregationMode, aggregate } from './verl-aggregate.js';
import { rolloutCorrection, underCorrection } from './verl-correction.js';

/** Returns how far the clip range reaches below and above. */
export function clipRange(args: Args): [number, number] {
  const both = option(args, 'clip_ratio', 0.2);
  return [option(args, 'clip_ratio_low', both), option(args, 'clip_ratio_high', both)];
}

function ratioBounds(args: Args): [number, number] {
  const [low, high] = clipRange(args);
  return [1 - low, 1 + high];
}

export const logRatio = (x: Tokens): Variable => x.logprob.sub(x.oldLogprob);
const boundedLogRatio = (x: Tokens) => logRatio(x).clip(-20, 20);

/** Makes a loss from the losses of its tokens. `mode` is the aggregation of a loss that has only one. */
const summed =
  (tokenLosses: (x: Tokens, args: Args) => TokenLosses, mode?: AggregationMode): Formula =>
  (x, args) => {
    const { perToken, metrics } = tokenLosses(x, args);
    const loss = aggregate(x, perToken, args, mode);
    return { loss, metrics: { ...metrics, pg_loss: loss } };
  };

const ppo = (x: Tokens, args: Args, advantages: Variable, ratioCap: number): TokenLosses =>
  dualClip(x, boundedLogRatio(x), advantages, ratioBounds(args), ratioCap);

export const vanilla = summed((x, args) => ppo(x, args, x.advantages, option(args, 'clip_ratio_c', 3)));

/** Keeps the tokens that a divergence allows. Their loss has the gradient of A·r, with the ratio r truncated. */
const dppo = (allowed: (x: Tokens, args: Args) => Variable): Formula =>
  summed((x, args) => {
    const cap = option(args, 'clip_ratio_c', 3);
    const d = boundedLogRatio(x);
    const ratio = d.exp();
    const kept = allowed(x, args);
    const weight = ratio.clip(0, cap).mul(kept).detach();
    return {
      perToken: x.advantages.neg().mul(weight).mul(x.logprob),
      metrics: {
        pg_clipfrac: x.mean(not(kept)),
        pg_clipfrac_lower: x.mean(ratio.test((r) => r > cap).mul(kept)),
        ppo_kl: x.mean(d.neg()),
      },
    };
  });

export const dppoTv = dppo((x, args) => {
  const [low, high] = clipRange(args);
  const { advantages } = x;
  return x.logprob
    .exp()
    .sub(x.oldLogprob.exp())
    .test((excess, i) => (advantages.value[i]! > 0 ? excess <= high : excess >= -low));
});

export const dppoKl = dppo((x, args) => {
  const [low, high] = clipRange(args);
  const { advantages, logprob, oldLogprob } = x;
  const [p, q] = [logprob.exp(), oldLogprob.exp()];
  const others = (probability: Variable) => probability.neg().add(1);
  const otherTokens = others(q).mul(others(q).add(1e-8).div(others(p).add(1e-8)).log());
  const divergence = q.mul(oldLogprob.sub(logprob)).add(otherTokens);
  const rises = advantages.test((a) => a > 0);
  const isNear = divergence.test((k, i) => k <= (rises.value[i] ? high : low));
  // A step that brings the two policies closer is always allowed.
  const comesCloser = p.sub(q).test((excess, i) => (rises.value[i] ? excess <= 0 : excess >= 0));
  return isNear.add(comesCloser).test((count) => count > 0);
});

export const gpg = summed((x) => ({ perToken: x.advantages.neg().mul(x.logprob), metrics: {} }));

export const dro = summed((x, args) => {
  const d = logRatio(x);
  const penalty = d.square().mul((args.dro_beta as number) / 2);
  return {
    perToken: x.advantages.neg().mul(x.logprob).add(penalty),
    metrics: { ppo_kl: x.mean(d.neg()) },
  };
});

/** Returns the product of each token's deviations from the mean advantage and the mean log-probability. */
const covariance = (x: Tokens, mean: (values: Variable) => Variable): Variable =>
  x.advantages.sub(mean(x.advantages)).mul(x.logprob.sub(mean(x.logprob)));

/** Returns the `count` elements of a list that come first in the order of their keys. */
const firstBy = (list: number[], count: number, key: (i: number) => number) =>
  new Set(list.toSorted((i, j) => key(i) - key(j)).slice(0, count));

/** Returns which tokens clip_cov drops. They are a random choice. The batch can have the keys that decide. */
function clipCovChoice(x: Tokens, args: Args, clipped: Variable): Variable {
  const [low, high] = [option(args, 'clip_cov_lb', 1), option(args, 'clip_cov_ub', 5)];
  const isCandidate = covariance(x, (values) => x.mean(values))
    .test((c) => c > low && c < high)
    .mul(not(clipped));
  const candidates = x.index.map((_, i) => i).filter((i) => isCandidate.value[i]);
  const count = Math.max(Math.floor(option(args, 'clip_cov_ratio', 2e-4) * x.index.length), 1);
  const { clipCovKeys, columns } = x.batch;
  const seed = option(args, 'seed', 0);
  const drawnKey = (at: number) => drawn(seed, Math.floor(at / columns), at % columns);
  const chosen = firstBy(candidates, count, (i) => clipCovKeys?.[x.index[i]!] ?? drawnKey(x.index[i]!));
  return isCandidate.test((_, i) => chosen.has(i));
}

export const clipCov = summed((x, args) => {
  const [low, high] = ratioBounds(args);
  const d = logRatio(x);
  const ratio = d.exp();
  const p1 = x.advantages.neg().mul(ratio);
  const p2 = x.advantages.neg().mul(ratio.clip(low, high));
  const dropped = clipCovChoice(x, args, greater(p2, p1));
  return {
    perToken: dropped.choose(0, p1.max(p2)),
    metrics: { pg_clipfrac: x.mean(dropped), ppo_kl: x.mean(d.neg()) },
  };
});

export const klCov = summed((x, args) => {
  const d = logRatio(x);
  const cov = covariance(x, plainMean);
  const count = Math.max(1, Math.floor(x.index.length * option(args, 'kl_cov_ratio', 2e-4)));
  const everywhere = x.index.map((_, i) => i);
  const [least, next] = cov.value.toSorted((a, b) => b - a).slice(count - 1);
  // Of two tokens, both have the same covariance.
  x.tape.isOnEdge ||= next !== undefined && least! - next < 1e-5 * Math.max(...cov.value.map(Math.abs));
  const chosen = firstBy(everywhere, count, (i) => -cov.value[i]!);
  const penalised = cov.test((_, i) => chosen.has(i));
  const penalty = d.abs().mul(option(args, 'ppo_kl_coef', 0.1));
  return {
    perToken: x.advantages.neg().mul(d.exp()).add(penalty.mul(penalised)),
    metrics: { ppo_kl: x.mean(d.abs()) },
  };
});

export const gspo = summed((x, args) => {
  const [low, high] = ratioBounds(args);
  const { logprob, advantages } = x;
  const d = logRatio(x);
  const rowLog = meanOfRow(x, d);
  // The value is that of the row, and each token's derivative is its own.
  const ratio = logprob
    .sub(logprob.detach())
    .add(x.spread(rowLog).detach())
    .clip(Number.NEGATIVE_INFINITY, 10)
    .exp();
  const p1 = advantages.neg().mul(ratio);
  const p2 = advantages.neg().mul(ratio.clip(low, high));
  return {
    perToken: p1.max(p2),
    metrics: { pg_clipfrac: x.mean(greater(p2, p1)), pg_clipfrac_lower: 0, ppo_kl: x.mean(d.neg()) },
  };
}, 'seq-mean-token-mean');

export const sapo = summed((x, args) => {
  const tau = x.advantages
    .test((a) => a > 0)
    .choose(option(args, 'tau_pos', 1), option(args, 'tau_neg', 1.05));
  const d = boundedLogRatio(x);
  const gate = d.exp().sub(1).mul(tau).sigmoid().mul(4).div(tau);
  return {
    perToken: x.advantages.neg().mul(gate),
    metrics: { pg_clipfrac: 0, pg_clipfrac_lower: 0, ppo_kl: x.mean(d.neg()) },
  };
}, 'seq-mean-token-mean');

export const cispo = summed((x, args) => {
  const [low, high] = ratioBounds(args);
  const d = boundedLogRatio(x);
  const ratio = d.exp();
  const weight = ratio.clip(low, high).detach();
  return {
    perToken: x.advantages.neg().mul(weight).mul(x.logprob),
    metrics: {
      pg_clipfrac: x.mean(ratio.test((r) => r < low || r > high)),
      pg_clipfrac_lower: 0,
      ppo_kl: x.mean(d.neg()),
    },
  };
});

const reinforce = summed((x) => ({
  perToken: x.advantages.neg().mul(x.logprob),
  metrics: { ppo_kl: x.mean(logRatio(x).neg()) },
}));

/** Treats oldLogprob as the rollout's. PPO's ratio already corrects for it, so only REINFORCE uses the weights. */
export const bypassMode: Formula = (x, args) => {
  const correction = rolloutCorrection(x, args, x.logprob.detach(), x.oldLogprob);
  return option<string>(args, 'loss_type', 'ppo_clip') === 'reinforce'
    ? underCorrection(reinforce, x, args, correction)
    : underCorrection(vanilla, x, args, { ...correction, weights: null });
};

export const distillation: Formula = (x, args) => {
  const mode = option<string>(args, 'loss_mode', 'k3');
  const names: Record<string, string> = { k3: 'low_var_kl', kl: 'k1', mse: 'k2' };
  const estimate = klEstimators[names[mode] ?? mode]!.formula;
  const divergence = estimate(x.column('teacherLogprob').sub(x.logprob), x);
  const { loss_max_clamp: most = 10 } = args as { loss_max_clamp?: number | null };
  const limited = most === null ? divergence : divergence.clip(-most, most);
  const { perToken, metrics } = option(args, 'use_policy_gradient', false)
    ? ppo(x, args, limited.detach().neg(), 3)
    : { perToken: limited, metrics: {} };
  const loss = aggregate(x, perToken, args);
  const all = {
    abs_loss: plainMean(divergence.abs()),
    loss_min: extreme(divergence, -1),
    loss_max: extreme(divergence, 1),
    ...metrics,
    loss,
  };
  return { loss, metrics: prefixed('distillation/', all) };
};
