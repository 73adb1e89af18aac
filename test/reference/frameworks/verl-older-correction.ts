/**
 * The rollout corrections of verl 0.7.0 and 0.6.0. Their only metrics are those of the veto, of rejected tokens and of
 * the normalisation.
 */
import type { Variable } from '../autograd.js';
import { type Args, option, type Tokens } from '../batch.js';
import { not, plainMean, prefixed } from './shared.js';
import { batchNormalised, type Correction } from './verl-correction.js';
import { rejectedFractions } from './verl-correction-metrics.js';

type Level = 'token' | 'sequence' | 'geometric';

/** Returns each token's ratio, or the ratio of its row: the product of the tokens' ratios, or their geometric mean. */
function ratios(x: Tokens, q: Variable, level: Level): Variable {
  const logs: Record<Level, () => Variable> = {
    token: () => q,
    sequence: () => x.spread(x.rowSum(q)),
    geometric: () => x.spread(x.rowMean(q)),
  };
  return logs[level]().clip(-20, 20).exp();
}

/** Finds the rows that have a token whose ratio is below `threshold`. They are dropped whole. */
function veto(x: Tokens, q: Variable, threshold: number | null) {
  const tiny = q.test((value) => threshold !== null && value < Math.log(threshold));
  const rows = x.rowSum(tiny).test((count) => count > 0);
  return {
    kept: not(x.spread(rows)),
    metrics: {
      rollout_is_veto_fraction: plainMean(rows),
      rollout_is_catastrophic_token_fraction: x.mean(tiny),
    },
  };
}

const within = (values: Variable, low: number, high: number) =>
  values.test((value) => value >= low && value <= high);

export function rolloutCorrectionV070(
  x: Tokens,
  args: Args,
  policy: Variable,
  rollout: Variable,
): Correction {
  const q = policy.sub(rollout);
  const { kept: spared, metrics: vetoMetrics } = veto(
    x,
    q,
    option(args, 'rollout_token_veto_threshold', null),
  );
  const metrics: Correction['metrics'] = { ...vetoMetrics };
  const level = option<Level | null>(args, 'rollout_is', null);
  let weights: Variable | null = null;
  if (level !== null) {
    weights = ratios(x, q, level).min(option(args, 'rollout_is_threshold', 2));
    if (option(args, 'rollout_is_batch_normalize', false)) {
      const { normalised, factor } = batchNormalised(x, weights, level);
      weights = normalised;
      metrics.rollout_is_batch_norm_factor = factor;
    }
  }
  const rejection = option<Level | null>(args, 'rollout_rs', null);
  let kept = spared;
  if (rejection !== null) {
    const high = args.rollout_rs_threshold as number;
    const inside = within(
      ratios(x, q, rejection),
      option(args, 'rollout_rs_threshold_lower', 1 / high),
      high,
    );
    Object.assign(metrics, rejectedFractions(x, inside));
    kept = spared.mul(inside);
  }
  return { weights, kept, metrics: prefixed('rollout_corr/', metrics) };
}

export function rolloutImportanceWeightsV060(
  x: Tokens,
  args: Args,
  policy: Variable,
  rollout: Variable,
): Correction {
  const q = policy.sub(rollout);
  const { rollout_is_veto_threshold: smallest = 1e-4 } = args as {
    rollout_is_veto_threshold?: number | null;
  };
  const { kept: spared, metrics } = veto(x, q, smallest);
  const ratio = ratios(x, q, option<Level>(args, 'rollout_is_level', 'token'));
  const high = option(args, 'rollout_is_threshold', 2);
  const inside = within(ratio, option(args, 'rollout_is_threshold_lower', 1 / high), high);
  const masks = option<string>(args, 'rollout_is_mode', 'truncate') === 'mask';
  const weights = (masks ? inside.choose(ratio, 0) : ratio.min(high)).mul(spared);
  const { rollout_rs_masked_fraction, rollout_rs_seq_masked_fraction } = rejectedFractions(x, inside);
  const maskMetrics = {
    rollout_is_masked_fraction: rollout_rs_masked_fraction!,
    rollout_is_seq_masked_fraction: rollout_rs_seq_masked_fraction!,
  };
  return {
    weights,
    kept: q.test(() => true),
    metrics: prefixed('mismatch/', { ...metrics, ...(masks ? maskMetrics : {}) }),
  };
}
