/** TRL's preference losses in float64, by name. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, type Tokens } from '../batch.js';
import { orNull } from '../frameworks/shared.js';
import {
  atPlace,
  averaged,
  constants,
  difference,
  hinge,
  isChosenRow,
  klEstimate,
  ktoLosses,
  labelled,
  lengths,
  lengthWeights,
  logOdds,
  logpsMetrics,
  marginLoss,
  meanOf,
  meanOverRows,
  nll,
  orderOf,
  type RowSums,
  rewardMetrics,
  rowSums,
  running,
  type Sides,
  sidesOf,
  smoothed,
  sorted,
  squaredTo,
  times,
} from './preference-terms.js';

/** Returns the score f(z). */
export function divergence(type: string, alpha: number): (z: Variable) => Variable {
  if (type === 'forward_kl') return (z) => z.neg().expm1().neg();
  if (type === 'js_divergence') return (z) => z.logSigmoid().add(Math.log(2));
  if (type !== 'alpha_divergence' || Math.abs(alpha - 1) < 1e-6) return (z) => z;
  return (z) =>
    z
      .mul(alpha - 1)
      .min(80)
      .expm1()
      .div(alpha - 1);
}

/** The terms of a DPO loss, and a function that returns the losses of the pairs for a type. */
export interface DpoTerms {
  x: Tokens;
  sums: RowSums;
  z: Sides;
  score: Sides;
  beta: number;
  epsilon: number;
  tau: number;
}

export const exo = (u: Variable, given: number): Variable => {
  const epsilon = given || 1e-3;
  const side = (v: Variable, target: number) => v.sigmoid().mul(v.logSigmoid().sub(Math.log(target)));
  return side(u, 1 - epsilon).add(side(u.neg(), epsilon));
};
export const robust = (u: Variable, epsilon: number): Variable =>
  u
    .logSigmoid()
    .mul(epsilon - 1)
    .add(u.neg().logSigmoid().mul(epsilon))
    .div(1 - 2 * epsilon);

export const DPO_TYPES: Record<string, (terms: DpoTerms) => Variable> = {
  sigmoid: ({ score, beta }) => smoothed(difference(score).mul(beta), 0),
  hinge: ({ score, beta }) => hinge(difference(score).mul(beta)),
  ipo: (terms) => squaredTo(perToken(terms), 1 / (2 * terms.beta)),
  exo_pair: ({ score, beta, epsilon }) => exo(difference(score).mul(beta), epsilon),
  nca_pair: ({ z, beta }) => {
    const { chosen, rejected } = times(z, beta);
    const wrong = chosen.neg().logSigmoid().add(rejected.neg().logSigmoid());
    return chosen.logSigmoid().neg().sub(wrong.mul(0.5));
  },
  robust: ({ score, beta, epsilon }) => robust(difference(score).mul(beta), epsilon),
  bco_pair: ({ z, beta }) => {
    const { chosen, rejected } = times(z, beta);
    return chosen.logSigmoid().add(rejected.neg().logSigmoid()).neg();
  },
  sppo_hard: ({ z, beta }) => squaredTo(z.chosen, 1 / (2 * beta)).add(squaredTo(z.rejected, -1 / (2 * beta))),
  aot: ({ x, sums, beta, epsilon }) => {
    const policy = difference(sidesOf(x, sums.policy));
    const reference = difference(sidesOf(x, sums.reference));
    return smoothed(sorted(policy).sub(sorted(reference)).mul(beta), epsilon);
  },
  aot_unpaired: ({ z, beta, epsilon }) =>
    smoothed(sorted(z.chosen).sub(sorted(z.rejected)).mul(beta), epsilon),
  apo_zero: ({ z, beta }) => {
    const { chosen, rejected } = times(z, beta);
    return chosen.neg().sigmoid().add(rejected.sigmoid());
  },
  apo_down: ({ z, score, beta }) => z.chosen.mul(beta).sigmoid().add(difference(score).mul(-beta).sigmoid()),
  discopop: ({ score, beta, tau }) => {
    const u = difference(score).mul(beta);
    const gate = u.div(tau);
    return gate.neg().sigmoid().mul(u.logSigmoid().neg()).add(gate.logSigmoid().sub(u).exp());
  },
  sft: ({ x }) => {
    const chosen = atPlace(x, x.rowSum(x.logprob), 0);
    const tokens = atPlace(x, lengths(x), 0).value.reduce((sum, n) => sum + n, 0);
    return chosen.mul(-chosen.length / (tokens || 1));
  },
  sigmoid_norm: (terms) => smoothed(perToken(terms).mul(terms.beta), 0),
};

function perToken({ x, score }: DpoTerms): Variable {
  const counts = x.counts.map((n) => Math.max(n, 1));
  const side = (values: Variable, place: number) =>
    values.div(x.tape.leaf(counts.filter((_, row) => row % 2 === place)));
  return side(score.chosen, 0).sub(side(score.rejected, 1));
}

