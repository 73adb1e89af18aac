// Distillation as a policy gradient: the log-ratio to a teacher is the advantage.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { TOKEN_MEAN } from './aggregation.js';
import { PENALTY, penaltyOf, probabilityChange, TRUST_REGION_METRICS, trustRegion } from './trust-region.js';

/** Distillation as a policy gradient, as in prime-rl and AReaL: the log-ratio of a teacher to the policy is the advantage. */
export class RefKLLossFn extends expressionLossClass(
  {
    name: 'ref_kl',
    summary: 'ℓ = −c·sg(ref_logprob − logprob)·r + τ·(ln r)²: distillation as a policy gradient',
    details: ["AReaL's pure distillation is mask_low null, kl_tau 0, coef 0.005."],
    source: ['prime-rl', 'AReaL'],
    reads: ['old_logprob', 'ref_logprob', 'action_mask'],
    options: {
      maskLow: {
        type: 'number',
        default: 0.2,
        nullable: true,
        atLeast: 0,
        typical: [0.02, 0.5],
        help: 'tokens are dropped from the first term if their probability has fallen by more than this; null for no limit',
      },
      ...PENALTY,
      coef: {
        type: 'number',
        default: 1,
        typical: [0.005, 2],
        help: 'factor of the first term',
      },
      ...TOKEN_MEAN,
    },
    metrics: { ...TRUST_REGION_METRICS, ref_kl: TRUST_REGION_METRICS.is_masked },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the ratio is not clipped: it overflows from 88 on',
      overflows: 'always',
      /** The penalty cancels the policy gradient where the two are equally large. */
      cancels: penaltyOf,
    },
  },
  (symbols, { maskLow, klTau, coef }) => {
    const { lp, ref, sg, rowMean, constant } = symbols;
    const dropped = maskLow === undefined ? constant(0) : probabilityChange(symbols).lt(-maskLow);
    const distance = sg(ref.sub(lp));
    const { loss, metrics } = trustRegion(symbols, distance.mul(coef), dropped, klTau);
    return { loss, metrics: { ...metrics, ref_kl: { row: rowMean(distance) } } };
  },
) {
  static {
    POLICY_LOSS_FN.register('ref_kl', RefKLLossFn);
  }
}

/** Options of {@link RefKLLossFn}. */
export type RefKLLossOptions = NonNullable<ConstructorParameters<typeof RefKLLossFn>[0]>;
/** Metrics of {@link RefKLLossFn}. */
export type RefKLMetrics = MetricsOf<(typeof RefKLLossFn)['declaration']['metrics']>;
