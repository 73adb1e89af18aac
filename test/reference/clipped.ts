/**
 * Losses that use the ratio of a token's probability under the current policy to its probability under the policy that
 * sampled it: ppo, gspo, cispo, topr, sapo, sppo, rec, importance_sampling. Most of them bound this ratio.
 */
import type { Variable } from './autograd.js';
import { type Args, type Formula, option, rowPositions, type Tokens } from './batch.js';
import { dualClip, greater } from './dual-clip.js';

/** Returns the lower and upper bound of the ratio, 1 − low and 1 + high, where low and high are the clip range. */
function clipBounds(args: Args): [number, number] {
  const low = option(args, 'clip_range_low', args.clip_range);
  const high = option(args, 'clip_range_high', args.clip_range);
  if (typeof low !== 'number' || typeof high !== 'number')
    throw new Error('clip range: expected two numbers');
  return [1 - low, 1 + high];
}

export const ppo: Formula = (x, args) => {
  const { logprob, advantages } = x;
  const old = option(args, 'fallback_to_policy_gradient', false) ? logprob.detach() : x.oldLogprob;
  const d = logprob.sub(old).clip(-20, 20);
  const clipped = dualClip(x, d, advantages, clipBounds(args), option(args, 'clip_ratio_c', 3));
  let loss = clipped.perToken;
  const metrics = { ...clipped.metrics };
  if (option(args, 'enable_sequence_masking', false)) {
    const k = x.rowMean(d.neg(), 1e-10);
    const far = k.test((value) => value > option(args, 'delta_sequence_masking', 0.1));
    const dropped = x.spread(far).mul(advantages.test((a) => a < 0));
    loss = dropped.choose(0, loss);
    metrics['seq_mask/masked_tokens'] = negativeTokens(x, far) / (x.index.length + 1e-10);
    metrics['seq_mask/mean_sequence_kl'] = x.meanOverRows(k);
  }
  const pgLoss = x.aggregate(loss, option(args, 'loss_agg_mode', 'token-mean'));
  return { loss: pgLoss, metrics: { ...metrics, pg_loss: pgLoss } };
};

/** Counts the tokens with a negative advantage in the flagged rows. Masked tokens count as well, as in Trinity-RFT. */
function negativeTokens(x: Tokens, flagged: Variable): number {
  let count = 0;
  x.rows.forEach((b, row) => {
    if (!flagged.value[row]) return;
    for (const at of rowPositions(x.batch, b)) if (x.batch.advantages![at]! < 0) count++;
  });
  return count;
}

export const gspo: Formula = (x, args) => {
  const [low, high] = clipBounds(args);
  const { logprob, advantages } = x;
  const d = logprob.sub(x.oldLogprob);
  const s = x.rowMean(d);
  const ratio = logprob.sub(logprob.detach()).add(x.spread(s).detach()).exp();
  const unclipped = advantages.neg().mul(ratio);
  const clipped = advantages.neg().mul(ratio.clip(low, high));
  const loss = x.aggregate(unclipped.max(clipped), option(args, 'loss_agg_mode', 'seq-mean-token-mean'));
  return {
    loss,
    metrics: {
      pg_clipfrac: x.mean(greater(clipped, unclipped)),
      ppo_kl: x.mean(d.neg()),
      ppo_kl_seq: x.meanOverRows(s.neg()),
      pg_loss: loss,
    },
  };
};

export const cispo: Formula = (x, args) => {
  const low = 1 - option(args, 'clip_range_low', 1);
  const high = 1 + option(args, 'clip_range_high', 0.28);
  const maskLow = 1 - option(args, 'mask_clip_range_low', 1);
  const maskHigh = 1 + option(args, 'mask_clip_range_high', 0.28);
  const { logprob, advantages } = x;
  const d = logprob.sub(x.oldLogprob);
  const ratio = d.exp().detach();
  const dropped = (r: number, a: number) => (r > maskHigh && a > 0) || (r < maskLow && a < 0);
  const kept = ratio.test(
    (r, i) => !option(args, 'enable_mask_clip', false) || !dropped(r, advantages.value[i]!),
  );
  const perToken = advantages.neg().mul(ratio.clip(low, high)).mul(kept).mul(logprob);
  const loss = x.aggregate(perToken, option(args, 'loss_agg_mode', 'token-mean'));
  return { loss, metrics: { cispo_loss: loss, ppo_kl: x.mean(d.neg()), unmasked_frac: x.mean(kept) } };
};

