// SAPO: a policy loss that bounds the ratio smoothly by a sigmoid gate, instead of by a clip.
import { copyNumbers } from '../../core/columns.js';
import type { MetricsOf } from '../../core/declaration.js';
import { allocate, describeValue, guarded, LossError } from '../../core/errors.js';
import { native } from '../../core/native.js';
import { aggregationOption } from '../../core/options.js';
import { POLICY_LOSS_FN, policyLossClass, RATIO_KEYS } from './policy-loss-fn.js';

/**
 * SAPO: the loss of a token is −advantage·gate·logprob, where the gate is a sigmoid function of the ratio to the old
 * policy. By default, no gradient flows through the gate.
 */
export class SAPOPolicyLossFn extends policyLossClass(
  {
    name: 'sapo',
    summary: 'ℓ = −A·gate(r)·logprob, with a sigmoid gate instead of a clip',
    details: [
      'The gate is f(r) = σ(τ(r − 1))·4/τ.',
      'Trinity holds the gate constant. The paper differentiates it too: its loss is −A·f(r).',
    ],
    source: ['arXiv 2511.20347', 'Trinity-RFT'],
    reads: RATIO_KEYS,
    options: {
      tauPos: {
        type: 'number',
        default: 1,
        above: 0,
        typical: [0.3, 1.5],
        help: "the gate's temperature where A > 0",
      },
      tauNeg: {
        type: 'number',
        default: 1.05,
        above: 0,
        atLeastOption: 'tauPos',
        typical: [1.5, 3],
        help: "the gate's temperature where A ≤ 0",
      },
      lossAggMode: aggregationOption('token-mean'),
      differentiateGate: {
        type: 'boolean',
        default: false,
        help: "take the gate's gradient, as in the paper, instead of holding it constant",
      },
    },
    metrics: {
      sapo_loss: { unit: 'loss' },
      ppo_kl: { unit: 'nats per token' },
      avg_soft_gate: { unit: 'gate, mean over tokens' },
      avg_ratio: { unit: 'ratio, mean over tokens' },
      pos_adv_frac: { unit: 'fraction of tokens' },
    },
    numerics: {
      range: 'any finite logprobs and advantages',
      outside:
        'the ratio overflows and the gate is open: the loss is finite; the metric avg_ratio is Infinity',
      /**
       * Far from a ratio of 1, the gate's slope is nearly 0 and has a large relative error. Errors of the gradient are
       * therefore measured relative to its size at a ratio of 1, which is |advantage|.
       */
      cancels: ({ advantage }) => ({ gradient: Math.abs(advantage) }),
      variants: [{ differentiate_gate: true }],
    },
  },
  ({ differentiateGate }) => ({ stopsGradient: !differentiateGate }),
) {
  static {
    POLICY_LOSS_FN.register('sapo', SAPOPolicyLossFn);
  }

  /**
   * Returns the gate f(r) = σ(τ(r − 1))·4/τ of each ratio r. τ is tauPos where the advantage is positive, and tauNeg
   * elsewhere.
   * @param ratio the importance ratios.
   * @param advantages one advantage for each ratio; only the sign matters.
   * @throws LossError `ERR_SHAPE_MISMATCH` if the lengths differ, `ERR_INVALID_INPUT` for a value that is not a number.
   */
  softGateFunction(ratio: ArrayLike<number>, advantages: ArrayLike<number>): Float32Array {
    return guarded(() => {
      const [ratios, signs] = [toFloats('ratio', ratio), toFloats('advantages', advantages)];
      if (ratios.length !== signs.length)
        throw new LossError('ERR_SHAPE_MISMATCH', {
          key: 'advantages',
          expected: `${ratios.length} values, one for each ratio`,
          received: String(signs.length),
        });
      const out = allocate('the gates', () => new Float32Array(ratios.length));
      const { tau_pos, tau_neg } = this.nativeOptions;
      native.softGate(tau_pos as number, tau_neg as number, ratios, signs, out);
      return out;
    });
  }
}

/** Options of {@link SAPOPolicyLossFn}. */
export type SAPOPolicyLossOptions = NonNullable<ConstructorParameters<typeof SAPOPolicyLossFn>[0]>;
/** Metrics of {@link SAPOPolicyLossFn}. */
export type SAPOMetrics = MetricsOf<(typeof SAPOPolicyLossFn)['declaration']['metrics']>;

function toFloats(key: string, values: ArrayLike<number>): Float32Array {
  const length: unknown = values?.length;
  if (!Number.isSafeInteger(length) || (length as number) < 0)
    throw new LossError('ERR_INVALID_INPUT', { key, expected: 'numbers', received: describeValue(values) });
  const floats = allocate(`${length} values of ${key}`, () => new Float32Array(length as number));
  copyNumbers(key, values, 0, floats, 0, floats.length);
  return floats;
}
