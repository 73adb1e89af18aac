// TRL's GMPO: the geometric mean of a row's ratios, each of which is clipped on the side that the advantage favours.
import type { MetricsOf } from '../../../core/declaration.js';
import { isTopEntropy, TOP_ENTROPY, topEntropyNeeds } from '../../correction/top-entropy.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { CLIP_METRICS, CLIP_RANGE, clipMetrics, outside } from './clipped.js';
import { ENTROPY_METRIC, entropyMetric } from './entropy-bonus.js';
import { FAMILY_BATCHES } from './grpo-family.js';
import { BETA, KL_METRIC, klTerm } from './kl-term.js';
import { ACCUMULATION } from './scale.js';

/** GMPO as in TRL: the loss is that of a row. */
export class TRLGMPOLossFn extends expressionLossClass(
  {
    name: 'trl/gmpo',
    summary: 'the loss of a row is −A·exp(mean d′), d′ = min(ln r, ε_h) where A > 0, max(ln r, −ε) elsewhere',
    details: [
      'If the batch has one advantage per row, a row without tokens adds −A/B to the loss.',
      'If it has one per token, that of a row is the mean over its tokens.',
    ],
    source: ['arXiv 2507.20673', 'TRL'],
    reads: [...RATIO_KEYS, 'ref_logprob', 'entropy'],
    ...FAMILY_BATCHES,
    ofRows: true,
    options: {
      epsilon: { ...CLIP_RANGE.epsilon, default: 0.4, help: 'log-ratios are clipped to at least −this' },
      epsilonHigh: { ...CLIP_RANGE.epsilonHigh, help: 'log-ratios are clipped to at most this' },
      ...TOP_ENTROPY,
      ...BETA,
      gradientAccumulationSteps: {
        ...ACCUMULATION.gradientAccumulationSteps,
        help: 'the loss is divided by this number of accumulation steps',
      },
    },
    metrics: { ...CLIP_METRICS, ...KL_METRIC, ...ENTROPY_METRIC },
    numerics: {
      range: 'mean log-ratios of rows up to 88.7',
      outside: 'the log-ratio is not clipped above where A < 0: the gradient overflows',
      overflows: 'for A < 0',
    },
  },
  (symbols, options, has) => {
    const { A, d, rows, exp, min, max, rowMean, rowSum, select } = symbols;
    const { epsilon, epsilonHigh, topEntropyQuantile, beta, gradientAccumulationSteps } = options;
    const clippedLogRatio = select(A.gt(0), min(d, epsilonHigh), max(d, -epsilon));
    const isTop = isTopEntropy(symbols, topEntropyQuantile);
    const meanLogRatio = isTop
      ? rowSum(select(isTop, clippedLogRatio, 0)).div(max(rowSum(isTop), 1))
      : rowMean(clippedLogRatio);
    const ofRow = rowMean(A).neg().mul(exp(meanLogRatio));
    const kl = klTerm(symbols, options);
    const penalized = kl ? ofRow.add(rowMean(kl).mul(beta)) : ofRow;
    return {
      rowLoss: penalized.div(rows.mul(gradientAccumulationSteps)),
      metrics: {
        ...clipMetrics(symbols, outside(d, A, [-epsilon, epsilonHigh]), false),
        kl: kl && { token: kl },
        ...entropyMetric(symbols, has),
      },
      allRows: true,
    };
  },
  topEntropyNeeds,
) {
  static {
    POLICY_LOSS_FN.register('trl/gmpo', TRLGMPOLossFn);
  }
}

/** Options of {@link TRLGMPOLossFn}. */
export type TRLGMPOLossOptions = NonNullable<ConstructorParameters<typeof TRLGMPOLossFn>[0]>;
/** Metrics of {@link TRLGMPOLossFn}. */
export type TRLGMPOMetrics = MetricsOf<(typeof TRLGMPOLossFn)['declaration']['metrics']>;
