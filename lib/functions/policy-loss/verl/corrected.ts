// Applies a rollout correction to a loss: the loss sees only the tokens that are kept, and is multiplied by their weights.
// Unlike the option `correction`, it does so within the program of the loss: in the same pass over the tokens, and with
// metrics of the correction also for a part of a batch.
import type { Expression, Operand, ProgramSymbols } from '../../../program/expression.js';
import { geometricMean, lossMetric } from '../../../program/loss-program.js';
import { type RolloutCorrection, rolloutCorrection } from '../../correction/verl/rollout-expressions.js';
import { type CorrectionMetrics, NO_CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import type { CorrectionOptions } from '../../correction/verl/rollout-weights.js';
import type { MetricExpression } from '../expression-loss.js';
import { RATIO_KEYS } from '../policy-loss-fn.js';

/** The batch keys of a loss of {@link RATIO_KEYS} with a correction. */
export const CORRECTED_KEYS = [...RATIO_KEYS, 'rollout_logprob'] as const;

/** A loss before it is corrected. */
export interface UncorrectedLoss<K extends string> {
  /** The loss of a token, including its weight in the batch. */
  readonly loss: Expression;
  readonly metrics: Record<K, MetricExpression>;
}

/** A loss of rows before it is corrected. */
export interface UncorrectedRowLoss<K extends string> {
  /** The loss of a row, including its weight in the batch. */
  readonly rowLoss: Expression;
  readonly metrics: Record<K, MetricExpression>;
}

/** A loss under a correction. allRows is true if the correction has metrics of rows without tokens. */
interface CorrectedLoss<K extends string> {
  readonly loss?: Expression;
  readonly rowLoss?: Expression;
  readonly metrics: Record<K | 'pg_loss', MetricExpression> & CorrectionMetrics;
  readonly allRows: boolean;
}

/**
 * Returns a loss under the correction that its options ask for, if any.
 * @param build returns the loss. Its sums over rows and counts of tokens are those of the tokens that are kept.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function corrected<K extends string>(
  owner: string,
  symbols: ProgramSymbols,
  options: CorrectionOptions,
  build: (symbols: ProgramSymbols) => UncorrectedLoss<K> | UncorrectedRowLoss<K>,
): CorrectedLoss<K> {
  const isCorrected = options.rolloutIs !== undefined || options.rolloutRs !== undefined;
  const correction = isCorrected
    ? rolloutCorrection(owner, symbols, options, symbols.old, symbols.rollout)
    : { metrics: NO_CORRECTION_METRICS };
  return underCorrection(symbols, correction, build);
}

/** Returns a loss under a correction. */
export function underCorrection<K extends string>(
  symbols: ProgramSymbols,
  { weight, kept, metrics: correctionMetrics }: RolloutCorrection,
  build: (symbols: ProgramSymbols) => UncorrectedLoss<K> | UncorrectedRowLoss<K>,
): CorrectedLoss<K> {
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
  const { select, rowSum, batchSum, batchRank, batchRankAt, max } = symbols;
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
    batchRank: (x, rank) => batchRank(ranked(x), rank),
    batchRankAt: (x, rank) => batchRankAt(ranked(x), rank),
  };
}
