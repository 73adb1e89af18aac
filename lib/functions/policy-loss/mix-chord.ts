// MIX-CHORD: the loss MIX, with a schedule for the weight of experts' rows.
import type { Input } from '../../core/batch-reader.js';
import type { MetricsOf } from '../../core/declaration.js';
import { describeValue, LossError } from '../../core/errors.js';
import type { Coefficients } from '../../core/evaluator.js';
import { nativeOptions } from '../../core/options.js';
import { MIX_KEYS, MIXED_OPTIONS, mixedVariant, USUAL_METRICS } from './mixed.js';
import { POLICY_LOSS_FN, policyLossClass } from './policy-loss-fn.js';

const SCHEDULE = {
  muWarmupSteps: {
    type: 'integer',
    default: 0,
    atLeast: 0,
    typical: [0, 120],
    help: 'steps over which mu rises from 0 to its peak',
  },
  muDecaySteps: {
    type: 'integer',
    default: 0,
    atLeast: 0,
    typical: [0, 120],
    help: 'steps over which mu then falls to its valley, along a cosine',
  },
  muPeak: {
    type: 'number',
    default: 0.1,
    atLeast: 0,
    atMost: 1,
    typical: [0, 1],
    help: "the experts' share at the peak",
  },
  muValley: {
    type: 'number',
    default: 0.1,
    atLeast: 0,
    atMost: 1,
    typical: [0, 1],
    help: "the experts' share after the fall",
  },
} as const;

/**
 * MIX-CHORD: the MIX loss, but with mu (the experts' share of the loss) following a schedule over the trainer's steps.
 * By default, each expert token is weighted by φ = p(1 − p), where p is its probability.
 */
export class MIXCHORDPolicyLossFn extends policyLossClass(
  {
    name: 'mix_chord',
    summary: 'MIX with mu scheduled over the steps, and SFT weighted by p(1 − p)',
    details: ['step is one number, or [B] with the same number in every row.'],
    source: ['arXiv 2508.11408', 'Trinity-RFT'],
    reads: [...MIX_KEYS, 'step'],
    options: {
      ...SCHEDULE,
      ...MIXED_OPTIONS,
      enablePhiFunction: {
        type: 'boolean',
        default: true,
        help: "weight experts' tokens by p(1 − p)",
      },
    },
    metrics: {
      ...USUAL_METRICS,
      'expert/sft_loss': { unit: 'nats, before mu', when: "with experts' rows and without the phi function" },
      'expert/sft_phi_loss': { unit: 'nats, before mu', when: "with experts' rows and the phi function" },
      loss: { unit: 'loss' },
      mu: { unit: "share of the experts' loss at this step" },
    },
    numerics: {
      range: "ppo's in the policy's own rows, sft_phi's in experts' rows",
      outside: "as ppo's and sft_phi's",
    },
  },
  (options) => {
    const variant = mixedVariant(options.enablePhiFunction ? 'mix_chord' : 'mix_chord_sft', options);
    return {
      ...variant,
      options: { ...variant.options, ...nativeOptions(SCHEDULE, options) },
      stopsGradient: options.enablePhiFunction,
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('mix_chord', MIXCHORDPolicyLossFn);
  }

  /**
   * Returns mu, the experts' share of the loss, at a step. It rises linearly from 0 to the peak, falls to the valley
   * along half a cosine wave, and then stays there.
   * @param step the trainer's step.
   * @param warmup the number of steps in which mu rises.
   * @param decay the number of steps in which mu falls.
   * @param peak mu after the rise.
   * @param valley mu after the fall.
   * @throws LossError `ERR_INVALID_INPUT` if an argument is not a number.
   */
  muScheduleFunction(step: number, warmup: number, decay: number, peak: number, valley: number): number {
    for (const [key, value] of Object.entries({ step, warmup, decay, peak, valley }))
      if (typeof value !== 'number')
        throw new LossError('ERR_INVALID_INPUT', {
          key,
          expected: 'a number',
          received: describeValue(value),
        });
    if (step < warmup) return (step / warmup) * peak;
    if (step >= warmup + decay) return valley;
    const along = (step - warmup) / decay;
    return (peak - valley) * 0.5 * (1 + Math.cos(Math.PI * along)) + valley;
  }

  /** @internal */
  override coefficients({ step }: Input): Coefficients {
    const { mu_warmup_steps, mu_decay_steps, mu_peak, mu_valley } = this.nativeOptions as Record<
      string,
      number
    >;
    return { mu: this.muScheduleFunction(step!, mu_warmup_steps!, mu_decay_steps!, mu_peak!, mu_valley!) };
  }
}

/** Options of {@link MIXCHORDPolicyLossFn}. It requires clipRange, or both clipRangeLow and clipRangeHigh. */
export type MIXCHORDPolicyLossOptions = NonNullable<ConstructorParameters<typeof MIXCHORDPolicyLossFn>[0]>;
/**
 * Metrics of {@link MIXCHORDPolicyLossFn}. `usual/…` is absent if the batch has no rows that the policy sampled, and
 * `expert/…` if it has no rows that experts wrote.
 */
export type MIXCHORDMetrics = MetricsOf<(typeof MIXCHORDPolicyLossFn)['declaration']['metrics']>;
