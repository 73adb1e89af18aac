// ROLL's segment PPO: the ratio of a token is the geometric mean over its segment.
import type { MetricsOf } from '../../../core/declaration.js';
import { aggregationOption } from '../../../core/options.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { aggregated } from './aggregation.js';
import { segmentMean } from './bounds.js';
import { clipRange, DUAL_CLIP, limited, surrogateOf } from './surrogate.js';

/** Segment PPO as in ROLL: PPO with one ratio for each contiguous run of unmasked tokens, such as a turn. */
export class SegmentPPOLossFn extends expressionLossClass(
  {
    name: 'segment_ppo',
    summary:
      'ℓ = max(−A·ρ, −A·clip(ρ)), where ρ is the geometric mean of the ratios in a run of unmasked tokens',
    source: ['ROLL'],
    reads: RATIO_KEYS,
    options: {
      ...clipRange(0.2, 0.2),
      ...DUAL_CLIP,
      lossAggMode: aggregationOption('token-mean'),
    },
    metrics: {
      pg_loss: { unit: 'loss' },
      ratio_high_clipfrac: { unit: 'fraction of tokens' },
      ratio_low_clipfrac: { unit: 'fraction of tokens' },
    },
    numerics: {
      range: 'means of logprob − old_logprob from −20 to 20',
      outside: 'ratios are not clipped where A < 0: they overflow from 88 on',
      overflows: 'for A < 0',
    },
  },
  (symbols, options) => {
    const ratio = symbols.exp(segmentMean(symbols, symbols.d));
    const ppo = surrogateOf(symbols, ratio, options);
    const perToken = limited(symbols, ppo.loss, options.clipRatioC).loss;
    const { loss, pg_loss } = aggregated(symbols, perToken, options.lossAggMode);
    return {
      loss,
      metrics: {
        pg_loss,
        ratio_high_clipfrac: { token: ratio.gt(1 + options.clipRangeHigh) },
        ratio_low_clipfrac: { token: ratio.lt(1 - options.clipRangeLow) },
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('segment_ppo', SegmentPPOLossFn);
  }
}

/** Options of {@link SegmentPPOLossFn}. */
export type SegmentPPOLossOptions = NonNullable<ConstructorParameters<typeof SegmentPPOLossFn>[0]>;
/** Metrics of {@link SegmentPPOLossFn}. */
export type SegmentPPOMetrics = MetricsOf<(typeof SegmentPPOLossFn)['declaration']['metrics']>;
