// MIX: PPO on the policy's own rows and SFT on experts' rows.
import type { MetricsOf } from '../../core/declaration.js';
import type { Coefficients } from '../../core/evaluator.js';
import { MIX_KEYS, MIXED_OPTIONS, mixedVariant, USUAL_METRICS } from './mixed.js';
import { POLICY_LOSS_FN, policyLossClass } from './policy-loss-fn.js';

/** PPO on the policy's own rows and SFT on experts' rows, each weighted by its share of a training batch. */
export class MIXPolicyLossFn extends policyLossClass(
  {
    name: 'mix',
    summary: "(1 − mu)·PPO on the policy's own rows + mu·SFT on experts' rows",
    details: ['Each kind of rows is aggregated on its own and weighted by its share of a training batch.'],
    source: ['arXiv 2505.17826', 'Trinity-RFT'],
    reads: MIX_KEYS,
    options: {
      mu: {
        type: 'number',
        default: 0.1,
        atLeast: 0,
        atMost: 1,
        typical: [0, 1],
        help: "the share of the experts' loss",
      },
      ...MIXED_OPTIONS,
    },
    metrics: {
      ...USUAL_METRICS,
      'expert/sft_loss': { unit: 'nats, before mu', when: "with experts' rows" },
      loss: { unit: 'loss' },
    },
    numerics: {
      range: "ppo's in the policy's own rows, sft's in experts' rows",
      outside: "as ppo's and sft's",
    },
  },
  (options) => {
    const variant = mixedVariant('mix', options);
    return { ...variant, options: { ...variant.options, mu: options.mu } };
  },
) {
  static {
    POLICY_LOSS_FN.register('mix', MIXPolicyLossFn);
  }

  /** @internal */
  override coefficients(): Coefficients {
    return { mu: this.policyLoss.options.mu as number };
  }
}

/** Options of {@link MIXPolicyLossFn}. A clip range is required. */
export type MIXPolicyLossOptions = NonNullable<ConstructorParameters<typeof MIXPolicyLossFn>[0]>;
/** Metrics of {@link MIXPolicyLossFn}; metrics of a kind of rows that the batch lacks are absent. */
export type MIXMetrics = MetricsOf<(typeof MIXPolicyLossFn)['declaration']['metrics']>;
