/** Losses of three policies (decoupled_ppo, m2po), of probabilities (prime_rl, prime_rl_ipo, ref_kl) and groups (real). */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, type Tokens } from '../batch.js';
import {
  bounded,
  complement,
  dualClip,
  greater,
  isNegative,
  isPositive,
  k3,
  rowMean,
  surrogate,
  tokenMean,
  within,
} from './shared.js';

type Bound = number | null;

/** The mean over the flagged tokens, with the epsilon of metrics. */
const meanOf = (flags: Variable, values: Variable): Variable =>
  flags
    .choose(values, 0)
    .sum()
    .div(flags.sum().item + 1e-8);

/** The statistic of the distance between the proximal and the old policy, by name. */
const distances: Record<string, (log: Variable) => Variable> = {
  ratio: (log) => log,
  kl_k1: (log) => log,
  kl_k2: (log) => log.square().mul(0.5),
  kl_k3: (log) => k3(log.neg()),
};

function ofRow(x: Tokens, how: string, values: Variable): Variable {
  if (how === 'sum') return x.rowSum(values);
  if (how === 'mean') return rowMean(x, values);
  return values.extremeBy(x.rowOf, x.rows.length, 1);
}

interface Rejection {
  /** The tokens that stay in the loss. */
  kept: Variable;
  weight: Variable;
  /** The tokens that are rejected, or whose weight is clamped. */
  filtered: Variable;
}

/** Rejects tokens or rows on which the proximal and the old policy differ too much, or clamps their weights. */
function rejection(x: Tokens, args: Args, log: Variable): Rejection | null {
  const level = option<string | null>(args, 'rejection_level', null);
  if (level === null) return null;
  const metric = option(args, 'rejection_metric', 'ratio');
  const low = option<Bound>(args, 'rejection_lower', null);
  const high = args.rejection_upper === null ? null : option(args, 'rejection_upper', 5);
  const perRow = level === 'sequence';
  const distance = distances[metric]!(log);
  const judged = perRow ? x.spread(ofRow(x, option(args, 'rejection_agg', 'sum'), distance)) : distance;
  const inside = within(metric === 'ratio' ? judged.exp() : judged, low, high);
  const weight = (perRow && metric === 'ratio' ? x.spread(rowMean(x, log)) : log).exp();
  if (option(args, 'rejection_action', 'mask') === 'mask')
    return { kept: inside, weight, filtered: complement(inside) };
  const clamped = inside.choose(weight, bounded(weight, low ?? 0, high));
  return {
    kept: inside.test(() => true),
    weight: clamped,
    filtered: clamped.test((w, i) => w !== weight.value[i]),
  };
}

const clipRange = (args: Args): [number, number] => [
  1 - option(args, 'clip_range_low', 0.2),
  1 + option(args, 'clip_range_high', 0.2),
];

const decoupledPpo: Formula = (x, args) => {
  const log = x.constant('proxLogprob').sub(x.constant('oldLogprob'));
  const rejected = rejection(x, args, log);
  const ones = x.tape.leaf(x.index.map(() => 1));
  const { kept, weight } = rejected ?? { kept: ones, weight: ones };

  const d = x.logprob.sub(x.constant('proxLogprob'));
  const keptPerRow = x.tape.leaf(x.rowSum(kept).value.map((n) => Math.max(n, 1)));
  const ofKept = (values: Variable) => x.spread(x.rowSum(values.mul(kept)).div(keptPerRow));
  const sequence = option<string>(args, 'importance_sampling_level', 'token') === 'sequence';
  const ratio = (sequence ? ofKept(d) : d).exp();
  const advantages = sequence ? ofKept(x.advantages) : x.advantages;
  const ppo = surrogate(advantages, ratio, ...clipRange(args));
  const { loss, cut } = dualClip(ppo.loss, advantages, option<Bound>(args, 'clip_ratio_c', null));

  const tokens = option(args, 'rejected_in_denominator', true) ? x.index.length : kept.sum().item;
  const total = kept.choose(loss.mul(weight), 0).sum().div(Math.max(tokens, 1));
  const metrics: Outcome['metrics'] = {
    pg_loss: total,
    importance_weight: x.mean(kept.mul(ratio)),
    approx_kl: x.mean(d),
    clip_ratio: x.mean(kept.mul(greater(ppo.clipped, ppo.unclipped))),
    dual_clip_ratio: x.mean(kept.mul(cut)),
  };
  if (rejected) {
    const weighed = kept.mul(isPositive(weight));
    metrics.behave_imp_weight = meanOf(weighed, weight);
    metrics.behave_approx_kl = meanOf(weighed, log);
    metrics.filtered_fraction = tokenMean(x, rejected.filtered);
  }
  return { loss: total, metrics };
};

