/** Options that TRL's losses share: weights, masks, corrections, the KL term and the entropy bonus. */
import type { Variable } from '../autograd.js';
import { type Args, type Outcome, option, type Tokens } from '../batch.js';
import { k3 } from '../kl.js';
import {
  type Bound,
  bounded,
  extreme,
  filledRows,
  isNegative,
  isPositive,
  meanOfRow,
  not,
  ones,
  orNull,
  quantile,
  tokenMean,
  within,
} from './shared.js';

type Metrics = Outcome['metrics'];

/** Returns the log-probabilities under the policy that sampled the tokens: by default, the current policy. */
export const oldLogprob = (x: Tokens): Variable => (x.batch.oldLogprob ? x.oldLogprob : x.logprob.detach());

/** The losses that are divided by the number of tokens of all processes and accumulation steps. */
const DIVIDED_BY_ITEMS = ['dapo', 'cispo', 'vespo'];
const itemWeight = (x: Tokens, args: Args) =>
  option(args, 'num_processes', 1) / Math.max(option(args, 'num_items_in_batch', x.index.length), 1);

/** Returns the weight of each unmasked token in the loss. `kind` names the loss of the GRPO trainer. */
export function weights(x: Tokens, kind: string, args: Args): Variable {
  if (DIVIDED_BY_ITEMS.includes(kind)) return ones(x).mul(itemWeight(x, args));
  const divisors: Record<string, (n: number) => number> = {
    grpo: (n) => x.rows.length * n,
    sapo: (n) => x.rows.length * n,
    bnpo: () => x.index.length,
    dr_grpo: () => x.rows.length * option(args, 'max_completion_length', 512),
    luspo: () => x.rows.length,
  };
  const steps = option(args, 'gradient_accumulation_steps', 1);
  return x.spread(x.tape.leaf(x.counts.map((n) => 1 / (steps * divisors[kind]!(n)))));
}

/** Flags the tokens whose entropy is in the top share of the whole batch. */
export function topEntropy(x: Tokens, args: Args): Variable {
  const share = option(args, 'top_entropy_quantile', 1);
  if (share === 1) return ones(x);
  const entropy = x.constant('entropy');
  return within(entropy, quantile(entropy.value, 1 - share), null);
}

/** Flags all tokens but those with a negative advantage in rows far from the policy that sampled them. */
export function nearPolicy(x: Tokens, args: Args): Variable {
  const threshold = option<Bound>(args, 'off_policy_mask_threshold', null);
  if (threshold === null) return ones(x);
  const sampler = option(args, 'use_vllm', false) ? x.column('rolloutLogprob') : oldLogprob(x);
  const far = meanOfRow(x, sampler.sub(x.logprob).detach()).test((kl) => kl > threshold);
  return not(x.spread(far).mul(isNegative(x.advantages)));
}

/** Corrects for the difference between the policy that the trainer computes and the one that vLLM sampled from. */
export function vllmCorrection(x: Tokens, args: Args): { weights: Variable; metrics: Metrics } | null {
  if (!option(args, 'use_vllm', false) || !option(args, 'vllm_importance_sampling_correction', true))
    return null;
  const mode = option(args, 'vllm_importance_sampling_mode', 'sequence_mask');
  const low = option<Bound>(args, 'vllm_importance_sampling_clip_min', null);
  const high = orNull(args, 'vllm_importance_sampling_clip_max', 3);
  const difference = x.oldLogprob.sub(x.column('rolloutLogprob'));
  const perRow = mode.startsWith('sequence');
  const ratio = (perRow ? x.rowSum(difference) : difference).exp();
  const limited = mode.endsWith('mask')
    ? within(ratio, low, high).choose(ratio, 0)
    : bounded(ratio, low, high);
  return {
    weights: perRow ? x.spread(limited) : limited,
    metrics: {
      'sampling/sampling_logp_difference/mean': tokenMean(x, difference.abs()),
      'sampling/sampling_logp_difference/max': extreme(difference.abs(), 1),
      'sampling/importance_sampling_ratio/min': extreme(limited, -1),
      'sampling/importance_sampling_ratio/mean': perRow ? x.meanOverRows(limited) : tokenMean(x, limited),
      'sampling/importance_sampling_ratio/max': extreme(limited, 1),
    },
  };
}

/** The KL to the reference policy, per token. `ratio` is the importance ratio of the loss. */
export function klPenalty(x: Tokens, args: Args, ratio: Variable): Variable {
  const kl = k3(x.refLogprob.sub(x.logprob));
  return option(args, 'use_bias_correction_kl', false) ? kl.mul(ratio) : kl;
}

/** Flags the ratios below the range that have a negative advantage, and those above it that have a positive one. */
export function outside(ratio: Variable, advantages: Variable, [low, high]: readonly [number, number]) {
  return {
    low: ratio.test((r) => r < low).mul(isNegative(advantages)),
    high: ratio.test((r) => r > high).mul(isPositive(advantages)),
  };
}

/** The fractions of the tokens or, with perRow, of the rows that are flagged. */
export function clipMetrics(
  x: Tokens,
  perRow: boolean,
  { low, high }: { low: Variable; high: Variable },
): Metrics {
  const mean = (flags: Variable) => (perRow ? x.meanOverRows(flags) : tokenMean(x, flags));
  const ofRows = (flags: Variable) => (perRow ? flags : meanOfRow(x, flags).gather(filledRows(x)));
  return {
    'clip_ratio/low_mean': mean(low),
    'clip_ratio/high_mean': mean(high),
    'clip_ratio/region_mean': mean(low.add(high)),
    'clip_ratio/low_min': extreme(ofRows(low), -1),
    'clip_ratio/high_max': extreme(ofRows(high), 1),
  };
}

export const entropyMetric = (x: Tokens): Metrics =>
  x.batch.entropy ? { entropy: tokenMean(x, x.constant('entropy')) } : {};

/** Subtracts the entropy bonus from a loss. `kept` flags the tokens whose entropy counts. */
export function withBonus(x: Tokens, args: Args, kind: string, kept: Variable, loss: Variable): Outcome {
  const coefficient = option(args, 'entropy_coef', 0);
  const adaptive = option(args, 'use_adaptive_entropy', false);
  if (coefficient === 0 && !adaptive) return { loss, metrics: {} };

  const steps = option(args, 'gradient_accumulation_steps', 1);
  const count = Math.max(kept.sum().item, 1);
  const byItems = DIVIDED_BY_ITEMS.includes(kind);
  const entropy = x.column('entropy').mul(kept).sum();
  const target = option(args, 'entropy_target', 0.2);
  const applies = !adaptive || option(args, 'last_world_entropy', Number.POSITIVE_INFINITY) <= target;
  const scale = byItems ? itemWeight(x, args) : 1 / (steps * count);
  return {
    loss: loss.sub(entropy.mul(applies ? coefficient * scale : 0)),
    metrics: {
      policy_loss: byItems ? loss : loss.mul(steps),
      entropy_coef: adaptive ? adapted(args, coefficient, entropy.item / count <= target) : coefficient,
    },
  };
}

/** Returns the coefficient of the next step. */
function adapted(args: Args, coefficient: number, rises: boolean): number {
  const step = option(args, 'entropy_coef_delta', 0.005);
  return rises
    ? Math.min(coefficient + step, option(args, 'entropy_coef_max', 1))
    : Math.max(coefficient - step, option(args, 'entropy_coef_min', 0));
}
