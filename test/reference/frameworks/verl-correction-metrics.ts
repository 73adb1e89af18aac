/** The metrics of verl's rollout correction. Statistics over rows count rows without tokens as 0, unless said. */
import type { Variable } from '../autograd.js';
import type { Outcome, Tokens } from '../batch.js';
import { extreme, filledRows, not, plainMean, prefixed, sampleStd } from './shared.js';

type Metrics = Outcome['metrics'];

interface Weights {
  level: 'token' | 'sequence';
  /** The log of each token's ratio. */
  q: Variable;
  /** The weight of each token, before and after it was limited to the bounds. */
  raw: Variable;
  weights: Variable;
  bounds: { low: number; high: number; given: boolean };
}

/** What one statistic says about the tokens. */
export interface Verdict {
  /** The statistic's name, such as `seq_mean_k1`. */
  option: string;
  /** True if tokens are rejected one by one, and false if whole rows are. */
  ofTokens: boolean;
  /** True if the lower bound applies too. */
  twoSided: boolean;
  bounds: { low: number; high: number };
  /** One value for each token. */
  statistic: Variable;
  rowStatistic: Variable;
  /** 1 for each token within the bounds. */
  passed: Variable;
}

const over = (values: Variable, bound: number) => values.test((value) => value > bound);
const under = (values: Variable, bound: number) => values.test((value) => value < bound);

/** Returns the standard deviation over the tokens, from the mean of the squares. That of a single token is 0. */
function tokenStd(x: Tokens, values: Variable): Variable | number {
  if (x.index.length < 2) return 0;
  return x.mean(values.square()).sub(x.mean(values).square()).clip(0, Number.POSITIVE_INFINITY).sqrt();
}

function rowSummary(perRow: Variable): Metrics {
  return {
    seq_mean: plainMean(perRow),
    seq_std: sampleStd(perRow),
    seq_max: extreme(perRow, 1),
    seq_min: extreme(perRow, -1),
  };
}

export function weightMetrics(x: Tokens, { level, q, raw, weights, bounds }: Weights): Metrics {
  const { low, high } = bounds;
  const perRow = x.rowMean(weights);
  const sums = x.rowSum(q);
  const ofLevel: Record<typeof level, () => Metrics> = {
    token: () => ({
      ratio_fraction_high: x.mean(over(raw, high)),
      ratio_fraction_low: x.mean(under(raw, low)),
      max: extreme(weights, 1),
      min: extreme(weights, -1),
    }),
    // The extremes of a row's ratio are those before it was limited.
    sequence: () => ({
      ratio_fraction_high: plainMean(over(sums, Math.log(high))),
      ratio_fraction_low: plainMean(under(sums, Math.log(low))),
      max: extreme(sums, 1).clip(Number.NEGATIVE_INFINITY, 20).exp(),
      // verl does not limit the smallest ratio, but e^88 is about the largest float32 number.
      min: extreme(sums, -1).clip(Number.NEGATIVE_INFINITY, 88).exp(),
    }),
  };
  const relative = x.mean(weights.div(x.mean(weights).add(1e-8)).square());
  return prefixed('rollout_is_', {
    ...ofLevel[level](),
    mean: x.mean(weights),
    std: tokenStd(x, weights),
    // verl divides by 0 if all weights are 0.
    eff_sample_size: relative.item > 0 ? x.tape.leaf([1]).div(relative) : 0,
    ...rowSummary(perRow),
    seq_max_deviation: extreme(perRow.sub(1).abs(), 1),
    seq_fraction_high: plainMean(over(x.rowMean(raw), high)),
    seq_fraction_low: plainMean(under(x.rowMean(raw), low)),
    ...(bounds.given ? { oob_ratio: x.mean(raw.test((w) => w < low || w > high)) } : {}),
  });
}

/** Returns 1 for each row with a rejected token. */
const rowsWithRejected = (x: Tokens, passed: Variable) => over(x.rowSum(not(passed)), 0);

/** Returns the metrics of one statistic. Statistics over rows leave out rows without tokens. */
function verdictMetrics(x: Tokens, verdict: Verdict): Metrics {
  const { bounds, statistic, passed, twoSided } = verdict;
  const filled = filledRows(x);
  const perRow = verdict.rowStatistic.gather(filled);
  const spread = verdict.ofTokens ? statistic : perRow;
  const fraction = (flags: Variable) => (verdict.ofTokens ? x.mean(flags) : plainMean(flags));
  return prefixed(`rollout_rs_${verdict.option}_`, {
    mean: x.mean(statistic),
    max: extreme(spread, 1),
    min: extreme(spread, -1),
    fraction_high: fraction(over(spread, bounds.high)),
    fraction_low: twoSided ? fraction(under(spread, bounds.low)) : 0,
    std: tokenStd(x, statistic.clip(bounds.low, bounds.high)),
    ...rowSummary(perRow),
    seq_max_deviation: extreme(perRow.abs(), 1),
    seq_fraction_high: plainMean(over(perRow, bounds.high)),
    ...(twoSided ? { seq_fraction_low: plainMean(under(perRow, bounds.low)) } : {}),
    masked_fraction: x.mean(not(passed)),
    seq_masked_fraction: plainMean(rowsWithRejected(x, passed).gather(filled)),
  });
}

export function rejectionMetrics(x: Tokens, verdicts: Verdict[], kept: Variable): Metrics {
  if (verdicts.length === 0) return {};
  return {
    ...Object.assign({}, ...verdicts.map((verdict) => verdictMetrics(x, verdict))),
    ...rejectedFractions(x, kept),
  };
}

export const rejectedFractions = (x: Tokens, kept: Variable): Metrics => ({
  rollout_rs_masked_fraction: x.mean(not(kept)),
  rollout_rs_seq_masked_fraction: plainMean(rowsWithRejected(x, kept)),
});

/** Returns metrics that compare the log-probabilities of the two policies. */
export function divergenceMetrics(x: Tokens, policy: Variable, rollout: Variable): Metrics {
  const q = policy.sub(rollout);
  const [policyLog, rolloutLog] = [x.rowMean(policy).neg(), x.rowMean(rollout).neg()];
  const difference = policyLog.sub(rolloutLog);
  const doubled = (logRatio: Variable) => logRatio.clip(-20, 20).mul(2).exp();
  return {
    training_ppl: plainMean(policyLog.exp()),
    training_log_ppl: plainMean(policyLog),
    rollout_ppl: plainMean(rolloutLog.exp()),
    rollout_log_ppl: plainMean(rolloutLog),
    log_ppl_diff: plainMean(difference),
    log_ppl_abs_diff: plainMean(difference.abs()),
    log_ppl_diff_max: extreme(difference, 1),
    log_ppl_diff_min: extreme(difference, -1),
    ppl_ratio: plainMean(difference.exp()),
    kl: x.mean(q.neg()),
    k3_kl: x.mean(q.exp().sub(1).sub(q)),
    chi2_token: x.index.length > 0 ? x.mean(doubled(q)).sub(1) : 0,
    chi2_seq: plainMean(doubled(x.rowSum(q))).sub(1),
  };
}
