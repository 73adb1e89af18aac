/**
 * The built-in policy losses and KL estimators, written in the language of user-defined losses. They are derived from
 * the formulas of the papers, and share nothing with the native code.
 */
import { POLICY_LOSS_FN } from '../../lib/index.js';
import { option } from '../reference/batch.js';
import type { Args } from '../reference/index.js';

/** A loss as a caller of lossFromExpression() writes it. */
export interface Written {
  text: string;
  options?: Record<string, number>;
  /** Metrics whose unit is not that of the loss. */
  metrics?: Record<string, string>;
  lossAggMode?: string;
}

/** Built-in functions that the language cannot express, with the reason. */
export const NOT_WRITTEN: Readonly<Record<string, string>> = {
  dpo: 'compares the rows of a pair',
  mix: 'reads expert_mask, and weights the experts’ rows by the sizes of batches',
  mix_chord: 'reads expert_mask and the step of the training',
  ...Object.fromEntries(
    POLICY_LOSS_FN.names()
      .filter((name) => name.includes('/'))
      .map((name) => [
        name,
        'is itself written as an expression, with weights that the language cannot express',
      ]),
  ),
};

/** Metrics that the language cannot express, with the reason. */
export const METRICS_NOT_WRITTEN: Readonly<Record<string, string>> = {
  ppo_kl_seq: 'a mean over rows, not over tokens',
  'seq_mask/mean_sequence_kl': 'a mean over rows, not over tokens',
  'seq_mask/masked_tokens': 'counts masked tokens too',
  kl_loss: 'the loss without its coefficient, in the aggregation of the loss',
  kl_coef: 'an option, also if the batch has no token',
};

/** The bounds of PPO's clip range, as options of a text. */
function clipRange(args: Args): { low: number; high: number } {
  return {
    low: option(args, 'clip_range_low', args.clip_range as number),
    high: option(args, 'clip_range_high', args.clip_range as number),
  };
}

function ppo(args: Args): Written {
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
  };
}

function gspo(args: Args): Written {
  const ratio = 'exp(lp - sg(lp) + sg(row_mean(d)))';
  const [unclipped, clipped] = [`-A*${ratio}`, `-A*clip(${ratio}, 1 - low, 1 + high)`];
  return {
    text: `max(${unclipped}, ${clipped})`,
    options: clipRange(args),
    metrics: { pg_clipfrac: `${clipped} > ${unclipped}`, ppo_kl: '-d' },
    lossAggMode: option(args, 'loss_agg_mode', 'seq-mean-token-mean'),
  };
}

function cispo(args: Args): Written {
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
}

function topr(args: Args): Written {
  const alpha = '(A <= threshold ? clip(r, 0, 1) : 1)';
  return {
    text: `-sg(${alpha})*A*lp`,
    options: { threshold: option(args, 'advantage_threshold', 0) },
    metrics: { avg_alpha: alpha, avg_ratio: 'r' },
  };
}

function sapo(args: Args): Written {
  const tau = '(A > 0 ? tau_pos : tau_neg)';
  const gate = `sigmoid(${tau}*(r - 1))*4/${tau}`;
  return {
    text: args.differentiate_gate ? `-A*${gate}` : `-A*sg(${gate})*lp`,
    options: { tau_pos: option(args, 'tau_pos', 1), tau_neg: option(args, 'tau_neg', 1.05) },
    metrics: { ppo_kl: '-d', avg_soft_gate: gate, avg_ratio: 'r', pos_adv_frac: 'A > 0' },
  };
}

function rec(args: Args): Written {
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
}

function sppo(args: Args): Written {
  const inside = '(r >= 1/(1 + epsilon) && r <= 1 + epsilon)';
  return {
    text: `-A*d*${inside}`,
    options: { epsilon: option(args, 'epsilon', 0.3) },
    metrics: { pg_clipfrac: `1 - ${inside}` },
  };
}

function sftPhi(args: Args): Written {
  const cutoff = option(args, 'cutoff_prob', 1);
  const logprob = cutoff < 1 ? 'min(lp, log(cutoff))' : 'lp';
  return { text: `-${logprob}*sg(exp(lp)*(1 - exp(lp)))`, options: { cutoff } };
}

/** The policy losses, by registry name. Each is a function of the loss's arguments. */
export const WRITTEN: Readonly<Record<string, (args: Args) => Written>> = {
  ppo,
  gspo,
  cispo,
  topr,
  sapo,
  sppo,
  rec,
  opmd: (args) => ({ text: '-A*lp/(1 + tau)', options: { tau: option(args, 'tau', 1) } }),
  sft: () => ({ text: '-lp' }),
  sft_is: () => ({ text: '-lp*sg(exp(lp))' }),
  sft_phi: sftPhi,
  importance_sampling: () => ({
    text: '-A*exp(clip(d, -20, 20))',
    metrics: { 'ratio/mean': 'exp(clip(d, -20, 20))', approx_kl: '-clip(d, -20, 20)' },
  }),
};

const k3 = (delta: string) => `(exp(${delta}) - 1 - (${delta}))`;

/** The KL estimators, by registry name. */
export const WRITTEN_KL: Readonly<Record<string, string>> = {
  none: '0',
  k1: 'lp - ref',
  k2: 'square(ref - lp)/2',
  k3: k3('ref - lp'),
  low_var_kl: `clip(${k3('clip(ref - lp, -20, 20)')}, -10, 10)`,
  abs: 'abs(lp - ref)',
  corrected_k3: `clip(r, 0, 2)*${k3('ref - lp')}`,
};
