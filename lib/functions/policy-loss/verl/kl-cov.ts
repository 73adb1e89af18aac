// verl's KL-Cov: a policy gradient with a KL penalty on the tokens whose advantage and log-probability vary together.
import type { MetricsOf } from '../../../core/declaration.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { isAmongSmallest } from '../../order-statistics.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { AGGREGATION, weightOf } from './aggregation.js';
import { CORRECTED_KEYS, corrected } from './corrected.js';
import { covariance } from './covariance.js';

/** KL-Cov as in verl: nothing is clipped, and the tokens with the largest covariances are held by a KL penalty. */
export class VerlKLCovLossFn extends expressionLossClass(
  {
    name: 'verl/kl_cov',
    summary: 'ℓ = −A·r, plus ppo_kl_coef·|ln r| for the tokens with the largest covariances',
    details: [
      'The covariance of a token is (A − mean A)·(logprob − mean logprob), with the means of the batch.',
      'At least one token is penalized. Of tokens with equal covariances, the first ones are.',
    ],
    source: ['arXiv 2505.22617', 'verl'],
    reads: CORRECTED_KEYS,
    options: {
      klCovRatio: {
        type: 'number',
        default: 2e-4,
        above: 0,
        atMost: 1,
        typical: [0.05, 0.5],
        help: 'the fraction of the tokens that are penalized',
      },
      ppoKlCoef: {
        type: 'number',
        default: 0.1,
        atLeast: 0,
        typical: [0.01, 1],
        help: 'the factor of the penalty',
      },
      ...AGGREGATION,
      ...ROLLOUT_CORRECTION,
    },
    metrics: { ppo_kl: { unit: 'nats per token' }, pg_loss: { unit: 'loss' }, ...CORRECTION_METRICS },
    numerics: {
      range: 'logprob − old_logprob up to 88.7',
      outside: 'the ratio is not clipped: it overflows',
      overflows: 'always',
      /** The policy gradient and the penalty of the default options cancel each other. */
      cancels: ({ logprob, oldLogprob, advantage }) => ({
        value: Math.abs(advantage) * Math.exp(logprob - oldLogprob) + 0.1 * Math.abs(logprob - oldLogprob),
        gradient: Math.abs(advantage) * Math.exp(logprob - oldLogprob) + 0.1,
      }),
    },
  },
  (symbols, options) =>
    corrected('VerlKLCovLossFn', symbols, options, (kept) => {
      const { A, d, r, abs, max, select, tokens, batchMean } = kept;
      const falling = covariance(kept, batchMean).neg();
      const isPenalized = isAmongSmallest(kept, falling, max(tokens.mul(options.klCovRatio), 1));
      const perToken = A.neg()
        .mul(r)
        .add(select(isPenalized, abs(d).mul(options.ppoKlCoef), 0));
      return {
        loss: perToken.mul(weightOf('VerlKLCovLossFn', kept, options)),
        metrics: { ppo_kl: { token: abs(d) } },
      };
    }),
) {
  static {
    POLICY_LOSS_FN.register('verl/kl_cov', VerlKLCovLossFn);
  }
}

/** Options of {@link VerlKLCovLossFn}. */
export type VerlKLCovLossOptions = NonNullable<ConstructorParameters<typeof VerlKLCovLossFn>[0]>;
/** Metrics of {@link VerlKLCovLossFn}. */
export type VerlKLCovMetrics = MetricsOf<(typeof VerlKLCovLossFn)['declaration']['metrics']>;
