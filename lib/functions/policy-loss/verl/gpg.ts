// verl's GPG: REINFORCE.
import type { MetricsOf } from '../../../core/declaration.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { AGGREGATION, weightOf } from './aggregation.js';
import { CORRECTED_KEYS, corrected } from './corrected.js';

/** GPG (group policy gradient) as in verl: ℓ = −A·logprob. */
export class VerlGPGLossFn extends expressionLossClass(
  {
    name: 'verl/gpg',
    summary: 'ℓ = −A·logprob',
    details: ['old_logprob is read only for a rollout correction.'],
    source: ['arXiv 2504.02546', 'verl'],
    reads: CORRECTED_KEYS,
    options: { ...AGGREGATION, ...ROLLOUT_CORRECTION },
    metrics: { pg_loss: { unit: 'loss' }, ...CORRECTION_METRICS },
    numerics: { range: 'any finite logprobs and advantages', outside: 'nothing is clipped' },
  },
  (symbols, options) =>
    corrected('VerlGPGLossFn', symbols, options, (kept) => ({
      loss: kept.A.neg()
        .mul(kept.lp)
        .mul(weightOf('VerlGPGLossFn', kept, options)),
      metrics: {},
    })),
) {
  static {
    POLICY_LOSS_FN.register('verl/gpg', VerlGPGLossFn);
  }
}

/** Options of {@link VerlGPGLossFn}. */
export type VerlGPGLossOptions = NonNullable<ConstructorParameters<typeof VerlGPGLossFn>[0]>;
/** Metrics of {@link VerlGPGLossFn}. */
export type VerlGPGMetrics = MetricsOf<(typeof VerlGPGLossFn)['declaration']['metrics']>;
