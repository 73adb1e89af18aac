// MIX: PPO on the rows that the policy sampled, and supervised fine-tuning (SFT) on the rows that experts wrote.
import type { MetricsOf } from '../../core/declaration.js';
import type { Coefficients } from '../../core/evaluator.js';
import { MIX_KEYS, MIXED_OPTIONS, mixedVariant, USUAL_METRICS } from './mixed.js';
import { POLICY_LOSS_FN, policyLossClass } from './policy-loss-fn.js';

/**
 * MIX: the loss is (1 − mu) times PPO's loss on the policy's own rows plus mu times the loss of supervised fine-tuning
 * on experts' rows. Each of the two is also weighted by the share that its rows have in a training batch.
 */
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
    return { mu: this.nativeOptions.mu as number };
  }
}

/** Options of {@link MIXPolicyLossFn}. It requires clipRange, or both clipRangeLow and clipRangeHigh. */
export type MIXPolicyLossOptions = NonNullable<ConstructorParameters<typeof MIXPolicyLossFn>[0]>;
/**
 * Metrics of {@link MIXPolicyLossFn}. `usual/…` is absent if the batch has no rows that the policy sampled, and
 * `expert/…` if it has no rows that experts wrote.
 */
export type MIXMetrics = MetricsOf<(typeof MIXPolicyLossFn)['declaration']['metrics']>;
