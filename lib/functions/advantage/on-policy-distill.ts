// The class of on-policy distillation's advantages.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';

/** Options of {@link OnPolicyDistillAdvantage}. */
export interface OnPolicyDistillAdvantageOptions extends AdvantageOptions {
  /** 1 by default. */
  klCoef?: number | null | undefined;
}

/**
 * On-policy distillation: klCoef·(teacher_logprob − old_logprob) of each unmasked token.
 *
 * Reads old_logprob [B, T], teacher_logprob [B, T], action_mask. Metrics: kl/mean and kl/std (nats per row, over rows),
 * advantages/mean (per row, over rows).
 *
 * Source: arXiv 2306.13649; Trinity-RFT's OnPolicyDistillAdvantage.
 */
export class OnPolicyDistillAdvantage extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: OnPolicyDistillAdvantageOptions = {}) {
    const reader = new OptionReader('OnPolicyDistillAdvantage', options);
    const native = { kl_coef: reader.number('klCoef', 1) };
    reader.end();
    super(reader.backend, {
      advantage: { name: 'on_policy_distill', options: native },
      inputs: ['old_logprob', 'teacher_logprob'],
      perRow: false,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { kl_coef: 1.0 };
  }
}
