// verl's vanilla loss: PPO.
import type { MetricsOf } from '../../../core/declaration.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { AGGREGATION, weightOf } from './aggregation.js';
import { CLIP_METRICS, CLIP_RATIO, CLIP_RATIO_C, dualClipped } from './clipped.js';
import { CORRECTED_KEYS, corrected } from './corrected.js';

/** PPO with a dual clip as in verl: ℓ = max(−A·r, −A·clip(r)), and at most −A·clip_ratio_c where A < 0. */
export class VerlVanillaLossFn extends expressionLossClass(
  {
    name: 'verl/vanilla',
    summary: 'ℓ = max(−A·r, −A·clip(r)), at most −A·clip_ratio_c where A < 0',
    source: ['arXiv 1707.06347', 'arXiv 1912.09729', 'verl'],
    unlike: { ppo: "no sequence masking; verl's aggregation and rollout correction" },
    reads: CORRECTED_KEYS,
    options: { ...CLIP_RATIO, ...CLIP_RATIO_C, ...AGGREGATION, ...ROLLOUT_CORRECTION },
    metrics: { ...CLIP_METRICS, pg_loss: { unit: 'loss' }, ...CORRECTION_METRICS },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the log-ratio is clipped to this range, where the gradient is 0',
    },
  },
  (symbols, options) =>
    corrected('VerlVanillaLossFn', symbols, options, (kept) => {
      const { perToken, metrics } = dualClipped(kept, kept.A, options);
      return { loss: perToken.mul(weightOf('VerlVanillaLossFn', kept, options)), metrics };
    }),
) {
  static {
    POLICY_LOSS_FN.register('verl/vanilla', VerlVanillaLossFn);
  }
}

/** Options of {@link VerlVanillaLossFn}. */
export type VerlVanillaLossOptions = NonNullable<ConstructorParameters<typeof VerlVanillaLossFn>[0]>;
/** Metrics of {@link VerlVanillaLossFn}. */
export type VerlVanillaMetrics = MetricsOf<(typeof VerlVanillaLossFn)['declaration']['metrics']>;
