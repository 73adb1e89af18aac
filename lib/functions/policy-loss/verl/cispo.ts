// verl's CISPO: REINFORCE weighted by the clipped ratio.
import type { MetricsOf } from '../../../core/declaration.js';
import { bounded } from '../../correction/verl/arithmetic.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { AGGREGATION, weightOf } from './aggregation.js';
import { CLIP_METRICS, CLIP_RATIO } from './clipped.js';
import { CORRECTED_KEYS, corrected } from './corrected.js';

/** CISPO as in verl: ℓ = −A·clip(r)·logprob, where the clipped ratio is constant for the gradient. */
export class VerlCISPOLossFn extends expressionLossClass(
  {
    name: 'verl/cispo',
    summary: 'ℓ = −A·sg(clip(r))·logprob',
    details: ['pg_clipfrac is the fraction of tokens whose ratio is clipped; pg_clipfrac_lower is 0.'],
    source: ['arXiv 2506.13585', 'verl'],
    unlike: { cispo: 'another default clip range, and no masking of clipped tokens' },
    reads: CORRECTED_KEYS,
    options: { ...CLIP_RATIO, ...AGGREGATION, ...ROLLOUT_CORRECTION },
    metrics: { ...CLIP_METRICS, pg_loss: { unit: 'loss' }, ...CORRECTION_METRICS },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the log-ratio is clipped to this range, and the ratio to the clip range',
    },
  },
  (symbols, options) =>
    corrected('VerlCISPOLossFn', symbols, options, (kept) => {
      const { lp, A, exp, clip, sg } = kept;
      const d = bounded(kept, kept.d);
      const ratio = exp(d);
      const [low, high] = [1 - options.clipRatioLow, 1 + options.clipRatioHigh];
      const perToken = A.neg()
        .mul(sg(clip(ratio, low, high)))
        .mul(lp);
      return {
        loss: perToken.mul(weightOf('VerlCISPOLossFn', kept, options)),
        metrics: {
          pg_clipfrac: { token: ratio.lt(low).or(ratio.gt(high)) },
          pg_clipfrac_lower: { token: 0 },
          ppo_kl: { token: d.neg() },
        },
      };
    }),
) {
  static {
    POLICY_LOSS_FN.register('verl/cispo', VerlCISPOLossFn);
  }
}

/** Options of {@link VerlCISPOLossFn}. */
export type VerlCISPOLossOptions = NonNullable<ConstructorParameters<typeof VerlCISPOLossFn>[0]>;
/** Metrics of {@link VerlCISPOLossFn}. */
export type VerlCISPOMetrics = MetricsOf<(typeof VerlCISPOLossFn)['declaration']['metrics']>;
