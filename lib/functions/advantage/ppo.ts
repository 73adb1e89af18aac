// The class of generalised advantage estimation, PPO's.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';

/** A discount: from 0 to 1. */
export const DISCOUNT = { holds: (x: number) => x >= 0 && x <= 1, says: 'from 0 to 1' };

/** Options of {@link PPOAdvantageFn}. */
export interface PPOAdvantageOptions extends AdvantageOptions {
  /** Discount of rewards, from 0 to 1; 1 by default. */
  gamma?: number | null | undefined;
  /** Discount of value differences, from 0 to 1; 1 by default. */
  lam?: number | null | undefined;
}

/**
 * Generalised advantage estimation: a_t = δ_t + γ·λ·a_{t+1} with δ_t = R_t + γ·V_{t+1} − V_t, whitened over the batch's
 * unmasked tokens. As in the source, a row's masked columns take part: their rewards and values count towards the
 * columns before them, and they have advantages too.
 *
 * Reads token_level_rewards [B, T] (or rewards [B]), values [B, T], action_mask. Returns are a + V. No metrics.
 *
 * Source: arXiv 1506.02438; Trinity-RFT's PPOAdvantageFn.
 */
export class PPOAdvantageFn extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: PPOAdvantageOptions = {}) {
    const reader = new OptionReader('PPOAdvantageFn', options);
    const native = { gamma: reader.number('gamma', 1, DISCOUNT), lam: reader.number('lam', 1, DISCOUNT) };
    reader.end();
    super(reader.backend, {
      advantage: { name: 'ppo', options: native },
      inputs: ['token_level_rewards', 'values'],
      perRow: false,
      returns: true,
      readsMasked: true,
      whitens: true,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { gamma: 1.0, lam: 1.0 };
  }
}
