// What verl's policy losses share: the clip range, PPO's loss, and the rollout correction. A corrected loss sees only the
// tokens that are kept, and is multiplied by their weights. Unlike the option `correction`, this happens within the program
// of the loss: in the same pass over the tokens, and with metrics of the correction also for a part of a batch.
import { number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';
import { geometricMean, lossMetric, type MetricExpression } from '../program/loss-program.js';
import { type VERL_AGGREGATION, verlWeight } from './divisors.js';
import { RATIO_KEYS } from './policy-loss-declaration.js';
import {
  type CorrectionMetrics,
  NO_CORRECTION_METRICS,
  type RolloutCorrection,
  rolloutCorrection,
} from './rollout-correction.js';
import type { CorrectionOptions } from './rollout-weights.js';
import { limitedLog } from './statistics.js';
import { clipMetrics } from './surrogate.js';

const REACH = { atLeast: 0, typical: [0.05, 0.6] } as const;
const FROM_BOTH = { ...REACH, defaultFrom: 'clipRatio' } as const;
/** The options that say how far a clip range reaches on both sides of its centre. */
export const CLIP_RATIO = {
  clipRatio: number({ ...REACH, default: 0.2, help: 'how far the clip range reaches on both sides' }),
  clipRatioLow: number({ ...FROM_BOTH, help: 'how far the clip range reaches below' }),
  clipRatioHigh: number({ ...FROM_BOTH, help: 'how far the clip range reaches above' }),
};

/** The option of the largest ratio. */
export const CLIP_RATIO_C = {
  clipRatioC: number({ default: 3, above: 1, typical: [1.5, 10], help: 'the largest ratio that counts' }),
};

/** Returns the range around 1 that the options set. */
export function verlRange({
  clipRatioLow,
  clipRatioHigh,
}: CheckedOptions<typeof CLIP_RATIO>): readonly [number, number] {
  return [1 - clipRatioLow, 1 + clipRatioHigh];
}

/**
 * Returns PPO's clipped surrogate, max(−A·r, −A·clip(r)), which is at most −A·clipRatioC where A < 0. The ratio that
 * counts is thus at least 1 − clipRatioLow and at most clipRatioC where A < 0, and at most 1 + clipRatioHigh elsewhere.
 */
export function dualClipped(
  symbols: ProgramSymbols,
  A: Expression,
  { clipRatioC, ...range }: CheckedOptions<typeof CLIP_RATIO & typeof CLIP_RATIO_C>,
) {
  const { exp, clip, min, select } = symbols;
  const d = limitedLog(symbols, symbols.d);
  const ratio = exp(d);
  const [low, high] = verlRange(range);
  const isNegative = A.lt(0);
  return {
    perToken: A.neg().mul(select(isNegative, clip(ratio, low, clipRatioC), min(ratio, high))),
    metrics: clipMetrics(
      select(isNegative, ratio.lt(low), ratio.gt(high).and(A.gt(0))),
      ratio.gt(clipRatioC).and(isNegative),
      d,
    ),
  };
}

/** The batch keys of a loss of {@link RATIO_KEYS} with a correction. */
export const CORRECTED_KEYS = [...RATIO_KEYS, 'rollout_logprob'] as const;

/** A loss before it is corrected: that of a token or of a row, including its weight in the batch. */
type Uncorrected<K extends string> = { readonly metrics: Record<K, MetricExpression> } & (
  | { readonly loss: Expression }
  | { readonly rowLoss: Expression }
);

/** A loss under a correction. allRows is true if the correction has metrics of rows without tokens. */
interface Corrected<K extends string> {
  readonly loss?: Expression;
  readonly rowLoss?: Expression;
  readonly metrics: Record<K | 'pg_loss', MetricExpression> & CorrectionMetrics;
  readonly allRows: boolean;
}

/** A loss of tokens that is not yet aggregated. */
interface Unaggregated<K extends string> {
  readonly perToken: Expression;
  readonly metrics: Record<K, MetricExpression>;
}

/**
 * Returns a loss with verl's aggregation, under the correction that its options ask for, if any.
 * @param build returns the loss. Its sums over rows and counts of tokens are those of the tokens that are kept.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function corrected<K extends string>(
  symbols: ProgramSymbols,
  options: CorrectionOptions & AggregationOptions,
  build: (kept: ProgramSymbols) => Unaggregated<K>,
): Corrected<K> {
  return underCorrection(symbols, correctionOf(symbols, options), (kept) =>
    inBatch(kept, options, build(kept)),
  );
}

/** Returns the correction that options ask for, if any. */
export function correctionOf(symbols: ProgramSymbols, options: CorrectionOptions): RolloutCorrection {
  return options.rolloutIs === undefined && options.rolloutRs === undefined
    ? { metrics: NO_CORRECTION_METRICS }
    : rolloutCorrection(symbols, options, symbols.old, symbols.rollout);
}

/** Returns a loss with verl's aggregation. */
export function inBatch<K extends string>(
  symbols: ProgramSymbols,
  options: AggregationOptions,
  { perToken, metrics }: Unaggregated<K>,
): Uncorrected<K> {
  return { loss: perToken.mul(verlWeight(symbols, options)), metrics };
}

type AggregationOptions = CheckedOptions<typeof VERL_AGGREGATION>;

/** Returns a loss under a correction. */
export function underCorrection<K extends string>(
  symbols: ProgramSymbols,
  { weight, kept, metrics: correctionMetrics }: RolloutCorrection,
  build: (kept: ProgramSymbols) => Uncorrected<K>,
): Corrected<K> {
  const { select, tokens, rows } = symbols;
  const ofKept = kept ? keeping(symbols, kept) : symbols;
  // A metric of tokens is divided by N + 1e-8, where N also counts the tokens that are not kept.
  const share = tokens.add(1e-8).div(ofKept.tokens.add(1e-8));
  const { metrics, ...built } = build(ofKept);
  const ownMetrics = Object.entries<MetricExpression>(metrics).map(([name, metric]) =>
    'token' in metric && kept ? [name, { token: select(kept, metric.token, 0).mul(share) }] : [name, metric],
  );
  const result = {
    ...(Object.fromEntries(ownMetrics) as Record<K, MetricExpression>),
    ...correctionMetrics,
  };
  const allRows = correctionMetrics !== NO_CORRECTION_METRICS;
  if ('rowLoss' in built) {
    const rowLoss = weight ? built.rowLoss.mul(geometricMean(ofKept, weight)) : built.rowLoss;
    return { rowLoss, metrics: { ...result, pg_loss: { row: rowLoss.mul(rows) } }, allRows };
  }
  const weighted = weight ? built.loss.mul(weight) : built.loss;
  const loss = kept ? select(kept, weighted, 0) : weighted;
  return { loss, metrics: { ...result, pg_loss: lossMetric(symbols, loss) }, allRows };
}

/** Returns symbols for which only some of the unmasked tokens count. */
export function keeping(symbols: ProgramSymbols, kept: Expression): ProgramSymbols {
  const { select, rowSum, batchSum, batchRanked, batchRankAt, max } = symbols;
  const n = rowSum(kept);
  const sum = (x: Operand) => rowSum(select(kept, x, 0));
  // The counts are divisors, and no token may be kept.
  const tokens = max(batchSum(kept), 1);
  const sumOfBatch = (x: Operand) => batchSum(select(kept, x, 0));
  // The other tokens rank last.
  const ranked = (x: Operand) => select(kept, x, Number.MAX_VALUE);
  return {
    ...symbols,
    n,
    tokens,
    rowSum: sum,
    rowMean: (x) => sum(x).div(max(n, 1)),
    batchSum: sumOfBatch,
    batchMean: (x) => sumOfBatch(x).div(tokens),
    batchRanked: (x, rank) => batchRanked(ranked(x), rank),
    batchRankAt: (x, rank) => batchRankAt(ranked(x), rank),
  };
}
