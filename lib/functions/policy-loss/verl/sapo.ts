// verl's SAPO: a smooth gate on the ratio in the place of a clip.
import type { MetricsOf } from '../../../core/declaration.js';
import { bounded } from '../../correction/verl/arithmetic.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { DIVISORS, weightOf } from './aggregation.js';
import { CLIP_METRICS } from './clipped.js';
import { CORRECTED_KEYS, corrected } from './corrected.js';

/** SAPO as in verl: ℓ = −A·4/τ·sigmoid(τ·(r − 1)). */
export class VerlSAPOLossFn extends expressionLossClass(
  {
    name: 'verl/sapo',
    summary: 'ℓ = −A·4/τ·sigmoid(τ·(r − 1))',
    details: [
      'τ is tau_pos where A > 0, and tau_neg elsewhere.',
      'The aggregation is always seq-mean-token-mean. The fractions of clipped tokens are 0.',
    ],
    source: ['arXiv 2511.20347', 'verl'],
    unlike: { sapo: 'the gradient goes through the gate, and the aggregation is always seq-mean-token-mean' },
    reads: CORRECTED_KEYS,
    options: {
      tauPos: {
        type: 'number',
        default: 1,
        above: 0,
        typical: [0.5, 3],
        help: 'how sharp the gate is where A > 0',
      },
      tauNeg: {
        type: 'number',
        default: 1.05,
        above: 0,
        typical: [0.5, 3],
        help: 'how sharp the gate is elsewhere',
      },
      ...DIVISORS,
      ...ROLLOUT_CORRECTION,
    },
    metrics: { ...CLIP_METRICS, pg_loss: { unit: 'loss' }, ...CORRECTION_METRICS },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the log-ratio is clipped to this range, where the gradient is 0',
      /** Far from a ratio of 1, the gate's slope is nearly 0 and has a large relative error. At 1, the gradient is −A. */
      cancels: ({ advantage }) => ({ gradient: Math.abs(advantage) }),
    },
  },
  (symbols, options) =>
    corrected('VerlSAPOLossFn', symbols, options, (kept) => {
      const { A, constant, expm1, sigmoid, select } = kept;
      const d = bounded(kept, kept.d);
      const tau = select(A.gt(0), options.tauPos, options.tauNeg);
      const gate = sigmoid(tau.mul(expm1(d))).mul(constant(4).div(tau));
      const weight = weightOf('VerlSAPOLossFn', kept, { ...options, lossAggMode: 'seq-mean-token-mean' });
      return {
        loss: A.neg().mul(gate).mul(weight),
        metrics: {
          pg_clipfrac: { token: 0 },
          pg_clipfrac_lower: { token: 0 },
          ppo_kl: { token: d.neg() },
        },
      };
    }),
) {
  static {
    POLICY_LOSS_FN.register('verl/sapo', VerlSAPOLossFn);
  }
}

/** Options of {@link VerlSAPOLossFn}. */
export type VerlSAPOLossOptions = NonNullable<ConstructorParameters<typeof VerlSAPOLossFn>[0]>;
/** Metrics of {@link VerlSAPOLossFn}. */
export type VerlSAPOMetrics = MetricsOf<(typeof VerlSAPOLossFn)['declaration']['metrics']>;