/** Flags the tokens that remain after the largest squares are dropped, until the mean of the rest is below a bound. */
function withoutLargest(squares: Variable, threshold: number): Variable {
  const order = Array.from(squares.value.keys()).sort((i, j) => squares.value[j]! - squares.value[i]!);
  let rest = 0;
  let dropped = order.length - 1;
  for (let k = order.length - 1; k >= 0; k--) {
    rest += squares.value[order[k]!]!;
    if (rest / (order.length - k) < threshold) dropped = k;
  }
  const kept = new Set(order.slice(dropped));
  return squares.test((_, i) => kept.has(i));
}

const m2po: Formula = (x, args) => {
  const { advantages } = x;
  const prox = x.constant('proxLogprob');
  const kept = withoutLargest(
    x.constant('oldLogprob').sub(prox).square(),
    option(args, 'm2_threshold', 0.04),
  );
  const d = x.logprob.sub(prox);
  const ppo = surrogate(advantages, d.exp(), ...clipRange(args));
  const { loss, cut } = dualClip(ppo.loss, advantages, option<Bound>(args, 'clip_ratio_c', null));
  const mean = (values: Variable) => meanOf(kept, values);
  const total = kept.choose(loss, 0).sum().div(Math.max(kept.sum().item, 1));
  return {
    loss: total,
    metrics: {
      pg_loss: total,
      importance_weight: mean(d.exp()),
      approx_kl: mean(d),
      clip_ratio: mean(greater(ppo.clipped, ppo.unclipped)),
      dual_clip_ratio: mean(cut),
      m2_masked_fraction: tokenMean(x, complement(kept)),
    },
  };
};

/** The difference of a token's probabilities, and what the losses that judge it have in common. */
function probabilities(x: Tokens): { change: Variable; d: Variable; ratio: Variable; mismatch: Variable } {
  const d = x.logprob.sub(x.oldLogprob);
  const change = x.logprob.exp().sub(x.oldLogprob.exp()).detach();
  return { change, d, ratio: d.exp(), mismatch: k3(d) };
}

/** The mean over rows of the mean over the flagged tokens of a row, which is 0 if the row has none. */
function meanOfRows(x: Tokens, flags: Variable, values: Variable): Variable {
  const counts = x.tape.leaf(x.rowSum(flags).value.map((n) => Math.max(n, 1)));
  return x.meanOverRows(x.rowSum(flags.choose(values, 0)).div(counts));
}

function droppedMetrics(x: Tokens, dropped: Variable, mismatch: Variable): Outcome['metrics'] {
  const all = dropped.test(() => true);
  return {
    masked_mismatch_kl: meanOfRows(x, dropped, mismatch),
    unmasked_mismatch_kl: meanOfRows(x, complement(dropped), mismatch),
    is_masked: meanOfRows(x, all, dropped),
  };
}

/** The policy gradient of the tokens that are not dropped, with a quadratic penalty on all of them. */
function penalized(x: Tokens, args: Args, gain: Variable, dropped: Variable): Variable {
  const { d, ratio } = probabilities(x);
  return dropped
    .choose(0, gain.neg().mul(ratio))
    .add(d.square().mul(option(args, 'kl_tau', 1e-3)))
    .sum()
    .div(Math.max(x.index.length, 1));
}

