// ASPO: PPO in which the ratio of positive tokens is flipped, with clip ranges that depend on the entropy.
import type { MetricsOf } from '../../../core/declaration.js';
import { aggregationOption } from '../../../core/options.js';
import { quantile } from '../../order-statistics.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { aggregated } from './aggregation.js';

// The type of `help` is the text itself, because the build documents the option by it in the declaration files.
function range<T extends string, S extends string>(tokens: T, side: S, value: number) {
  return {
    type: 'number',
    default: value,
    atLeast: 0,
    typical: [0.05, 0.6],
    help: `how far the clip range of tokens with a ${tokens} entropy reaches ${side} 1`,
  } as const;
}

function cap<T extends string>(tokens: T) {
  return {
    type: 'number',
    default: 3,
    above: 1,
    typical: [1.1, 5],
    help: `the largest weight of a ${tokens} token; beyond it, the token has the weight and gradient of this bound`,
  } as const;
}

/** ASPO: a positive token weighs the more, the less likely it has become; a negative token weighs as in PPO. */
export class ASPOLossFn extends expressionLossClass(
  {
    name: 'aspo',
    summary:
      'ℓ = −A·s where A < 0, −A/s elsewhere; s is the ratio, clipped on one side by a range that the entropy sets',
    details: [
      "A token's entropy is low if it is at most the quantile of its row.",
      'The gradient of −A/s is −A/r, as if s were constant but for a factor r.',
      'Weights above their bounds c are replaced: ℓ = −A·c·logprob.',
    ],
    source: ['arXiv 2510.06062', 'ASPO'],
    reads: [...RATIO_KEYS, 'entropy'],
    options: {
      entropyQuantile: {
        type: 'number',
        default: 0.8,
        atLeast: 0,
        atMost: 1,
        typical: [0.2, 0.9],
        help: 'the quantile of the entropies of a row up to which an entropy is low',
      },
      lowEntropyClipRangeLow: range('low', 'below', 0.2),
      highEntropyClipRangeLow: range('high', 'below', 0.4),
      lowEntropyClipRangeHigh: range('low', 'above', 0.2),
      highEntropyClipRangeHigh: range('high', 'above', 0.4),
      negativeClipRatioC: cap('negative'),
      positiveClipRatioC: cap('positive'),
      lossAggMode: aggregationOption('token-mean'),
    },
    metrics: {
      pg_clipfrac_upper: { unit: 'fraction of tokens' },
      pg_clipfrac_lower: { unit: 'fraction of tokens' },
      negative_clipfrac_dual: {
        unit: 'fraction of tokens',
        when: 'when the whole batch is computed in one call',
      },
      positive_clipfrac_dual: {
        unit: 'fraction of tokens',
        when: 'when the whole batch is computed in one call',
      },
      pg_loss: { unit: 'loss' },
    },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the difference is clipped to ±20: the loss saturates and the gradient is 0',
    },
  },
  (symbols, options) => {
    const { A, H, d, lp, n, clip, exp, max, min, select, sg, constant, batchSum, rowRank } = symbols;
    const ratio = exp(clip(d, -20, 20));
    const isLow = H.le(quantile(symbols, (rank) => rowRank(H, rank), n, options.entropyQuantile));
    const low = select(isLow, 1 - options.lowEntropyClipRangeLow, 1 - options.highEntropyClipRangeLow);
    const high = select(isLow, 1 + options.lowEntropyClipRangeHigh, 1 + options.highEntropyClipRangeHigh);
    const isNegative = A.lt(0);
    const bounded = select(isNegative, max(ratio, low), min(ratio, high));
    const inverse = constant(1).div(sg(bounded));
    const flipped = bounded.mul(inverse).mul(inverse);
    const weight = select(isNegative, bounded, flipped);
    const largest = select(isNegative, options.negativeClipRatioC, options.positiveClipRatioC);
    const isTooLarge = sg(weight).gt(largest);
    const perToken = A.neg().mul(select(isTooLarge, largest.mul(lp), weight));
    const { loss, pg_loss } = aggregated(symbols, perToken, options.lossAggMode);
    const shareOf = (tokens: ReturnType<typeof constant>) => ({
      batch: batchSum(isTooLarge.and(tokens)).div(batchSum(tokens).add(1e-8)),
    });
    return {
      loss,
      metrics: {
        pg_clipfrac_upper: { token: ratio.gt(bounded) },
        pg_clipfrac_lower: { token: ratio.lt(bounded) },
        negative_clipfrac_dual: shareOf(isNegative),
        positive_clipfrac_dual: shareOf(A.gt(0)),
        pg_loss,
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('aspo', ASPOLossFn);
  }
}

/** Options of {@link ASPOLossFn}. */
export type ASPOLossOptions = NonNullable<ConstructorParameters<typeof ASPOLossFn>[0]>;
/** Metrics of {@link ASPOLossFn}. */
export type ASPOMetrics = MetricsOf<(typeof ASPOLossFn)['declaration']['metrics']>;
