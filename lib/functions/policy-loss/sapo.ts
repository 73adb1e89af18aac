// SAPO's class.
import { describeValue, guarded, LossError } from '../../core/errors.js';
import { native } from '../../core/native.js';
import type { TrinityArgs } from '../../core/options.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn, RATIO_KEYS } from './policy-loss-fn.js';

/** Options of {@link SAPOPolicyLossFn}. */
export interface SAPOPolicyLossOptions extends AggregatedLossOptions {
  /** Temperature where A > 0; 1 by default. */
  tauPos?: number | null | undefined;
  /** Temperature elsewhere; at least tauPos, 1.05 by default. */
  tauNeg?: number | null | undefined;
  /** false (default): Trinity's form, the gate held constant. true: the paper's, its gradient taken. */
  differentiateGate?: boolean | null | undefined;
}

/** Metrics of {@link SAPOPolicyLossFn}. */
export type SAPOMetrics = Record<
  'sapo_loss' | 'ppo_kl' | 'avg_soft_gate' | 'avg_ratio' | 'pos_adv_frac',
  number
>;

/**
 * SAPO: a sigmoid gate f(r) = σ(τ(r − 1))·4/τ in place of the clip. ℓ = −A·f(r)·logprob with f held constant, or
 * −A·f(r) with its gradient (differentiateGate).
 *
 * Reads old_logprob, action_mask, advantages. Metrics: sapo_loss, ppo_kl (nats per token), avg_soft_gate,
 * avg_ratio, pos_adv_frac (token means).
 *
 * Source: arXiv 2511.20347; Trinity-RFT's SAPOPolicyLossFn.
 */
export class SAPOPolicyLossFn extends PolicyLossFn<SAPOMetrics> {
  readonly #tauPos: number;
  readonly #tauNeg: number;

  /** @throws LossError `ERR_INVALID_OPTION`: a temperature that is not positive, tauNeg < tauPos. */
  constructor(options: SAPOPolicyLossOptions = {}) {
    const { reader, backend } = openOptions('SAPOPolicyLossFn', options);
    const tauPos = reader.number('tauPos', 1, { holds: (x) => x > 0, says: 'above 0' });
    const tauNeg = reader.number('tauNeg', 1.05, {
      holds: (x) => x >= tauPos,
      says: `of at least tauPos (${tauPos})`,
    });
    const differentiateGate = reader.boolean('differentiateGate', false);
    const aggregation = reader.lossAggMode('token-mean');
    reader.end();
    super(backend, {
      policyLoss: {
        name: 'sapo',
        options: { tau_pos: tauPos, tau_neg: tauNeg, differentiate_gate: differentiateGate },
        aggregation,
      },
      keys: RATIO_KEYS,
    });
    this.#tauPos = tauPos;
    this.#tauNeg = tauNeg;
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { tau_pos: 1.0, tau_neg: 1.05, loss_agg_mode: 'token-mean', differentiate_gate: false };
  }

  /**
   * The gate f(r) = σ(τ(r − 1))·4/τ of each token, with τ by the sign of its advantage.
   * @param ratio importance ratios.
   * @param advantages as many.
   * @throws LossError `ERR_SHAPE_MISMATCH`, `ERR_INVALID_INPUT`
   */
  softGateFunction(ratio: ArrayLike<number>, advantages: ArrayLike<number>): Float32Array {
    return guarded(() => {
      const [ratios, signs] = [toFloats('ratio', ratio), toFloats('advantages', advantages)];
      if (ratios.length !== signs.length)
        throw new LossError(
          'ERR_SHAPE_MISMATCH',
          `advantages: expected as many as there are ratios (${ratios.length}), not ${signs.length}`,
        );
      const out = new Float32Array(ratios.length);
      native.softGate(this.#tauPos, this.#tauNeg, ratios, signs, out);
      return out;
    });
  }
}

function toFloats(name: string, values: ArrayLike<number>): Float32Array {
  const length: unknown = values?.length;
  if (!Number.isSafeInteger(length) || (length as number) < 0)
    throw new LossError('ERR_INVALID_INPUT', `${name}: expected numbers, not ${describeValue(values)}`);
  const floats = new Float32Array(length as number);
  for (let i = 0; i < floats.length; i++) {
    const x: unknown = values[i];
    if (typeof x !== 'number')
      throw new LossError('ERR_INVALID_INPUT', `${name}[${i}]: expected a number, not ${describeValue(x)}`);
    floats[i] = x;
  }
  return floats;
}
