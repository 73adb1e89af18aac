// verl's DRO: REINFORCE with a quadratic penalty on the log-ratio.
import type { MetricsOf } from '../../../core/declaration.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { AGGREGATION, weightOf } from './aggregation.js';
import { CORRECTED_KEYS, corrected } from './corrected.js';

/** DRO (direct reward optimisation) as in verl: ℓ = −A·logprob + β/2·(ln r)². */
export class VerlDROLossFn extends expressionLossClass(
  {
    name: 'verl/dro',
    summary: 'ℓ = −A·logprob + β/2·(ln r)²',
    details: ['The paper squares the sum of ln r over a row; verl squares it for each token.'],
    source: ['arXiv 2405.19107', 'verl'],
    reads: CORRECTED_KEYS,
    options: {
      droBeta: {
        type: 'number',
        above: 0,
        required: true,
        typical: [0.05, 5],
        help: 'β, the coefficient of the penalty',
      },
      ...AGGREGATION,
      ...ROLLOUT_CORRECTION,
    },
    metrics: { ppo_kl: { unit: 'nats per token' }, pg_loss: { unit: 'loss' }, ...CORRECTION_METRICS },
    numerics: {
      range: 'any finite logprobs and advantages',
      outside: 'nothing is clipped',
      /** REINFORCE and the penalty cancel each other. */
      cancels: ({ advantage, logprob }) => ({
        value: Math.abs(advantage * logprob),
        gradient: Math.abs(advantage),
      }),
    },
  },
  (symbols, options) =>
    corrected('VerlDROLossFn', symbols, options, (kept) => {
      const { lp, A, d, square } = kept;
      const perToken = A.neg()
        .mul(lp)
        .add(square(d).mul(options.droBeta / 2));
      return {
        loss: perToken.mul(weightOf('VerlDROLossFn', kept, options)),
        metrics: { ppo_kl: { token: d.neg() } },
      };
    }),
) {
  static {
    POLICY_LOSS_FN.register('verl/dro', VerlDROLossFn);
  }
}

/** Options of {@link VerlDROLossFn}. */
export type VerlDROLossOptions = NonNullable<ConstructorParameters<typeof VerlDROLossFn>[0]>;
/** Metrics of {@link VerlDROLossFn}. */
export type VerlDROMetrics = MetricsOf<(typeof VerlDROLossFn)['declaration']['metrics']>;
