// verl's rollout correction as expressions: its weights, the tokens that it keeps, and its metrics.
import type { Expression, ProgramSymbols } from '../program/expression.js';
import type { MetricExpression } from '../program/loss-program.js';
import { ESTIMATES } from './kl-terms.js';
import {
  type CorrectionOptions,
  importanceWeights,
  STATISTIC_NAMES,
  type Statistic,
  type StatisticName,
  statisticsOf,
  type Weights,
} from './rollout-weights.js';
import {
  deviationOfRows,
  deviationOfTokens,
  filledRows,
  limitedLog,
  maxOfFilled,
  meanOfBatch,
  meanOfFilled,
  meanOfRow,
  minOfFilled,
  ofFilled,
} from './statistics.js';
import { FRACTION, IN_ONE_CALL, NATS, RATIO } from './units.js';

const UNITS = {
  masked_fraction: 'fraction of tokens',
  seq_masked_fraction: 'fraction of rows',
  mean: 'nats',
  max: 'nats',
  min: 'nats',
  std: 'nats',
  fraction_high: 'fraction',
  fraction_low: 'fraction',
  seq_mean: 'nats',
  seq_std: 'nats',
  seq_max: 'nats',
  seq_min: 'nats',
  seq_max_deviation: 'nats',
  seq_fraction_high: 'fraction of rows',
  seq_fraction_low: 'fraction of rows',
} as const;

type MetricName = `rollout_corr/rollout_rs_${StatisticName}_${keyof typeof UNITS}`;

function metricName(statistic: StatisticName, metric: string): MetricName {
  return `rollout_corr/rollout_rs_${statistic}_${metric}` as MetricName;
}

/** The declarations of the metrics. */
export const STATISTIC_METRICS = Object.fromEntries(
  STATISTIC_NAMES.flatMap((statistic) =>
    Object.entries(UNITS).map(([metric, unit]) => [
      metricName(statistic, metric),
      { unit, when: `with ${statistic} in rollout_rs, when the whole batch is computed in one call` },
    ]),
  ),
) as unknown as Record<MetricName, { unit: string; when: string }>;

/** Returns the metrics of one statistic. Means over rows leave out rows without tokens. */
export function statisticMetrics(
  symbols: ProgramSymbols,
  { name, level, value, low, high, isTwoSided, passed }: Statistic,
): [MetricName, MetricExpression][] {
  const { n, abs, clip, constant, rowMin, rowMax, rowSum } = symbols;
  const isOfTokens = level === 'token';
  const ofRow = isOfTokens ? meanOfRow(symbols, value) : value;
  const rows = filledRows(symbols);
  const fraction = (flag: Expression) =>
    isOfTokens ? meanOfBatch(symbols, flag) : meanOfFilled(symbols, flag);
  const metrics = {
    masked_fraction: meanOfBatch(symbols, passed.not()),
    seq_masked_fraction: meanOfFilled(symbols, rowSum(passed).lt(n)),
    mean: meanOfBatch(symbols, value),
    max: maxOfFilled(symbols, isOfTokens ? rowMax(value) : value),
    min: minOfFilled(symbols, isOfTokens ? rowMin(value) : value),
    std: deviationOfTokens(symbols, clip(value, low, high)),
    fraction_high: fraction(value.gt(high)),
    fraction_low: isTwoSided ? fraction(value.lt(low)) : constant(0),
    seq_mean: meanOfFilled(symbols, ofRow),
    seq_std: deviationOfRows(symbols, ofFilled(symbols, ofRow, 0), rows),
    seq_max: maxOfFilled(symbols, ofRow),
    seq_min: minOfFilled(symbols, ofRow),
    seq_max_deviation: maxOfFilled(symbols, abs(ofRow)),
    seq_fraction_high: meanOfFilled(symbols, ofRow.gt(high)),
    ...(isTwoSided && { seq_fraction_low: meanOfFilled(symbols, ofRow.lt(low)) }),
  };
  return Object.entries(metrics).map(([metric, batch]) => [metricName(name, metric), { batch }]);
}

const WEIGHTED = 'with rollout_is';
const WEIGHTED_IN_ONE_CALL = `${WEIGHTED}, ${IN_ONE_CALL}`;
const CORRECTED = 'with rollout_is or rollout_rs';
const CORRECTED_IN_ONE_CALL = `${CORRECTED}, ${IN_ONE_CALL}`;
const REJECTING = 'with rollout_rs';

