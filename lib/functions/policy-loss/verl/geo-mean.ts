// verl's GMPO: the geometric mean of a row's clipped ratios.
import type { MetricsOf } from '../../../core/declaration.js';
import { meanOfRow } from '../../correction/verl/arithmetic.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { CLIP_METRICS, CLIP_RATIO } from './clipped.js';
import { CORRECTED_KEYS, corrected } from './corrected.js';

/** GMPO (geometric-mean policy optimization) as in verl. It is meant for advantages that are the same in a row. */
export class VerlGeoMeanLossFn extends expressionLossClass(
  {
    name: 'verl/geo_mean',
    summary: 'a row’s loss is −mean(A)·exp(mean(e)), e = the clipped ln r',
    details: [
      'e = s·min(s·ln r, s·clip(ln r, −clip_ratio_low, clip_ratio_high)), where s is the sign of A.',
      'The loss is the mean over all rows. pg_clipfrac counts tokens with A > 0, and pg_clipfrac_lower those with A < 0.',
    ],
    source: ['arXiv 2507.20673', 'verl'],
    unlike: {
      'trl/gmpo': 'another default clip range, no KL term, and tokens with A = 0 count as ln r = 0',
    },
    reads: CORRECTED_KEYS,
    ofRows: true,
    options: { ...CLIP_RATIO, ...ROLLOUT_CORRECTION },
    metrics: { ...CLIP_METRICS, pg_loss: { unit: 'loss' }, ...CORRECTION_METRICS },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      overflows: 'for A < 0',
      outside:
        'the ratio is not clipped where A < 0: the gradient overflows if its mean over a row is above 88',
    },
  },
  (symbols, { clipRatioLow, clipRatioHigh, ...correction }) =>
    corrected('VerlGeoMeanLossFn', symbols, correction, (kept) => {
      const { A, d, rows, sign, min, clip, exp } = kept;
      const s = sign(A);
      const e = s.mul(min(s.mul(d), s.mul(clip(d, -clipRatioLow, clipRatioHigh))));
      const ofRow = meanOfRow(kept, A)
        .neg()
        .mul(exp(meanOfRow(kept, e)));
      const isOutside = d.lt(-clipRatioLow).or(d.gt(clipRatioHigh));
      return {
        rowLoss: ofRow.div(rows),
        metrics: {
          pg_clipfrac: { token: isOutside.and(A.gt(0)) },
          pg_clipfrac_lower: { token: isOutside.and(A.lt(0)) },
          ppo_kl: { token: d.neg() },
        },
      };
    }),
) {
  static {
    POLICY_LOSS_FN.register('verl/geo_mean', VerlGeoMeanLossFn);
  }
}

/** Options of {@link VerlGeoMeanLossFn}. */
export type VerlGeoMeanLossOptions = NonNullable<ConstructorParameters<typeof VerlGeoMeanLossFn>[0]>;
/** Metrics of {@link VerlGeoMeanLossFn}. */
export type VerlGeoMeanMetrics = MetricsOf<(typeof VerlGeoMeanLossFn)['declaration']['metrics']>;
