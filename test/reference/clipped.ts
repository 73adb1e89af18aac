/**
 * Losses that use the ratio of a token's probability under the current policy to its probability under the policy that
 * sampled it: ppo, gspo, cispo, topr, sapo, sppo, rec, importance_sampling. Most of them bound this ratio.
 */
import type { Variable } from './autograd.js';
import { type Args, type Loss, option, rowPositions, type Tokens } from './batch.js';
import { dualClip, greater } from './dual-clip.js';

/** Returns the clip range: the ratio is bounded by 1 − low and 1 + high. */
function clipRange(args: Args): { low: number; high: number } {
  const low = option(args, 'clip_range_low', args.clip_range);
  const high = option(args, 'clip_range_high', args.clip_range);
  if (typeof low !== 'number' || typeof high !== 'number')
    throw new Error('clip range: expected two numbers');
  return { low, high };
}

export const ppo: Loss = {
  formula: (x, args) => {
    const { low, high } = clipRange(args);
    const { logprob, advantages } = x;
    const old = option(args, 'fallback_to_policy_gradient', false) ? logprob.detach() : x.oldLogprob;
    const d = logprob.sub(old).clip(-20, 20);
    const clipped = dualClip(x, d, advantages, [1 - low, 1 + high], option(args, 'clip_ratio_c', 3));
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
  },
  written: (args) => {
    const d = `clip(lp - ${args.fallback_to_policy_gradient ? 'sg(lp)' : 'old'}, -20, 20)`;
    const unclipped = `-A*exp(${d})`;
    const clipped = `-A*clip(exp(${d}), 1 - low, 1 + high)`;
    const larger = `max(${unclipped}, ${clipped})`;
    const dual = `A < 0 ? min(-A*cap, ${larger}) : ${larger}`;
    const isFar = `A < 0 && row_mean(-${d}) > delta`;
    return {
      text: args.enable_sequence_masking ? `${isFar} ? 0 : (${dual})` : dual,
      options: {
        ...clipRange(args),
        cap: option(args, 'clip_ratio_c', 3),
        delta: option(args, 'delta_sequence_masking', 0.1),
      },
      metrics: {
        pg_clipfrac: `${clipped} > ${unclipped}`,
        pg_clipfrac_lower: `A < 0 && ${larger} > -A*cap ? 1 : 0`,
        ppo_kl: `-${d}`,
      },
      metricsNotWritten: {
        'seq_mask/mean_sequence_kl': 'a mean over rows, not over tokens',
        'seq_mask/masked_tokens': 'counts masked tokens too',
      },
    };
  },
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

export const gspo: Loss = {
  formula: (x, args) => {
    const { low, high } = clipRange(args);
    const { logprob, advantages } = x;
    const d = logprob.sub(x.oldLogprob);
    const s = x.rowMean(d);
    const ratio = logprob.sub(logprob.detach()).add(x.spread(s).detach()).exp();
    const unclipped = advantages.neg().mul(ratio);
    const clipped = advantages.neg().mul(ratio.clip(1 - low, 1 + high));
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
  },
  written: (args) => {
    const ratio = 'exp(lp - sg(lp) + sg(row_mean(d)))';
    const [unclipped, clipped] = [`-A*${ratio}`, `-A*clip(${ratio}, 1 - low, 1 + high)`];
    return {
      text: `max(${unclipped}, ${clipped})`,
      options: clipRange(args),
      metrics: { pg_clipfrac: `${clipped} > ${unclipped}`, ppo_kl: '-d' },
      metricsNotWritten: { ppo_kl_seq: 'a mean over rows, not over tokens' },
      lossAggMode: option(args, 'loss_agg_mode', 'seq-mean-token-mean'),
    };
  },
};

export const cispo: Loss = {
  formula: (x, args) => {
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
  },
  written: (args) => {
    const left = '(r > 1 + mask_high && A > 0) || (r < 1 - mask_low && A < 0)';
    const kept = args.enable_mask_clip ? `(${left} ? 0 : 1)` : '1';
    return {
      text: `-A*sg(clip(r, 1 - low, 1 + high))*${kept}*lp`,
      options: {
        low: option(args, 'clip_range_low', 1),
        high: option(args, 'clip_range_high', 0.28),
        mask_low: option(args, 'mask_clip_range_low', 1),
        mask_high: option(args, 'mask_clip_range_high', 0.28),
      },
      metrics: { ppo_kl: '-d', unmasked_frac: kept },
    };
  },
};

export const topr: Loss = {
  formula: (x, args) => {
    const { logprob, advantages } = x;
    const ratio = logprob.sub(x.oldLogprob).exp().detach();
    const tapered = advantages.test((a) => a <= option(args, 'advantage_threshold', 0));
    const alpha = tapered.choose(ratio.clip(0, 1), 1);
    const loss = x.aggregate(
      alpha.neg().mul(advantages).mul(logprob),
      option(args, 'loss_agg_mode', 'token-mean'),
    );
    return { loss, metrics: { topr_loss: loss, avg_alpha: x.mean(alpha), avg_ratio: x.mean(ratio) } };
  },
  written: (args) => {
    const alpha = '(A <= threshold ? clip(r, 0, 1) : 1)';
    return {
      text: `-sg(${alpha})*A*lp`,
      options: { threshold: option(args, 'advantage_threshold', 0) },
      metrics: { avg_alpha: alpha, avg_ratio: 'r' },
    };
  },
};

export const sapo: Loss = {
  formula: (x, args) => {
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
  },
  written: (args) => {
    const tau = '(A > 0 ? tau_pos : tau_neg)';
    const gate = `sigmoid(${tau}*(r - 1))*4/${tau}`;
    return {
      text: args.differentiate_gate ? `-A*${gate}` : `-A*sg(${gate})*lp`,
      options: { tau_pos: option(args, 'tau_pos', 1), tau_neg: option(args, 'tau_neg', 1.05) },
      metrics: { ppo_kl: '-d', avg_soft_gate: gate, avg_ratio: 'r', pos_adv_frac: 'A > 0' },
    };
  },
};

export const sppo: Loss = {
  formula: (x, args) => {
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
  },
  written: (args) => {
    const inside = '(r >= 1/(1 + epsilon) && r <= 1 + epsilon)';
    return {
      text: `-A*d*${inside}`,
      options: { epsilon: option(args, 'epsilon', 0.3) },
      metrics: { pg_clipfrac: `1 - ${inside}` },
    };
  },
};

export const rec: Loss = {
  formula: (x, args) => {
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
  },
  written: (args) => {
    const mode = option<string>(args, 'clip_mode', 'none');
    const ratio = mode === 'gspo-one-side' ? 'exp(row_mean(d))' : 'r';
    const twoSides = `(${ratio} >= 1 - low && ${ratio} <= 1 + high)`;
    const oneSide = `(A >= 0 && ${ratio} <= 1 + high) || (A <= 0 && ${ratio} >= 1 - low)`;
    const far = '(A >= 0 && r <= 1 - far_low) || (A <= 0 && r >= 1 + far_high)';
    const kept = {
      none: '1',
      'one-side': oneSide,
      'gspo-one-side': oneSide,
      'two-side': twoSides,
      ring: `${twoSides} || ${far}`,
    }[mode]!;
    const weighted = {
      none: 'A',
      importance_sampling: 'A*sg(r)',
      gspo_importance_sampling: 'A*sg(exp(row_mean(d)))',
      advantage: 'A*exp(A/temp)',
    }[option<string>(args, 'weight', 'none')]!;
    const regularizer = { none: '', 'forward-kl': ' - coef*lp', k2: ' + coef*d**2' }[
      option<string>(args, 'regularizer', 'none')
    ]!;
    return {
      text: `(${kept} ? -${weighted}*lp : 0)${regularizer}`,
      options: {
        low: option(args, 'epsilon_low', 0.2),
        high: option(args, 'epsilon_high', 0.2),
        far_low: option(args, 'epsilon_low_prime', 0.4),
        far_high: option(args, 'epsilon_high_prime', 0.4),
        coef: option(args, 'regularizer_coef', 0),
        temp: option(args, 'temp', 1),
      },
      metrics: { pg_clipfrac: `!(${kept})` },
      lossAggMode: mode === 'gspo-one-side' ? 'seq-mean-token-mean' : 'token-mean',
    };
  },
};

export const importanceSampling: Loss = {
  formula: (x, args) => {
    const d = x.logprob.sub(x.oldLogprob).clip(-20, 20);
    const ratio = d.exp();
    const loss = x.aggregate(x.advantages.neg().mul(ratio), option(args, 'loss_agg_mode', 'token-mean'));
    return { loss, metrics: { pg_loss: loss, 'ratio/mean': x.mean(ratio), approx_kl: x.mean(d.neg()) } };
  },
  written: () => ({
    text: '-A*exp(clip(d, -20, 20))',
    metrics: { 'ratio/mean': 'exp(clip(d, -20, 20))', approx_kl: '-clip(d, -20, 20)' },
  }),
};
