// prime-rl's loss with one bound on the change of the probability in both directions.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { TOKEN_MEAN } from './aggregation.js';
import {
  ADVANTAGE_SCALE,
  PENALTY,
  penaltyOf,
  probabilityChange,
  TRUST_REGION_METRICS,
  trustRegion,
} from './trust-region.js';

/**
 * prime-rl's loss −A·r plus a penalty, where the first term lacks all tokens whose probability has moved far. It is not
 * the preference loss IPO.
 */
export class PrimeRLIPOLossFn extends expressionLossClass(
  {
    name: 'prime_rl_ipo',
    summary:
      'ℓ = −A·r + τ·(ln r)², where the first term lacks tokens whose probability has moved, up or down',
    source: ['arXiv 2602.02276', 'prime-rl'],
    reads: RATIO_KEYS,
    options: {
      ipoThreshold: {
        type: 'number',
        default: 0.1,
        atLeast: 0,
        typical: [0.02, 0.5],
        help: 'tokens are dropped if their probability has changed by more than this',
      },
      ...ADVANTAGE_SCALE,
      ...PENALTY,
      ...TOKEN_MEAN,
    },
    metrics: TRUST_REGION_METRICS,
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the ratio is not clipped: it overflows from 88 on where both probabilities are small',
      /** The penalty cancels the policy gradient where the two are equally large. */
      cancels: penaltyOf,
    },
  },
  (symbols, { ipoThreshold, advTau, klTau }) => {
    const dropped = symbols.abs(probabilityChange(symbols)).gt(ipoThreshold);
    return trustRegion(symbols, symbols.A.mul(advTau), dropped, klTau);
  },
) {
  static {
    POLICY_LOSS_FN.register('prime_rl_ipo', PrimeRLIPOLossFn);
  }
}

/** Options of {@link PrimeRLIPOLossFn}. */
export type PrimeRLIPOLossOptions = NonNullable<ConstructorParameters<typeof PrimeRLIPOLossFn>[0]>;
/** Metrics of {@link PrimeRLIPOLossFn}. */
export type PrimeRLIPOMetrics = MetricsOf<(typeof PrimeRLIPOLossFn)['declaration']['metrics']>;
