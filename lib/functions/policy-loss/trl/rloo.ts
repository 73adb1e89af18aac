// TRL's RLOO loss: the clipped surrogate of the ratio of a whole row.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { CLIP_RANGE, clipMetrics, clippedLoss, outside } from './clipped.js';

const ROWS = 'fraction of rows';
const IN_ONE_CALL = 'when the whole batch is computed in one call';

/** The loss of TRL's RLOO trainer. */
export class TRLRLOOLossFn extends expressionLossClass(
  {
    name: 'trl/rloo',
    summary: 'the loss of a row is −min(r·A, clip(r)·A), r is the product of the ratios of its tokens',
    details: [
      'If the batch has one advantage per row, a row without tokens adds −A/B to the loss.',
      'If it has one per token, that of a row is the mean over its tokens.',
    ],
    source: ['arXiv 2402.14740', 'TRL'],
    reads: RATIO_KEYS,
    perRow: ['advantages'],
    ofRows: true,
    options: CLIP_RANGE,
    metrics: {
      'clip_ratio/low_mean': { unit: ROWS },
      'clip_ratio/high_mean': { unit: ROWS },
      'clip_ratio/region_mean': { unit: ROWS },
      'clip_ratio/low_min': { unit: ROWS, when: IN_ONE_CALL },
      'clip_ratio/high_max': { unit: ROWS, when: IN_ONE_CALL },
    },
    numerics: {
      range: 'log-ratios of rows, which are sums over their tokens, up to 88.7',
      outside: 'the ratio is not clipped where A < 0: the gradient overflows',
      overflows: 'for A < 0',
      exponentiatesRowSums: true,
    },
  },
  (symbols, { epsilon, epsilonHigh }) => {
    const { d, rows, exp, rowMean, rowSum } = symbols;
    const A = rowMean(symbols.A);
    const ratio = exp(rowSum(d));
    const range = [1 - epsilon, 1 + epsilonHigh] as const;
    return {
      rowLoss: clippedLoss(symbols, A, ratio, ratio, range).div(rows),
      metrics: clipMetrics(symbols, outside(ratio, A, range), true),
      allRows: true,
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('trl/rloo', TRLRLOOLossFn);
  }
}

/** Options of {@link TRLRLOOLossFn}. */
export type TRLRLOOLossOptions = NonNullable<ConstructorParameters<typeof TRLRLOOLossFn>[0]>;
/** Metrics of {@link TRLRLOOLossFn}. */
export type TRLRLOOMetrics = MetricsOf<(typeof TRLRLOOLossFn)['declaration']['metrics']>;
