/** Options that TRL's losses share: weights, masks, corrections, the KL term and the entropy bonus. */
import type { Variable } from '../autograd.js';
import { type Args, option, type Tokens } from '../batch.js';
import {
  bounded,
  isNegative,
  isPositive,
  k3,
  largest,
  quantile,
  rowMean,
  smallest,
  tokenMean,
  within,
} from './shared.js';

export type Metrics = Record<string, Variable | number>;

/** Returns log-probabilities of the policy that sampled the tokens: by default, of the current policy. */
export const oldLogprob = (x: Tokens): Variable =>
  x.batch.oldLogprob ? x.constant('oldLogprob') : x.logprob.detach();

/** Returns what each unmasked token weighs in the loss. */
export function weights(x: Tokens, kind: string, args: Args): Variable {
  const steps = option(args, 'gradient_accumulation_steps', 1);
  const perRow = (weight: (n: number) => number) => x.spread(x.tape.leaf(x.counts.map(weight)));
  switch (kind) {
    case 'grpo':
    case 'sapo':
      return perRow((n) => 1 / (steps * x.rows.length * n));
    case 'bnpo':
      return perRow(() => 1 / (steps * x.index.length));
    case 'dr_grpo':
      return perRow(() => 1 / (steps * x.rows.length * option(args, 'max_completion_length', 512)));
    case 'luspo':
      return perRow(() => 1 / (steps * x.rows.length));
    default:
      return perRow(() => perItem(x, args));
  }
}

/** Returns 1 / the number of tokens that one of the processes must divide by. It spans the accumulated steps. */
export const perItem = (x: Tokens, args: Args): number =>
  option(args, 'num_processes', 1) / Math.max(option(args, 'num_items_in_batch', x.index.length), 1);

/** Flags the tokens whose entropy is in the top share of the whole batch. */
export function topEntropy(x: Tokens, args: Args): Variable {
  const share = option(args, 'top_entropy_quantile', 1);
  if (share >= 1) return x.tape.leaf(x.index.map(() => 1));
  const entropy = x.constant('entropy');
  return within(entropy, quantile(entropy.value, 1 - share), null);
}

/** Flags the tokens that the off-policy mask keeps. */
export function nearPolicy(x: Tokens, args: Args): Variable {
  const threshold = option<number | null>(args, 'off_policy_mask_threshold', null);
  if (threshold === null) return x.tape.leaf(x.index.map(() => 1));
  const sampler = option(args, 'use_vllm', false) ? x.constant('rolloutLogprob') : oldLogprob(x);
  const kl = rowMean(x, sampler.sub(x.logprob.detach()));
  const far = x.spread(kl.test((value) => value > threshold));
  return isNegative(x.advantages)
    .mul(far)
    .choose(0, x.tape.leaf(x.index.map(() => 1)));
}

/** The correction for the difference between the policy and the sampler's copy of it. */
export interface Correction {
  /** The bounded ratio per token, and 1 without the correction. */
  weight: Variable;
  metrics: Metrics;
}

export function vllmCorrection(x: Tokens, args: Args): Correction | null {
  if (!option(args, 'use_vllm', false) || !option(args, 'vllm_importance_sampling_correction', true))
    return null;
  const mode = option(args, 'vllm_importance_sampling_mode', 'sequence_mask');
  const low = option<number | null>(args, 'vllm_importance_sampling_clip_min', null);
  const high =
    args.vllm_importance_sampling_clip_max === null
      ? null
      : option(args, 'vllm_importance_sampling_clip_max', 3);
  const difference = x.constant('oldLogprob').sub(x.constant('rolloutLogprob'));
  const perRow = mode.startsWith('sequence');
  const ratio = (perRow ? x.rowSum(difference) : difference).exp();
  const bound = mode.endsWith('mask') ? within(ratio, low, high).choose(ratio, 0) : bounded(ratio, low, high);
  return {
    weight: perRow ? x.spread(bound) : bound,
    metrics: {
      'sampling/sampling_logp_difference/mean': tokenMean(x, difference.abs()),
      'sampling/sampling_logp_difference/max': largest(difference.value.map(Math.abs)),
      'sampling/importance_sampling_ratio/min': smallest(bound.value),
      'sampling/importance_sampling_ratio/mean': perRow ? x.meanOverRows(bound) : tokenMean(x, bound),
      'sampling/importance_sampling_ratio/max': largest(bound.value),
    },
  };
}

/** The KL to the reference policy, per token. `ratio` is the importance ratio of the loss. */
export function referenceKl(x: Tokens, args: Args, ratio: Variable): Variable {
  const kl = k3(x.refLogprob.sub(x.logprob));
  return option(args, 'use_bias_correction_kl', false) ? kl.mul(ratio) : kl;
}

/** The fractions of tokens, or of rows, beyond the clip range. A flag is 1 there. */
export function clipMetrics(x: Tokens, perRow: boolean, low: Variable, high: Variable): Metrics {
  const mean = (flags: Variable) => (perRow ? x.meanOverRows(flags) : tokenMean(x, flags));
  const rows = (flags: Variable) =>
    perRow ? flags.value : rowMean(x, flags).value.filter((_, b) => x.counts[b]! > 0);
  return {
    'clip_ratio/low_mean': mean(low),
    'clip_ratio/high_mean': mean(high),
    'clip_ratio/region_mean': mean(low.add(high)),
    'clip_ratio/low_min': smallest(rows(low)),
    'clip_ratio/high_max': largest(rows(high)),
  };
}

/** Flags the ratios below the range that have a negative advantage, and those above it that have a positive one. */
export function beyondRange(
  ratio: Variable,
  advantages: Variable,
  low: number,
  high: number,
): { low: Variable; high: Variable } {
  return {
    low: ratio.test((r) => r < low).mul(isNegative(advantages)),
    high: ratio.test((r) => r > high).mul(isPositive(advantages)),
  };
}

export function entropyMetric(x: Tokens): Metrics {
  return x.batch.entropy ? { entropy: tokenMean(x, x.constant('entropy')) } : {};
}

/** Subtracts the entropy bonus from a loss and adds its metrics. `kept` flags the tokens whose entropy counts. */
export function withBonus(
  x: Tokens,
  args: Args,
  kind: string,
  kept: Variable,
  loss: Variable,
): { loss: Variable; metrics: Metrics } {
  const coefficient = option(args, 'entropy_coef', 0);
  const adaptive = option(args, 'use_adaptive_entropy', false);
  if (coefficient === 0 && !adaptive) return { loss, metrics: {} };

  const steps = option(args, 'gradient_accumulation_steps', 1);
  const global = ['dapo', 'cispo', 'vespo'].includes(kind);
  const entropy = x.column('entropy').mul(kept).sum();
  const count = Math.max(kept.sum().item, 1);
  const target = option(args, 'entropy_target', 0.2);
  const applied = !adaptive || option(args, 'last_world_entropy', Number.POSITIVE_INFINITY) <= target;
  const scale = global ? perItem(x, args) : 1 / (steps * count);
  return {
    loss: loss.sub(entropy.mul(applied ? coefficient * scale : 0)),
    metrics: {
      policy_loss: global ? loss : loss.mul(steps),
      entropy_coef: adaptive
        ? nextCoefficient(args, coefficient, entropy.item / count <= target)
        : coefficient,
    },
  };
}

function nextCoefficient(args: Args, coefficient: number, raise: boolean): number {
  const step = option(args, 'entropy_coef_delta', 0.005);
  return raise
    ? Math.min(coefficient + step, option(args, 'entropy_coef_max', 1))
    : Math.max(coefficient - step, option(args, 'entropy_coef_min', 0));
}
