/**
 * verl's correction for the difference between the policy that samples tokens (`rollout`) and the policy that computes
 * their log-probabilities: importance weights, and rejection of tokens or rows. Losses take both as constants.
 */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, type Tokens } from '../batch.js';
import { filledRows, plainMean, prefixed } from './shared.js';
import {
  divergenceMetrics,
  rejectionMetrics,
  type Verdict,
  weightMetrics,
} from './verl-correction-metrics.js';

/** The result of a correction. `weights` and `kept` hold one value for each unmasked token. */
export interface Correction {
  weights: Variable | null;
  /** 1 for tokens that are kept, and 0 for rejected tokens. */
  kept: Variable;
  metrics: Outcome['metrics'];
}

/** Two bounds. `given` tells whether both were given, or the lower one was computed from the upper one. */
interface Bounds {
  low: number;
  high: number;
  given: boolean;
}

/** Reads `low_high`, or an upper bound alone. The lower bound of ratios is then the reciprocal of the upper. */
function boundsOf(threshold: number | string): Bounds {
  const [first, second] = String(threshold).split('_').map(Number);
  if (second !== undefined) return { low: first!, high: second, given: true };
  return { low: 1 / first!, high: first!, given: false };
}

/** Estimates the divergence of two policies at a token. `q` is the log of the ratio of its probabilities. */
const DIVERGENCES: Record<string, (q: Variable) => Variable> = {
  k1: (q) => q.neg(),
  k2: (q) => q.square().div(2),
  k3: (q) => q.exp().sub(1).sub(q),
};

/** Returns which tokens one option of `rollout_rs`, such as `seq_mean_k1`, keeps. */
function judge(x: Tokens, q: Variable, option: string, threshold: number | string): Verdict {
  const parts = option.split('_');
  const [kind, level] = [parts.at(-1)!, parts.slice(0, -1).join('_')];
  const perToken = DIVERGENCES[kind]!(q);
  const perRow: Record<string, () => Variable> = {
    token: () => x.rowMean(perToken),
    seq_sum: () => x.rowSum(perToken),
    seq_mean: () => x.rowMean(perToken),
    seq_max: () => perToken.extremeBy(x.rowOf, x.rows.length, 1),
  };
  const rowStatistic = perRow[level]!();
  const statistic = level === 'token' ? perToken : x.spread(rowStatistic);
  const { low, high } = boundsOf(threshold);
  // k1 estimates −q, so these bounds hold for the reciprocal of the ratio.
  const bounds = kind === 'k1' ? { low: Math.log(low), high: Math.log(high) } : { low: 0, high };
  const passed = statistic.test((s) => s <= bounds.high && (kind !== 'k1' || s >= bounds.low));
  return {
    option,
    ofTokens: level === 'token',
    twoSided: kind === 'k1',
    bounds,
    statistic,
    rowStatistic,
    passed,
  };
}

function verdicts(x: Tokens, q: Variable, args: Args): Verdict[] {
  const list = (text: unknown) =>
    String(text)
      .split(',')
      .map((part) => part.trim());
  const names = option<string | null>(args, 'rollout_rs', null);
  if (names === null) return [];
  const options = [...new Set(list(names))];
  const thresholds = list(args.rollout_rs_threshold);
  return options.map((name, i) => judge(x, q, name, thresholds[thresholds.length === 1 ? 0 : i]!));
}

/** Returns the sum of q over each row, limited like the log-ratios of tokens. */
const boundedSums = (x: Tokens, q: Variable) => x.rowSum(q).clip(-20, 20);

function importanceWeights(x: Tokens, q: Variable, args: Args) {
  const { rollout_is: level = null, rollout_is_threshold: threshold = 2 } = args as {
    rollout_is?: 'token' | 'sequence' | null;
    rollout_is_threshold?: number | string | null;
  };
  if (level === null || threshold === null) return { weights: null, metrics: {} };
  const bounds = boundsOf(threshold);
  const raw = level === 'token' ? q.clip(-20, 20).exp() : x.spread(boundedSums(x, q).exp());
  const { low, high, given } = bounds;
  const weights = given ? raw.test((w) => w >= low && w <= high).choose(raw, 0) : raw.min(high);
  const metrics = weightMetrics(x, { level, q, raw, weights, bounds });
  if (!option(args, 'rollout_is_batch_normalize', false)) return { weights, metrics };
  const { normalised, factor } = batchNormalised(x, weights, level);
  return { weights: normalised, metrics: { ...metrics, rollout_is_batch_norm_factor: factor } };
}

/** Divides weights of tokens by their mean, and weights of rows by the mean of the rows that have tokens. */
export function batchNormalised(x: Tokens, weights: Variable, level: string) {
  const mean = level === 'token' ? x.mean(weights) : plainMean(x.rowMean(weights).gather(filledRows(x)));
  const usable = mean.item > 1e-8;
  return { normalised: usable ? weights.div(mean) : weights, factor: usable ? mean : 1 };
}

/** verl refuses a batch without unmasked tokens. */
export function rolloutCorrection(x: Tokens, args: Args, policy: Variable, rollout: Variable): Correction {
  const q = policy.sub(rollout);
  const { weights, metrics } = importanceWeights(x, q, args);
  const all = verdicts(x, q.clip(-20, 20), args);
  const kept = all.reduce(
    (both, verdict) => both.mul(verdict.passed),
    q.test(() => true),
  );
  const unprefixed = {
    ...metrics,
    ...rejectionMetrics(x, all, kept),
    ...divergenceMetrics(x, policy, rollout),
  };
  return { weights, kept, metrics: prefixed('rollout_corr/', unprefixed) };
}

/** Returns the values of tokens as a B×T column (rows × columns) with 0 elsewhere. */
export const toColumn = (x: Tokens, perToken: Variable): Variable =>
  perToken.sumBy(x.index, x.batch.rows * x.batch.columns);

/** Evaluates a formula on the tokens that a correction keeps, and adds the metrics of the correction. */
export function underCorrection(
  formula: Formula,
  x: Tokens,
  args: Args,
  { weights, kept, metrics }: Correction,
): Outcome {
  const tokens = x.corrected(toColumn(x, kept).value, weights ? toColumn(x, weights) : undefined);
  const outcome = formula(tokens, args);
  return { loss: outcome.loss, metrics: { ...metrics, ...outcome.metrics } };
}

/** Lets a loss take the arguments `rollout_…`. They compare the policy that computed oldLogprob with the rollout's. */
export const withCorrection =
  (formula: Formula): Formula =>
  (x, args) =>
    Object.keys(args).some((name) => name.startsWith('rollout_'))
      ? underCorrection(
          formula,
          x,
          args,
          rolloutCorrection(x, args, x.oldLogprob, x.column('rolloutLogprob')),
        )
      : formula(x, args);
