/** clipped_pg: NeMo-RL's loss, with a choice of ratios, corrections, KL terms and a likelihood term. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, type Tokens } from '../batch.js';
import {
  bounded,
  dualClip,
  isPositive,
  k3,
  largest,
  rowMean,
  smallest,
  unitRatio,
  within,
} from './shared.js';

type Bound = number | null;

interface Ratios {
  ratio: Variable;
  clipped: Variable;
}

/** The policy that sampled the tokens: the current one if the arguments say so. */
const oldLogprob = (x: Tokens, args: Args): Variable =>
  option(args, 'force_on_policy_ratio', false) ? x.logprob.detach() : x.constant('oldLogprob');

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

/** The weight of each token for samples of another policy, as a constant, and its metrics. */
function importance(x: Tokens, args: Args): { weight: Variable; metrics: Record<string, Variable> } {
  const difference = oldLogprob(x, args).sub(x.constant('rolloutLogprob'));
  const perRow = option(args, 'sequence_level_importance_ratios', false);
  const raw = (perRow ? x.rowSum(difference) : difference).exp();
  const finite = raw.test((w) => Number.isFinite(w)).choose(raw, 0);
  const low = option<Bound>(args, 'truncated_importance_sampling_ratio_min', null);
  const high = option<Bound>(args, 'truncated_importance_sampling_ratio', null);
  const mean = (values: Variable) => (perRow ? x.meanOverRows(values) : x.mean(values));
  const inside = within(finite, low, high);
  const outside = mean(inside.neg().add(1));
  const geometric = within(rowMean(x, difference).exp(), low, high);
  const types: Record<string, () => { weight: Variable; oob?: Variable }> = {
    none: () => ({ weight: finite }),
    tis: () => ({ weight: bounded(finite, low ?? 0, high), oob: outside }),
    icepop: () => ({ weight: inside.choose(finite, 0), oob: outside }),
    'seq-mask-tis': () => ({
      weight: (perRow ? geometric : x.spread(geometric)).choose(finite, 0),
      oob: x.meanOverRows(geometric.neg().add(1)),
    }),
  };
  const { weight, oob } = types[option(args, 'truncated_importance_sampling_type', 'none')]!();
  return {
    weight: perRow ? x.spread(weight) : weight,
    metrics: { sampling_importance_ratio: mean(weight), ...(oob ? { is_oob_ratio: oob } : {}) },
  };
}

const estimators: Record<string, (delta: Variable) => Variable> = {
  k1: (delta) => delta.neg(),
  k2: (delta) => delta.square().mul(0.5),
  k3,
};

/** The KL to the reference policy per token, with the gradient of the sampling included. */
function klPenalty(x: Tokens, args: Args, beta: number): Variable {
  const { logprob } = x;
  const limit = (name: string, fallback: number) =>
    args[name] === null ? Number.POSITIVE_INFINITY : option(args, name, fallback);
  const [inputLimit, outputLimit] = [limit('kl_input_clamp_value', 20), limit('kl_output_clamp_value', 10)];
  const difference = x.refLogprob.sub(logprob);
  const k = estimators[option(args, 'reference_policy_kl_type', 'k3')]!(
    difference.clip(-inputLimit, inputLimit),
  );
  const ratio = option(args, 'use_on_policy_kl_approximation', false)
    ? logprob.sub(x.constant('rolloutLogprob')).exp()
    : unitRatio(logprob);
  const weight = within(difference, -inputLimit, inputLimit).choose(ratio, ratio.detach());
  return weight.mul(k).clip(-outputLimit, outputLimit).mul(beta);
}

/** Comparisons of the policy, the sampler and the old policy, which do not enter the loss. */
function errorMetrics(x: Tokens, args: Args): Record<string, Variable> {
  const { logprob } = x;
  const [old, rollout] = [oldLogprob(x, args), x.constant('rolloutLogprob')];
  const k = estimators[option(args, 'reference_policy_kl_type', 'k3')]!;
  const middle = old.exp().add(rollout.exp()).mul(0.5).log();
  return {
    token_mult_prob_error: x.mean(rollout.sub(old).abs().exp()),
    gen_kl_error: x.mean(k(old.sub(rollout))),
    policy_kl_error: x.mean(k(rollout.sub(old))),
    js_divergence_error: x.mean(
      k3(old.sub(middle))
        .add(k3(rollout.sub(middle)))
        .mul(0.5),
    ),
    approx_entropy: x.mean(logprob.sub(rollout).exp().mul(logprob).neg()),
  };
}

/** The mean negative log-likelihood of the tokens in rows with a positive reward. */
function positiveLikelihood(x: Tokens): Variable {
  const positive = x.spread(isPositive(x.perRow('rewards')));
  return x.logprob
    .neg()
    .mul(positive)
    .sum()
    .div(positive.sum().item + 1e-8);
}

function extremes(name: string, values: Variable): Record<string, number> {
  if (values.length === 0) return {};
  return { [`${name}_min`]: smallest(values.value), [`${name}_max`]: largest(values.value) };
}

export const clippedPg: Formula = (x, args) => {
  const { advantages, logprob } = x;
  const aggregate = (values: Variable) => x.aggregate(values, option(args, 'loss_agg_mode', 'token-mean'));
  const { ratio, clipped } = ratios(x, args);
  const surrogate = option(args, 'use_cispo', false)
    ? advantages.neg().mul(clipped.detach()).mul(logprob)
    : advantages.neg().mul(ratio).max(advantages.neg().mul(clipped));
  const { loss } = dualClip(surrogate, advantages, option<Bound>(args, 'ratio_clip_c', null));
  const { weight, metrics } = importance(x, args);
  const corrected = option(args, 'use_importance_sampling_correction', false) ? loss.mul(weight) : loss;

  const beta = option<number>(args, 'reference_policy_kl_penalty', 0.01);
  const kl = beta === 0 ? x.tape.leaf([0]) : aggregate(klPenalty(x, args, beta));
  const share = option(args, 'positive_example_nll_weight', 0);
  const likelihood = share === 0 ? x.tape.leaf([0]) : positiveLikelihood(x);
  const whole = aggregate(corrected).add(kl).add(likelihood.mul(share));
  return {
    loss: whole,
    metrics: {
      pg_loss: whole,
      probs_ratio: x.mean(ratio),
      probs_ratio_clamped: x.mean(clipped),
      ...extremes('probs_ratio', ratio),
      ...extremes('probs_ratio_clamped', clipped),
      kl_penalty: beta === 0 ? 0 : kl.div(beta),
      ...errorMetrics(x, args),
      ...metrics,
      positive_nll_loss: likelihood,
    },
  };
};
