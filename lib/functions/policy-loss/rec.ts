// REC's class.
import { LossError } from '../../core/errors.js';
import type { TrinityArgs } from '../../core/options.js';
import { openOptions, PolicyLossFn, type PolicyLossOptions, RATIO_KEYS } from './policy-loss-fn.js';

const CLIP_MODES = ['none', 'one-side', 'gspo-one-side', 'two-side', 'ring'] as const;
const WEIGHTS = ['none', 'importance_sampling', 'gspo_importance_sampling', 'advantage'] as const;
const REGULARIZERS = ['none', 'k2', 'forward-kl'] as const;

/** Options of {@link RECPolicyLossFn}. */
export interface RECPolicyLossOptions extends PolicyLossOptions {
  /** Above 0 and up to 1; 0.2 by default. */
  epsilonLow?: number | null | undefined;
  /** Above 0; 0.2 by default. */
  epsilonHigh?: number | null | undefined;
  /** The ring's outer bound below: above 0 and up to 1; 0.4 by default. */
  epsilonLowPrime?: number | null | undefined;
  /** The ring's outer bound above: above 0; 0.4 by default. */
  epsilonHighPrime?: number | null | undefined;
  /** Which tokens are kept; 'none' drops none. */
  clipMode?: (typeof CLIP_MODES)[number] | null | undefined;
  /** What the advantage is weighted by; gspo_importance_sampling goes with gspo-one-side only. */
  weight?: (typeof WEIGHTS)[number] | null | undefined;
  /** What is added to every token's loss, clipped or not. */
  regularizer?: (typeof REGULARIZERS)[number] | null | undefined;
  /** At least 0; 0 by default. */
  regularizerCoef?: number | null | undefined;
  /** Temperature of the advantage weight, above 0; 1 by default. */
  temp?: number | null | undefined;
}

/** Metrics of {@link RECPolicyLossFn}. */
export type RECMetrics = Record<'pg_clipfrac' | 'pg_loss', number>;

/**
 * REC: ℓ = −A'·logprob of the tokens that the clip mode keeps, A' the advantage times a constant weight, plus a
 * regularizer on all tokens. Aggregated by token-mean, and by seq-mean-token-mean in gspo-one-side.
 *
 * Reads old_logprob, action_mask, advantages. Metrics: pg_clipfrac (fraction of tokens dropped), pg_loss.
 *
 * Source: arXiv 2509.24203; Trinity-RFT's RECPolicyLossFn.
 */
export class RECPolicyLossFn extends PolicyLossFn<RECMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION`: an option out of its range, a weight that needs gspo-one-side. */
  constructor(options: RECPolicyLossOptions = {}) {
    const { reader, backend } = openOptions('RECPolicyLossFn', options);
    const fraction = { holds: (x: number) => x > 0 && x <= 1, says: 'above 0 and up to 1' };
    const positive = { holds: (x: number) => x > 0, says: 'above 0' };
    const native = {
      epsilon_low: reader.number('epsilonLow', 0.2, fraction),
      epsilon_high: reader.number('epsilonHigh', 0.2, positive),
      epsilon_low_prime: reader.number('epsilonLowPrime', 0.4, fraction),
      epsilon_high_prime: reader.number('epsilonHighPrime', 0.4, positive),
      clip_mode: reader.choice('clipMode', 'none', CLIP_MODES),
      weight: reader.choice('weight', 'none', WEIGHTS),
      regularizer: reader.choice('regularizer', 'none', REGULARIZERS),
      regularizer_coef: reader.number('regularizerCoef', 0, { holds: (x) => x >= 0, says: 'of at least 0' }),
      temp: reader.number('temp', 1, positive),
    };
    reader.end();
    const bySequence = native.clip_mode === 'gspo-one-side';
    if (native.weight === 'gspo_importance_sampling' && !bySequence)
      throw new LossError(
        'ERR_INVALID_OPTION',
        `RECPolicyLossFn: weight gspo_importance_sampling must go with clipMode gspo-one-side, not '${native.clip_mode}'`,
      );
    super(backend, {
      policyLoss: {
        name: 'rec',
        options: native,
        aggregation: bySequence ? 'seq-mean-token-mean' : 'token-mean',
      },
      keys: RATIO_KEYS,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return {
      epsilon_low: 0.2,
      epsilon_high: 0.2,
      epsilon_low_prime: 0.6,
      epsilon_high_prime: 2.0,
      clip_mode: 'none',
      weight: 'none',
      regularizer: 'none',
      regularizer_coef: 0.0,
      temp: 1.0,
    };
  }
}