export const topr: Formula = (x, args) => {
  const { logprob, advantages } = x;
  const ratio = logprob.sub(x.oldLogprob).exp().detach();
  const tapered = advantages.test((a) => a <= option(args, 'advantage_threshold', 0));
  const alpha = tapered.choose(ratio.clip(0, 1), 1);
  const loss = x.aggregate(
    alpha.neg().mul(advantages).mul(logprob),
    option(args, 'loss_agg_mode', 'token-mean'),
  );
  return { loss, metrics: { topr_loss: loss, avg_alpha: x.mean(alpha), avg_ratio: x.mean(ratio) } };
};

export const sapo: Formula = (x, args) => {
  const { logprob, advantages } = x;
  const positive = advantages.test((a) => a > 0);
  const tau = positive.choose(option(args, 'tau_pos', 1), option(args, 'tau_neg', 1.05));
  const d = logprob.sub(x.oldLogprob);
  const ratio = d.exp();
  const gate = ratio.sub(1).mul(tau).sigmoid().mul(4).div(tau);
  const perToken = option(args, 'differentiate_gate', false)
    ? advantages.neg().mul(gate)
    : advantages.neg().mul(gate.detach()).mul(logprob);
  const loss = x.aggregate(perToken, option(args, 'loss_agg_mode', 'token-mean'));
  return {
    loss,
    metrics: {
      sapo_loss: loss,
      ppo_kl: x.mean(d.neg()),
      avg_soft_gate: x.mean(gate),
      avg_ratio: x.mean(ratio),
      pos_adv_frac: x.mean(positive),
    },
  };
};

export const sppo: Formula = (x, args) => {
  const reach = 1 + option(args, 'epsilon', 0.3);
  const d = x.logprob.sub(x.oldLogprob);
  const inside = d
    .exp()
    .detach()
    .test((r) => r >= 1 / reach && r <= reach);
  const loss = x.aggregate(
    x.advantages.neg().mul(d).mul(inside),
    option(args, 'loss_agg_mode', 'token-mean'),
  );
  return { loss, metrics: { pg_clipfrac: x.mean(inside.neg().add(1)), pg_loss: loss } };
};

export const rec: Formula = (x, args) => {
  const mode = option<string>(args, 'clip_mode', 'none');
  const weight = option<string>(args, 'weight', 'none');
  const coef = option(args, 'regularizer_coef', 0);
  const low = 1 - option(args, 'epsilon_low', 0.2);
  const high = 1 + option(args, 'epsilon_high', 0.2);
  const farLow = 1 - option(args, 'epsilon_low_prime', 0.4);
  const farHigh = 1 + option(args, 'epsilon_high_prime', 0.4);

  const { logprob, advantages } = x;
  const d = logprob.sub(x.oldLogprob);
  const ratio = d.exp().detach();
  const rowRatio = x.spread(x.rowMean(d)).exp().detach();

  const twoSide = (r: number) => r >= low && r <= high;
  const oneSide = (r: number, a: number) => (r <= high && a >= 0) || (r >= low && a <= 0);
  const ring = (r: number, a: number) => twoSide(r) || (a >= 0 && r <= farLow) || (a <= 0 && r >= farHigh);
  const rules: Record<string, (r: number, a: number) => boolean> = {
    none: () => true,
    'one-side': oneSide,
    'gspo-one-side': oneSide,
    'two-side': twoSide,
    ring,
  };
  const judged = mode === 'gspo-one-side' ? rowRatio : ratio;
  const kept = judged.test((r, i) => rules[mode]!(r, advantages.value[i]!));

  const weights: Record<string, () => Variable> = {
    none: () => advantages,
    importance_sampling: () => advantages.mul(ratio),
    gspo_importance_sampling: () => advantages.mul(rowRatio),
    advantage: () => advantages.mul(advantages.div(option(args, 'temp', 1)).exp()),
  };
  let perToken = weights[weight]!().neg().mul(logprob).mul(kept);
  const regularizer = option<string>(args, 'regularizer', 'none');
  if (regularizer === 'forward-kl') perToken = perToken.sub(logprob.mul(coef));
  if (regularizer === 'k2') perToken = perToken.add(d.square().mul(coef));

  const loss = x.aggregate(perToken, mode === 'gspo-one-side' ? 'seq-mean-token-mean' : 'token-mean');
  return { loss, metrics: { pg_clipfrac: x.mean(kept.neg().add(1)), pg_loss: loss } };
};

export const importanceSampling: Formula = (x, args) => {
  const d = x.logprob.sub(x.oldLogprob).clip(-20, 20);
  const ratio = d.exp();
  const loss = x.aggregate(x.advantages.neg().mul(ratio), option(args, 'loss_agg_mode', 'token-mean'));
  return { loss, metrics: { pg_loss: loss, 'ratio/mean': x.mean(ratio), approx_kl: x.mean(d.neg()) } };
};
