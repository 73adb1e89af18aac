// The metrics of verl's rollout correction.
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import type { MetricExpression } from '../../../program/loss-program.js';
import { bounded, meanOfBatch, meanOfRow } from './arithmetic.js';
import type { Statistic, Weights } from './rollout-weights.js';
import {
  deviationOfRows,
  deviationOfTokens,
  maxOfFilled,
  minOfFilled,
  STATISTIC_METRICS,
  statisticMetrics,
} from './statistic-metrics.js';

const RATIO = { unit: 'ratio' };
const WEIGHTED = 'with rollout_is';
const IN_ONE_CALL = 'when the whole batch is computed in one call';
const WEIGHTED_IN_ONE_CALL = `${WEIGHTED}, ${IN_ONE_CALL}`;
const CORRECTED = 'with rollout_is or rollout_rs';
const CORRECTED_IN_ONE_CALL = `${CORRECTED}, ${IN_ONE_CALL}`;
const REJECTING = 'with rollout_rs';

/** The declarations of the metrics. */
export const CORRECTION_METRICS = {
  'rollout_corr/rollout_is_mean': { ...RATIO, when: WEIGHTED },
  'rollout_corr/rollout_is_ratio_fraction_high': { unit: 'fraction', when: WEIGHTED },
  'rollout_corr/rollout_is_ratio_fraction_low': { unit: 'fraction', when: WEIGHTED },
  'rollout_corr/rollout_is_oob_ratio': { unit: 'fraction of tokens', when: 'with two bounds of the weights' },
  'rollout_corr/rollout_is_seq_mean': { ...RATIO, when: WEIGHTED },
  'rollout_corr/rollout_is_seq_fraction_high': { unit: 'fraction of rows', when: WEIGHTED },
  'rollout_corr/rollout_is_seq_fraction_low': { unit: 'fraction of rows', when: WEIGHTED },
  'rollout_corr/rollout_is_max': { ...RATIO, when: WEIGHTED_IN_ONE_CALL },
  'rollout_corr/rollout_is_min': { ...RATIO, when: WEIGHTED_IN_ONE_CALL },
  'rollout_corr/rollout_is_std': { ...RATIO, when: WEIGHTED_IN_ONE_CALL },
  'rollout_corr/rollout_is_eff_sample_size': { unit: 'fraction', when: WEIGHTED_IN_ONE_CALL },
  'rollout_corr/rollout_is_seq_std': { ...RATIO, when: WEIGHTED_IN_ONE_CALL },
  'rollout_corr/rollout_is_seq_max': { ...RATIO, when: WEIGHTED_IN_ONE_CALL },
  'rollout_corr/rollout_is_seq_min': { ...RATIO, when: WEIGHTED_IN_ONE_CALL },
  'rollout_corr/rollout_is_seq_max_deviation': { ...RATIO, when: WEIGHTED_IN_ONE_CALL },
  'rollout_corr/rollout_is_batch_norm_factor': { ...RATIO, when: 'with rollout_is_batch_normalize' },
  'rollout_corr/rollout_rs_masked_fraction': { unit: 'fraction of tokens', when: REJECTING },
  'rollout_corr/rollout_rs_seq_masked_fraction': { unit: 'fraction of rows', when: REJECTING },
  'rollout_corr/kl': { unit: 'nats per token', when: CORRECTED },
  'rollout_corr/k3_kl': { unit: 'nats per token', when: CORRECTED },
  'rollout_corr/chi2_token': { unit: 'divergence', when: CORRECTED },
  'rollout_corr/chi2_seq': { unit: 'divergence', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/training_ppl': { unit: 'perplexity', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/training_log_ppl': { unit: 'nats per token', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/rollout_ppl': { unit: 'perplexity', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/rollout_log_ppl': { unit: 'nats per token', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/ppl_ratio': { ...RATIO, when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/log_ppl_diff': { unit: 'nats per token', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/log_ppl_abs_diff': { unit: 'nats per token', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/log_ppl_diff_max': { unit: 'nats per token', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/log_ppl_diff_min': { unit: 'nats per token', when: CORRECTED_IN_ONE_CALL },
  ...STATISTIC_METRICS,
} as const;

type Metric = keyof typeof CORRECTION_METRICS;
/** The metrics of a correction. Those that it does not have are undefined. */
export type CorrectionMetrics = Record<Metric, MetricExpression | undefined>;

/** The metrics of a loss without a correction: all are undefined. It has no keys, because copying 200 keys takes long. */
export const NO_CORRECTION_METRICS = {} as Record<Metric, undefined>;

const NAMES = Object.keys(CORRECTION_METRICS) as Metric[];

/** What a correction is computed from, and its parts. */
interface Parts {
  /** The log-probability of a token under the policy. */
  readonly policy: Expression;
  /** The log-probability that the inference engine reported. */
  readonly rollout: Expression;
  readonly weights: Weights | undefined;
  readonly statistics: readonly Statistic[];
  /** 1 for tokens that pass all statistics; undefined if there are none. */
  readonly kept: Expression | undefined;
}

// The most metrics of the batch that a result can have: kMaxBatchMetrics in native/program/program.h.
export const MAX_BATCH_METRICS = 48;

/** Returns the metrics of a correction. Where there is no room for all, the last ones of the statistics are left out. */
export function correctionMetrics(symbols: ProgramSymbols, parts: Parts): CorrectionMetrics {
  const { policy, rollout, weights, statistics, kept } = parts;
  const q = policy.sub(rollout);
  const metrics: Partial<CorrectionMetrics> = {
    ...(weights && weightMetrics(symbols, weights)),
    ...(weights && ratioMetrics(symbols, weights, q)),
    ...(kept && {
      'rollout_corr/rollout_rs_masked_fraction': { token: kept.not() },
      'rollout_corr/rollout_rs_seq_masked_fraction': { row: symbols.rowSum(kept).lt(symbols.n) },
    }),
    ...divergenceMetrics(symbols, policy, rollout, q),
  };
  const taken = Object.values(metrics).filter((metric) => metric && 'batch' in metric).length;
  const ofStatistics = statistics.flatMap((each) => statisticMetrics(symbols, each));
  Object.assign(metrics, Object.fromEntries(ofStatistics.slice(0, MAX_BATCH_METRICS - taken)));
  return Object.fromEntries(
    NAMES.flatMap((name) => (metrics[name] ? [[name, metrics[name]]] : [])),
  ) as CorrectionMetrics;
}

function weightMetrics(symbols: ProgramSymbols, { raw, limited, factor, bounds }: Weights) {
  const { rows, abs, clip, square, select, rowsMin, rowsMax } = symbols;
  const { low, high, both } = bounds;
  const clipped = clip(limited, 0, high);
  const [mean, meanOfSquares] = [meanOfBatch(symbols, clipped), meanOfBatch(symbols, square(clipped))];
  const ofRow = meanOfRow(symbols, limited);
  const rawOfRow = meanOfRow(symbols, raw);
  return {
    'rollout_corr/rollout_is_mean': { token: limited },
    'rollout_corr/rollout_is_oob_ratio': both ? { token: raw.lt(low).or(raw.gt(high)) } : undefined,
    'rollout_corr/rollout_is_seq_mean': { row: ofRow },
    'rollout_corr/rollout_is_seq_fraction_high': { row: rawOfRow.gt(high) },
    'rollout_corr/rollout_is_seq_fraction_low': { row: rawOfRow.lt(low) },
    'rollout_corr/rollout_is_std': { batch: deviationOfTokens(symbols, clipped) },
    // verl divides by 0 if all weights are 0.
    'rollout_corr/rollout_is_eff_sample_size': {
      batch: select(meanOfSquares.gt(0), square(mean.add(1e-8)).div(meanOfSquares), 0),
    },
    'rollout_corr/rollout_is_seq_std': { batch: deviationOfRows(symbols, ofRow, rows) },
    'rollout_corr/rollout_is_seq_max': { batch: rowsMax(ofRow) },
    'rollout_corr/rollout_is_seq_min': { batch: rowsMin(ofRow) },
    'rollout_corr/rollout_is_seq_max_deviation': { batch: rowsMax(abs(ofRow.sub(1))) },
    'rollout_corr/rollout_is_batch_norm_factor': factor && { batch: factor },
  };
}

// The extremes of the ratios of rows are those before the weights were limited. e^88 is about the largest float32 number.
function ratioMetrics(
  symbols: ProgramSymbols,
  { level, raw, limited, bounds: { low, high } }: Weights,
  q: Expression,
) {
  const { exp, min, rowMin, rowMax, rowSum, rowsMin, rowsMax } = symbols;
  const sum = rowSum(q);
  const [isHigh, isLow, largest, smallest] =
    level === 'token'
      ? [
          { token: raw.gt(high) },
          { token: raw.lt(low) },
          maxOfFilled(symbols, rowMax(limited)),
          minOfFilled(symbols, rowMin(limited)),
        ]
      : [
          { row: sum.gt(Math.log(high)) },
          { row: sum.lt(Math.log(low)) },
          exp(min(rowsMax(sum), 20)),
          exp(min(rowsMin(sum), 88)),
        ];
  return {
    'rollout_corr/rollout_is_ratio_fraction_high': isHigh,
    'rollout_corr/rollout_is_ratio_fraction_low': isLow,
    'rollout_corr/rollout_is_max': { batch: largest },
    'rollout_corr/rollout_is_min': { batch: smallest },
  };
}

function divergenceMetrics(symbols: ProgramSymbols, policy: Expression, rollout: Expression, q: Expression) {
  const { tokens, abs, exp, expm1, square, rowSum, rowsMean, rowsMin, rowsMax } = symbols;
  const [policyLog, rolloutLog] = [meanOfRow(symbols, policy).neg(), meanOfRow(symbols, rollout).neg()];
  const difference = policyLog.sub(rolloutLog);
  return {
    'rollout_corr/kl': { token: q.neg() },
    'rollout_corr/k3_kl': { token: expm1(q).sub(q) },
    // A metric of tokens is divided by N + 1e-8, and so this subtracts 1 from the mean.
    'rollout_corr/chi2_token': { token: square(exp(bounded(symbols, q))).sub(tokens.add(1e-8).div(tokens)) },
    'rollout_corr/chi2_seq': {
      batch: rowsMean(expm1(bounded(symbols, rowSum(policy).sub(rowSum(rollout))).mul(2))),
    },
    'rollout_corr/training_ppl': { batch: rowsMean(exp(policyLog)) },
    'rollout_corr/training_log_ppl': { batch: rowsMean(policyLog) },
    'rollout_corr/rollout_ppl': { batch: rowsMean(exp(rolloutLog)) },
    'rollout_corr/rollout_log_ppl': { batch: rowsMean(rolloutLog) },
    'rollout_corr/ppl_ratio': { batch: rowsMean(exp(difference)) },
    'rollout_corr/log_ppl_diff': { batch: rowsMean(difference) },
    'rollout_corr/log_ppl_abs_diff': { batch: rowsMean(abs(difference)) },
    'rollout_corr/log_ppl_diff_max': { batch: rowsMax(difference) },
    'rollout_corr/log_ppl_diff_min': { batch: rowsMin(difference) },
  };
}