export const typesOf = (args: Args): string[] =>
  ([option<string | string[]>(args, 'loss_type', 'sigmoid')].flat() as string[]).flat();

const dpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const sums = rowSums(x, lengthWeights(x, orNull(args, 'ld_alpha', null)));
  const z = sidesOf(x, sums.z);
  const f = divergence(
    option<string>(args, 'f_divergence_type', 'reverse_kl'),
    option<number>(args, 'f_alpha_divergence_coef', 0.5),
  );
  const score = { chosen: f(z.chosen), rejected: f(z.rejected) };
  const epsilon = option<number>(args, 'label_smoothing', 0);
  const tau = option<number>(args, 'discopop_tau', 0.05);
  const terms = { x, sums, z, score, beta, epsilon, tau };
  const weights = orNull<number[]>(args, 'loss_weights', null);
  const total = typesOf(args)
    .map((type, i) => DPO_TYPES[type]!(terms).mul(weights?.[i] ?? 1))
    .reduce((sum, each) => sum.add(each));
  const likelihood = () =>
    sidesOf(x, averaged(x, x.rowSum(x.logprob.sub(x.column('logSumSqProb')).detach())));
  const weighted = option(args, 'use_weighting', false)
    ? ranked(typesOf(args), total, sums, x).mul(likelihood().chosen.add(likelihood().rejected).exp())
    : total;
  return {
    loss: meanOf(weighted),
    metrics: { ...rewardMetrics(times(z, beta)), ...logpsMetrics(sidesOf(x, sums.policy)) },
  };
};

/** Returns the losses in the order of the pairs, of which the aot types' are in the order of the ranks. */
function ranked(types: string[], total: Variable, sums: RowSums, x: Tokens): Variable {
  const [type] = types;
  if (types.length > 1 || !type!.startsWith('aot')) return total;
  const keys = type === 'aot' ? difference(sidesOf(x, sums.policy)) : sidesOf(x, sums.z).chosen;
  const order = orderOf(keys);
  return total.gather(order.map((_, pair) => order.indexOf(pair)));
}

const cpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const given = option<string>(args, 'loss_type', 'sigmoid');
  const type = given === 'alphapo' ? 'simpo' : given;
  const alpha = option<number>(args, 'alpha', 0);
  const coefficient = given === 'alphapo' ? 0 : option<number>(args, 'cpo_alpha', 1);
  const sum = x.rowSum(x.logprob);
  const value = type === 'ipo' || type === 'simpo' ? averaged(x, sum) : sum;
  const shaped = alpha === 0 ? value : value.mul(-alpha).min(80).expm1().div(-alpha);
  const sides = sidesOf(x, shaped);
  const target = type === 'simpo' ? option<number>(args, 'simpo_gamma', 0.5) / beta : 0;
  const losses = marginLoss(
    type,
    difference(sides).sub(target),
    beta,
    option<number>(args, 'label_smoothing', 0),
  );
  const likelihood = coefficient === 0 ? undefined : nll(x, isChosenRow);
  const mean = meanOf(losses);
  return {
    loss: likelihood ? mean.add(likelihood.mul(coefficient)) : mean,
    metrics: {
      ...rewardMetrics(times(sides, beta)),
      ...logpsMetrics(sidesOf(x, value)),
      nll_loss: likelihood ?? 0,
    },
  };
};

const orpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const { attentionMask, actionMask } = x.batch;
  // The tokens of both masks, of which some are answers and some are attended.
  const union = attentionMask
    ? x.corrected(
        Array.from(actionMask, (flag, i) => (flag || attentionMask[i] ? 1 : 0)),
        undefined,
      )
    : x;
  const mean = averaged(x, x.rowSum(x.logprob));
  const sides = sidesOf(x, mean);
  const odds = difference(sidesOf(x, logOdds(mean)));
  const likelihood = nll(
    union,
    (row, at) => isChosenRow(row) && (!attentionMask || Boolean(attentionMask[at])),
  );
  const ratio = odds.logSigmoid();
  return {
    loss: likelihood.sub(meanOf(ratio).mul(beta)),
    metrics: {
      ...rewardMetrics(times(sides, beta)),
      ...logpsMetrics(sides),
      nll_loss: likelihood,
      log_odds_ratio: meanOf(ratio),
      log_odds_chosen: meanOf(odds),
    },
  };
};

const tpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.01);
  const type = option<string>(args, 'loss_type', 'sigmoid');
  const alpha = option<number>(args, 'tpo_alpha', 1);
  const size = alpha === 0 ? 2 : 3;
  const isLong = type === 'tpo-l';
  const sum = x.rowSum(x.logprob);
  const sides = sidesOf(x, type === 'ipo' || isLong ? averaged(x, sum) : sum, size);
  const target = isLong ? option<number>(args, 'tpo_l_gamma', 0.5) / beta : 0;
  const losses = marginLoss(
    type,
    difference(sides).sub(target),
    beta,
    option<number>(args, 'label_smoothing', 0),
  );
  const mean = meanOf(losses);
  return {
    loss: alpha === 0 ? mean : mean.add(nll(x, (row) => row % 3 === 2).mul(alpha)),
    metrics: { ...rewardMetrics(times(sides, beta)), ...logpsMetrics(sides) },
  };
};