const primeRl: Formula = (x, args) => {
  const { advantages } = x;
  const { change, mismatch } = probabilities(x);
  const tooLow = change.test((c) => c < -option(args, 'dppo_mask_low', 0.2));
  const tooHigh = change.test((c) => c > option(args, 'dppo_mask_high', 0.2));
  const [positive, negative] = [isPositive(advantages), isNegative(advantages)];
  const dropped = positive.choose(tooHigh, tooLow);
  const loss = penalized(x, args, advantages.mul(option(args, 'adv_tau', 1)), dropped);
  const all = dropped.test(() => true);
  return {
    loss,
    metrics: {
      pg_loss: loss,
      ...droppedMetrics(x, dropped, mismatch),
      is_masked_low: meanOfRows(x, all, negative.mul(tooLow)),
      is_masked_high: meanOfRows(x, all, positive.mul(tooHigh)),
      masked_advantage_positive: meanOfRows(x, dropped, positive),
      masked_advantage_negative: meanOfRows(x, dropped, negative),
    },
  };
};

const primeRlIpo: Formula = (x, args) => {
  const { change, mismatch } = probabilities(x);
  const dropped = change.test((c) => Math.abs(c) > option(args, 'ipo_threshold', 0.1));
  const loss = penalized(x, args, x.advantages.mul(option(args, 'adv_tau', 1)), dropped);
  return { loss, metrics: { pg_loss: loss, ...droppedMetrics(x, dropped, mismatch) } };
};

const refKl: Formula = (x, args) => {
  const { change, mismatch } = probabilities(x);
  const low = args.mask_low === null ? Number.POSITIVE_INFINITY : option(args, 'mask_low', 0.2);
  const dropped = change.test((c) => c < -low);
  const distance = x.refLogprob.sub(x.logprob).detach();
  const loss = penalized(x, args, distance.mul(option(args, 'coef', 1)), dropped);
  return {
    loss,
    metrics: {
      pg_loss: loss,
      ref_kl: meanOfRows(
        x,
        dropped.test(() => true),
        distance,
      ),
      ...droppedMetrics(x, dropped, mismatch),
    },
  };
};

/** Returns ln(1 + Σ e^z) for each group, computed so that it does not overflow. */
function logSumExp(x: Tokens, z: Variable, flags: Variable, groupOf: number[], groups: number): Variable {
  const shifts = x.tape.leaf(new Float64Array(groups)).value;
  z.value.forEach((value, b) => {
    if (flags.value[b]) shifts[groupOf[b]!] = Math.max(shifts[groupOf[b]!]!, value);
  });
  const shift = x.tape.leaf(shifts).detach();
  const sum = flags.choose(z.sub(shift.gather(groupOf)).exp(), 0).sumBy(groupOf, groups);
  return sum.add(shift.neg().exp()).log().add(shift);
}

/** Compares the rows of a group that have a positive advantage with the others, as in classification. */
const real: Formula = (x, args) => {
  const tau = option(args, 'tau', 0.5);
  const score = rowMean(x, x.logprob.sub(x.oldLogprob)).div(tau);
  const positive = isPositive(rowMean(x, x.advantages));
  const names = [...new Set(x.rows.map((b) => x.batch.groupIds![b]!))];
  const groupOf = x.rows.map((b) => names.indexOf(x.batch.groupIds![b]!));
  const mixed = positive
    .sumBy(groupOf, names.length)
    .test((n, group) => n > 0 && n < groupOf.filter((g) => g === group).length);
  const perGroup = logSumExp(x, score, complement(positive), groupOf, names.length).add(
    logSumExp(x, score.neg(), positive, groupOf, names.length),
  );
  const loss = mixed.choose(perGroup, 0).sum().div(Math.max(names.length, 1));
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
