// verl's GSPO: the clipped surrogate with the geometric mean of a row's ratios.
import type { MetricsOf } from '../../../core/declaration.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { DIVISORS, weightOf } from './aggregation.js';
import { CLIP_METRICS, CLIP_RATIO } from './clipped.js';
import { CORRECTED_KEYS, corrected } from './corrected.js';

/** GSPO as in verl: ℓ = max(−A·s, −A·clip(s)), where s is the geometric mean of the row's ratios. */
export class VerlGSPOLossFn extends expressionLossClass(
  {
    name: 'verl/gspo',
    summary: 'ℓ = max(−A·s, −A·clip(s)), s = exp(mean of ln r over the row)',
    details: [
      'The gradient of s is that of the token alone. The aggregation is always seq-mean-token-mean.',
      'pg_clipfrac_lower is 0.',
    ],
    source: ['arXiv 2507.18071', 'verl'],
    unlike: { gspo: 'another default clip range, a ratio of at most e^10, and always seq-mean-token-mean' },
    reads: CORRECTED_KEYS,
    options: { ...CLIP_RATIO, ...DIVISORS, ...ROLLOUT_CORRECTION },
    metrics: { ...CLIP_METRICS, pg_loss: { unit: 'loss' }, ...CORRECTION_METRICS },
    numerics: {
      range: 'a mean of logprob − old_logprob of at most 10 in each row',
      outside: 'larger means count as 10, and the gradient is 0',
    },
  },
  (symbols, options) =>
    corrected('VerlGSPOLossFn', symbols, options, (kept) => {
      const { lp, A, d, exp, min, max, clip, sg, rowMean } = kept;
      const ratio = exp(min(lp.sub(sg(lp)).add(sg(rowMean(d))), 10));
      const p1 = A.neg().mul(ratio);
      const p2 = A.neg().mul(clip(ratio, 1 - options.clipRatioLow, 1 + options.clipRatioHigh));
      const weight = weightOf('VerlGSPOLossFn', kept, { ...options, lossAggMode: 'seq-mean-token-mean' });
      return {
        loss: max(p1, p2).mul(weight),
        metrics: {
          pg_clipfrac: { token: p2.gt(p1) },
          pg_clipfrac_lower: { token: 0 },
          ppo_kl: { token: d.neg() },
        },
      };
    }),
) {
  static {
    POLICY_LOSS_FN.register('verl/gspo', VerlGSPOLossFn);
  }
}

/** Options of {@link VerlGSPOLossFn}. */
export type VerlGSPOLossOptions = NonNullable<ConstructorParameters<typeof VerlGSPOLossFn>[0]>;
/** Metrics of {@link VerlGSPOLossFn}. */
export type VerlGSPOMetrics = MetricsOf<(typeof VerlGSPOLossFn)['declaration']['metrics']>;