/** The declarations of the metrics. */
export const CORRECTION_METRICS = {
  'rollout_corr/rollout_is_mean': { ...RATIO, when: WEIGHTED },
  'rollout_corr/rollout_is_ratio_fraction_high': { unit: 'fraction', when: WEIGHTED },
  'rollout_corr/rollout_is_ratio_fraction_low': { unit: 'fraction', when: WEIGHTED },
  'rollout_corr/rollout_is_oob_ratio': { ...FRACTION, when: 'with two bounds of the weights' },
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
  'rollout_corr/rollout_rs_masked_fraction': { ...FRACTION, when: REJECTING },
  'rollout_corr/rollout_rs_seq_masked_fraction': { unit: 'fraction of rows', when: REJECTING },
  'rollout_corr/kl': { ...NATS, when: CORRECTED },
  'rollout_corr/k3_kl': { ...NATS, when: CORRECTED },
  'rollout_corr/chi2_token': { unit: 'divergence', when: CORRECTED },
  'rollout_corr/chi2_seq': { unit: 'divergence', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/training_ppl': { unit: 'perplexity', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/training_log_ppl': { ...NATS, when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/rollout_ppl': { unit: 'perplexity', when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/rollout_log_ppl': { ...NATS, when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/ppl_ratio': { ...RATIO, when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/log_ppl_diff': { ...NATS, when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/log_ppl_abs_diff': { ...NATS, when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/log_ppl_diff_max': { ...NATS, when: CORRECTED_IN_ONE_CALL },
  'rollout_corr/log_ppl_diff_min': { ...NATS, when: CORRECTED_IN_ONE_CALL },
  ...STATISTIC_METRICS,
};

type Metric = keyof typeof CORRECTION_METRICS;
/** The metrics of a correction. Those that it does not have are undefined. */
export type CorrectionMetrics = Record<Metric, MetricExpression | undefined>;

/** The metrics of a loss without a correction: all are undefined. It has no keys, because copying 200 keys takes long. */
export const NO_CORRECTION_METRICS = {} as Record<Metric, undefined>;

const NAMES = Object.keys(CORRECTION_METRICS) as Metric[];

/** The values from which a correction is computed: log-probabilities, weights, and the statistics that tokens must pass. */
interface CorrectionValues {
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
export function correctionMetrics(symbols: ProgramSymbols, values: CorrectionValues): CorrectionMetrics {
  const { policy, rollout, weights, statistics, kept } = values;
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
    'rollout_corr/k3_kl': { token: ESTIMATES.k3(symbols, q) },
    // A metric of tokens is divided by N + 1e-8, and so this subtracts 1 from the mean.
    'rollout_corr/chi2_token': {
      token: square(exp(limitedLog(symbols, q))).sub(tokens.add(1e-8).div(tokens)),
    },
    'rollout_corr/chi2_seq': {
      batch: rowsMean(expm1(limitedLog(symbols, rowSum(policy).sub(rowSum(rollout))).mul(2))),
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

/** A rollout correction. */
export interface RolloutCorrection {
  /** The weight that a token's loss is multiplied by. */
  readonly weight?: Expression | undefined;
  /** 1 for tokens that are kept, and 0 for others. */
  readonly kept?: Expression | undefined;
  readonly metrics: CorrectionMetrics;
}

/**
 * Returns the correction for the difference between a policy and the rollout.
 * @param policy the log-probability of a token under the policy, constant for the gradient.
 * @param rollout the one that the inference engine reported.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function rolloutCorrection(
  symbols: ProgramSymbols,
  options: CorrectionOptions,
  policy: Expression,
  rollout: Expression,
): RolloutCorrection {
  const q = policy.sub(rollout);
  const weights = importanceWeights(symbols, options, q);
  const statistics = statisticsOf(symbols, options, q);
  const [first, ...others] = statistics.map(({ passed }) => passed);
  const kept = first && others.reduce((all, passed) => all.and(passed), first);
  const metrics = correctionMetrics(symbols, { policy, rollout, weights, statistics, kept });
  return { weight: weights?.weight, kept, metrics };
}
