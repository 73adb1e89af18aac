// prime-rl's default loss: a policy gradient with a bound on the change of the probability.
import type { MetricsOf } from '../../../core/declaration.js';
import type { Expression } from '../../../program/expression.js';
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

const OF_ROWS = TRUST_REGION_METRICS.is_masked;

/**
 * prime-rl's default loss: −A·r plus a penalty. Tokens whose probability has already moved far in the direction of the
 * advantage are dropped from the first term.
 */
export class PrimeRLLossFn extends expressionLossClass(
  {
    name: 'prime_rl',
    summary: 'ℓ = −A·r + τ·(ln r)², where the first term lacks tokens whose probability has moved far',
    source: ['arXiv 2602.04879', 'arXiv 2602.02276', 'prime-rl'],
    reads: RATIO_KEYS,
    options: {
      dppoMaskLow: {
        type: 'number',
        default: 0.2,
        atLeast: 0,
        typical: [0.02, 0.5],
        help: 'tokens with A ≤ 0 are dropped if their probability has fallen by more than this',
      },
      dppoMaskHigh: {
        type: 'number',
        default: 0.2,
        atLeast: 0,
        typical: [0.02, 0.5],
        help: 'tokens with A > 0 are dropped if their probability has risen by more than this',
      },
      ...ADVANTAGE_SCALE,
      ...PENALTY,
      ...TOKEN_MEAN,
    },
    metrics: {
      ...TRUST_REGION_METRICS,
      is_masked_low: OF_ROWS,
      is_masked_high: OF_ROWS,
      masked_advantage_positive: OF_ROWS,
      masked_advantage_negative: OF_ROWS,
    },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the ratio is not clipped: where A < 0, it overflows from 88 on',
      overflows: 'for A < 0',
      /** The penalty cancels the policy gradient where the two are equally large. */
      cancels: penaltyOf,
    },
  },
  (symbols, { dppoMaskLow, dppoMaskHigh, advTau, klTau }) => {
    const { A, select, rowMean, rowSum, max } = symbols;
    const change = probabilityChange(symbols);
    const tooLow = change.lt(-dppoMaskLow);
    const tooHigh = change.gt(dppoMaskHigh);
    const dropped = select(A.gt(0), tooHigh, tooLow);
    const low = A.lt(0).and(tooLow);
    const high = A.gt(0).and(tooHigh);
    const shareOfDropped = (some: Expression) => ({ row: rowSum(some).div(max(rowSum(dropped), 1)) });
    const { loss, metrics } = trustRegion(symbols, A.mul(advTau), dropped, klTau);
    return {
      loss,
      metrics: {
        ...metrics,
        is_masked_low: { row: rowMean(low) },
        is_masked_high: { row: rowMean(high) },
        // Dropped tokens are too high where A > 0, and too low elsewhere.
        masked_advantage_positive: shareOfDropped(high),
        masked_advantage_negative: shareOfDropped(low),
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('prime_rl', PrimeRLLossFn);
  }
}

/** Options of {@link PrimeRLLossFn}. */
export type PrimeRLLossOptions = NonNullable<ConstructorParameters<typeof PrimeRLLossFn>[0]>;
/** Metrics of {@link PrimeRLLossFn}. */
export type PrimeRLMetrics = MetricsOf<(typeof PrimeRLLossFn)['declaration']['metrics']>;
