// MIX-CHORD's class.
import { type Batch, keysOf, type Layout, readStep } from '../../core/batch.js';
import type { DeviceBatch } from '../../core/device-batch.js';
import { describeValue, LossError } from '../../core/errors.js';
import type { Coefficients } from '../../core/evaluator.js';
import { KeyMapper } from '../../core/key-mapper.js';
import type { TrinityArgs } from '../../core/options.js';
import { MIX_KEYS, type MIXMetrics, type MixedLossOptions, readMixedOptions } from './mix.js';
import { openOptions, PolicyLossFn } from './policy-loss-fn.js';

/** Options of {@link MIXCHORDPolicyLossFn}. A clip range must be given. */
export interface MIXCHORDPolicyLossOptions extends MixedLossOptions {
  /** Steps over which mu rises from 0 to its peak; 0 by default. */
  muWarmupSteps?: number | null | undefined;
  /** Steps over which mu then falls to its valley, along a cosine; 0 by default. */
  muDecaySteps?: number | null | undefined;
  /** From 0 to 1; 0.1 by default. */
  muPeak?: number | null | undefined;
  /** From 0 to 1; 0.1 by default. */
  muValley?: number | null | undefined;
  /** true (default): experts' tokens are weighted by φ = p(1 − p). */
  enablePhiFunction?: boolean | null | undefined;
}

/** Metrics of {@link MIXCHORDPolicyLossFn}; those of a kind of rows that the batch does not have are absent. */
export type MIXCHORDMetrics = MIXMetrics & {
  /** The share of the experts' loss at this step, from 0 to 1. */
  mu: number;
  /** Of experts' rows, before mu, where the phi function is enabled. */
  'expert/sft_phi_loss'?: number;
};

/**
 * MIX-CHORD: MIX with the experts' share mu scheduled over the trainer's steps, and experts' tokens weighted by φ.
 *
 * Reads old_logprob, action_mask, advantages, expert_mask [B], step ([B], all equal, or one number). Metrics:
 * usual/… (PPO's), expert/sft_phi_loss or expert/sft_loss, loss, mu.
 *
 * Source: CHORD, arXiv 2508.11408; Trinity-RFT's MIXCHORDPolicyLossFn.
 */
export class MIXCHORDPolicyLossFn extends PolicyLossFn<MIXCHORDMetrics> {
  readonly #schedule: { warmup: number; decay: number; peak: number; valley: number };
  readonly #stepKeys: readonly string[];

  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: MIXCHORDPolicyLossOptions = {}) {
    const { reader, backend } = openOptions('MIXCHORDPolicyLossFn', options);
    const share = { holds: (x: number) => x >= 0 && x <= 1, says: 'from 0 to 1' };
    const schedule = {
      warmup: reader.count('muWarmupSteps', 0, 0),
      decay: reader.count('muDecaySteps', 0, 0),
      peak: reader.number('muPeak', 0.1, share),
      valley: reader.number('muValley', 0.1, share),
    };
    const phi = reader.boolean('enablePhiFunction', true);
    const shared = readMixedOptions('MIXCHORDPolicyLossFn', reader);
    reader.end();
    super(backend, {
      policyLoss: { name: phi ? 'mix_chord' : 'mix_chord_sft', ...shared },
      keys: [...MIX_KEYS, 'step'],
    });
    this.#schedule = schedule;
    this.#stepKeys = keysOf(KeyMapper.get(backend), 'step');
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return {
      mu_warmup_steps: 0,
      mu_decay_steps: 0,
      mu_peak: 0.1,
      mu_valley: 0.1,
      clip_range: 0.2,
      enable_phi_function: true,
      loss_agg_mode: 'token-mean',
    };
  }

  /**
   * The experts' share at a step: a linear rise to the peak, a half cosine down to the valley, then the valley.
   * @param step the trainer's step.
   * @param warmup steps of the rise.
   * @param decay steps of the fall.
   * @throws LossError `ERR_INVALID_INPUT` for what is no number.
   */
  muScheduleFunction(step: number, warmup: number, decay: number, peak: number, valley: number): number {
    for (const [name, value] of Object.entries({ step, warmup, decay, peak, valley }))
      if (typeof value !== 'number')
        throw new LossError('ERR_INVALID_INPUT', `${name}: expected a number, not ${describeValue(value)}`);
    if (step < warmup) return (step / warmup) * peak;
    if (step >= warmup + decay) return valley;
    const along = (step - warmup) / decay;
    return (peak - valley) * 0.5 * (1 + Math.cos(Math.PI * along)) + valley;
  }

  /** @internal */
  override coefficients(batch: Batch | DeviceBatch, layout: Layout): Coefficients {
    const step = readStep(batch, this.#stepKeys, layout.rows);
    const { warmup, decay, peak, valley } = this.#schedule;
    return { mu: this.muScheduleFunction(step, warmup, decay, peak, valley) };
  }
}
