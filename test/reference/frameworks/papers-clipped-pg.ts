/** clipped_pg: NeMo-RL's loss, with a choice of ratios, corrections, KL terms and a likelihood term. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, type Tokens } from '../batch.js';
import { limited } from '../dual-clip.js';
import { k3, klEstimators } from '../kl.js';
import {
  type Bound,
  bounded,
  extreme,
  isPositive,
  meanOfRow,
  not,
  orNull,
  unitRatio,
  within,
} from './shared.js';

interface Ratios {
  ratio: Variable;
  clipped: Variable;
}

/** Returns the log-probabilities under the policy that counts as the one that sampled the tokens. */
const oldLogprob = (x: Tokens, args: Args): Variable =>
  option(args, 'force_on_policy_ratio', false) ? x.logprob.detach() : x.oldLogprob;

function ratios(x: Tokens, args: Args): Ratios {
  const { logprob } = x;
  if (option(args, 'disable_ppo_ratio', false)) return { ratio: logprob, clipped: logprob };
  const d = logprob.sub(oldLogprob(x, args));
  const ratio = option(args, 'sequence_level_importance_ratios', false)
    ? x.spread(x.rowMean(d)).exp()
    : d.exp();
  if (option(args, 'force_on_policy_ratio', false)) return { ratio, clipped: ratio };
  const clipped = ratio.clip(
    1 - option(args, 'ratio_clip_min', 0.2),
    1 + option(args, 'ratio_clip_max', 0.2),
  );
  return { ratio, clipped };
}

/** NeMo-RL computes in float32, where larger numbers are infinite. */
const LARGEST_FLOAT = 3.4028234663852886e38;

/** Returns the weight of each token for the sampler's policy, and its metrics. */
function importance(x: Tokens, args: Args): { weights: Variable; metrics: Outcome['metrics'] } {
  const difference = oldLogprob(x, args).sub(x.column('rolloutLogprob'));
  const perRow = option(args, 'sequence_level_importance_ratios', false);
  const mean = (values: Variable) => (perRow ? x.meanOverRows(values) : x.mean(values));
  const exact = (perRow ? x.rowSum(difference) : difference).exp();
  const ratio = exact.test((value) => value <= LARGEST_FLOAT).choose(exact, 0);
  const low = option<Bound>(args, 'truncated_importance_sampling_ratio_min', null);
  const high = option<Bound>(args, 'truncated_importance_sampling_ratio', null);
  const inside = within(ratio, low, high);
  const outside = () => x.mean(perRow ? x.spread(not(inside)) : not(inside));
  const isRowInside = within(meanOfRow(x, difference).exp(), low, high);
  const types: Record<string, () => { weights: Variable; outside?: Variable }> = {
    none: () => ({ weights: ratio }),
    tis: () => ({ weights: bounded(ratio, low, high), outside: outside() }),
    icepop: () => ({ weights: inside.choose(ratio, 0), outside: outside() }),
    'seq-mask-tis': () => ({
      weights: (perRow ? isRowInside : x.spread(isRowInside)).choose(ratio, 0),
      outside: x.meanOverRows(not(isRowInside)),
    }),
  };
  const { weights, outside: share } = types[option(args, 'truncated_importance_sampling_type', 'none')]!();
  return {
    weights: perRow ? x.spread(weights) : weights,
    metrics: { sampling_importance_ratio: mean(weights), ...(share ? { is_oob_ratio: share } : {}) },
  };
}

const estimatorOf = (args: Args) => klEstimators[option(args, 'reference_policy_kl_type', 'k3')]!.formula;

/** The KL to the reference policy per token. Its gradient includes that of the probability of the token. */
function klPenalty(x: Tokens, args: Args): Variable {
  const { logprob } = x;
  const inputLimit = orNull(args, 'kl_input_clamp_value', 20) ?? Number.POSITIVE_INFINITY;
  const outputLimit = orNull(args, 'kl_output_clamp_value', 10) ?? Number.POSITIVE_INFINITY;
  const delta = x.refLogprob.sub(logprob);
  const kl = estimatorOf(args)(delta.clip(-inputLimit, inputLimit), x);
  const ratio = option(args, 'use_on_policy_kl_approximation', false)
    ? logprob.sub(x.column('rolloutLogprob')).exp()
    : unitRatio(logprob);
  const weight = within(delta, -inputLimit, inputLimit).choose(ratio, ratio.detach());
  return weight.mul(kl).clip(-outputLimit, outputLimit);
}

/** Compares the policy, the sampler's and the old one. These metrics do not enter the loss. */
function mismatchMetrics(x: Tokens, args: Args): Outcome['metrics'] {
  const { logprob } = x;
  const rollout = x.column('rolloutLogprob');
  const difference = oldLogprob(x, args).sub(rollout);
  const estimate = estimatorOf(args);
  // The logarithm of the mean of both probabilities, less the rollout's.
  const middle = difference.expm1().mul(0.5).log1p();
  const divergence = k3(difference.sub(middle)).add(k3(middle.neg())).mul(0.5);
  return {
    token_mult_prob_error: x.mean(difference.abs().exp()),
    gen_kl_error: x.mean(estimate(difference, x)),
    policy_kl_error: x.mean(estimate(difference.neg(), x)),
    js_divergence_error: x.mean(divergence),
    approx_entropy: x.mean(logprob.sub(rollout).exp().mul(logprob).neg()),
  };
}

/** The mean of −lp over the tokens of rows with a positive reward. */
function positiveLoss(x: Tokens): Variable {
  const positive = x.spread(isPositive(x.perRow('rewards')));
  return x.logprob.neg().mul(positive).sum().div(positive.sum().add(1e-8));
}

export const clippedPg: Formula = (x, args) => {
  const { advantages, logprob } = x;
  const aggregate = (values: Variable) => x.aggregate(values, option(args, 'loss_agg_mode', 'token-mean'));
  const { ratio, clipped } = ratios(x, args);
  const reinforced = option(args, 'use_cispo', false)
    ? advantages.neg().mul(clipped.detach()).mul(logprob)
    : advantages.neg().mul(ratio).max(advantages.neg().mul(clipped));
  const { perToken } = limited(reinforced, advantages, option<Bound>(args, 'ratio_clip_c', null));
  const { weights, metrics } = importance(x, args);
  const isCorrected = option(args, 'use_importance_sampling_correction', false);
  const policy = aggregate(isCorrected ? perToken.mul(weights) : perToken);

  const nothing = x.tape.leaf([0]);
  const beta = option<number>(args, 'reference_policy_kl_penalty', 0.01);
  const kl = beta === 0 ? nothing : aggregate(klPenalty(x, args).mul(beta));
  const share = option<number>(args, 'positive_example_nll_weight', 0);
  const positive = share === 0 ? nothing : positiveLoss(x);
  const loss = policy.add(kl).add(positive.mul(share));
  const extremes = {
    probs_ratio_min: extreme(ratio, -1),
    probs_ratio_max: extreme(ratio, 1),
    probs_ratio_clamped_min: extreme(clipped, -1),
    probs_ratio_clamped_max: extreme(clipped, 1),
  };
  return {
    loss,
    metrics: {
      pg_loss: loss,
      probs_ratio: x.mean(ratio),
      probs_ratio_clamped: x.mean(clipped),
      ...(x.index.length ? extremes : {}),
      kl_penalty: beta === 0 ? 0 : kl.div(beta),
      ...mismatchMetrics(x, args),
      ...metrics,
      positive_nll_loss: positive,
    },
  };
};