/** Returns the sides of pairs, of which the first row is chosen if a flag is 1. */
function ordered(isFirst: Variable, { chosen, rejected }: Sides): Sides {
  return { chosen: isFirst.choose(chosen, rejected), rejected: isFirst.choose(rejected, chosen) };
}

const onlineDpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const rewards = x.perRow('rewards');
  const scores = sidesOf(x, rewards);
  const isFirst = difference(scores).test((d) => d >= 0);
  const sums = rowSums(x);
  const z = ordered(isFirst, sidesOf(x, sums.z));
  return {
    loss: meanOf(marginLoss(option<string>(args, 'loss_type', 'sigmoid'), difference(z), beta, 0)),
    metrics: {
      ...rewardMetrics(times(z, beta)),
      ...logpsMetrics(ordered(isFirst, sidesOf(x, sums.policy))),
      'objective/scores': meanOverRows(x, rewards),
      'objective/scores_margin': meanOf(difference(ordered(isFirst, scores))),
    },
  };
};

const xpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const chosen = x.batch.chosen!;
  const pairs = x.rows.length / 2;
  const isFirst = x.tape.leaf(
    Array.from({ length: pairs }, (_, pair) => Number(chosen[chosen.length === pairs ? pair : 2 * pair])),
  );
  const sums = rowSums(x);
  const z = ordered(isFirst, sidesOf(x, sums.z));
  const preference = meanOf(marginLoss(option<string>(args, 'loss_type', 'sigmoid'), difference(z), beta, 0));
  const exploration = meanOf(atPlace(x, sums.policy, 1)).mul(option<number>(args, 'alpha', 1e-5));
  return {
    loss: preference.add(exploration),
    metrics: { 'loss/dpo': preference, 'loss/xpo': exploration },
  };
};

const kto: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const sums = rowSums(x);
  const estimate = option<string>(args, 'loss_type', 'kto') === 'kto' ? klEstimate(x) : 0;
  const losses = ktoLosses(
    x,
    sums.z.sub(estimate).mul(beta),
    option<number>(args, 'desirable_weight', 1),
    option<number>(args, 'undesirable_weight', 1),
  );
  const [chosen, rejected] = [labelled(x, 1), labelled(x, 0)];
  const reward = (rows: number[]) => meanOf(sums.z.gather(rows)).mul(beta);
  const logps = (rows: number[]) => meanOf(sums.policy.gather(rows));
  return {
    loss: meanOverRows(x, losses),
    metrics: {
      kl: estimate,
      ...(chosen.length > 0 && { 'rewards/chosen': reward(chosen), 'logps/chosen': logps(chosen) }),
      ...(rejected.length > 0 && { 'rewards/rejected': reward(rejected), 'logps/rejected': logps(rejected) }),
      ...(chosen.length > 0 &&
        rejected.length > 0 && { 'rewards/margins': reward(chosen).sub(reward(rejected)) }),
    },
  };
};

/** The sums over the rows of a class, under the names of TRL. */
export const classSums = (x: Tokens, reward: Variable, policy: Variable) =>
  Object.fromEntries(
    (['rejected', 'chosen'] as const).flatMap((name, label) => {
      const rows = labelled(x, label as 0 | 1);
      if (rows.length === 0) return [];
      return [
        [`rewards/${name}_sum`, reward.gather(rows).sum()],
        [`logps/${name}_sum`, policy.gather(rows).sum()],
        [`count/${name}`, rows.length],
      ] as const;
    }),
  );

const bco: Formula = (x, args) => {
  const sums = rowSums(x);
  const reward = sums.z.mul(option<number>(args, 'beta', 0.1));
  const { next, state } = running(args, meanOverRows(x, reward), x.rows.length);
  const label = constants(x, x.batch.label!);
  const ahead = reward.sub(next);
  const low = option<number>(args, 'min_density_ratio', 0.5);
  const high = option<number>(args, 'max_density_ratio', 10);
  const p = x.batch.probDesirable;
  const weight = p
    ? x.tape.leaf(x.rows.map((row) => Math.min(Math.max(p[row]! / (1 - p[row]! + 1e-8), low), high)))
    : x.tape.leaf(x.rows.map(() => 1));
  const losses = label.choose(ahead.logSigmoid(), ahead.neg().logSigmoid().mul(weight)).neg();
  return {
    loss: meanOverRows(x, losses),
    metrics: { delta: next, ...classSums(x, reward, sums.policy), ...state },
  };
};

export const trlPreference: Record<string, Formula> = {
  'trl/dpo': dpo,
  'trl/cpo': cpo,
  'trl/orpo': orpo,
  'trl/tpo': tpo,
  'trl/online_dpo': onlineDpo,
  'trl/xpo': xpo,
  'trl/kto': kto,
  'trl/bco': bco,
};
