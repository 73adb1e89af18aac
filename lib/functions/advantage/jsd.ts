// The class of distillation by the generalised Jensen-Shannon divergence.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';

/** Options of {@link JSDAdvantage}. */
export interface JSDAdvantageOptions extends AdvantageOptions {
  /** The teacher's share β of the mixture, from 0 to 1; 0.5 by default. At 0 it is on-policy distillation. */
  lambdaCoef?: number | null | undefined;
  /** 1 by default. */
  klCoef?: number | null | undefined;
  /** What log-probabilities are divided by; 1 by default. */
  temperature?: number | null | undefined;
  /** How many tokens the source works on at once. Taken, and without effect here. */
  chunkSize?: number | null | undefined;
}

/**
 * JSD: −klCoef times each unmasked token's part of the Jensen-Shannon divergence between the teacher and the policy that
 * sampled, β·(t − M) + (1 − β)·(s − M) with M the mixture's log-probability; s − t at β = 0 and t − s at β = 1. As in
 * the source, tokens that the policy sampled stand for the teacher's too, so that with β > 0 a token which the teacher
 * holds unlikely may be rewarded for that.
 *
 * Reads old_logprob [B, T], teacher_logprob [B, T], action_mask. Metrics: jsd/mean and jsd/std (nats per row, over rows),
 * advantages/mean (per row, over rows).
 *
 * Source: arXiv 2306.13649; Trinity-RFT's JSDAdvantage.
 */
export class JSDAdvantage extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: JSDAdvantageOptions = {}) {
    const reader = new OptionReader('JSDAdvantage', options);
    const native = {
      lambda_coef: reader.number('lambdaCoef', 0.5, {
        holds: (x) => x >= 0 && x <= 1,
        says: 'from 0 to 1',
      }),
      kl_coef: reader.number('klCoef', 1),
      temperature: reader.number('temperature', 1, { holds: (x) => x > 0, says: 'above 0' }),
    };
    reader.count('chunkSize', 1);
    reader.end();
    super(reader.backend, {
      advantage: { name: 'jsd', options: native },
      inputs: ['old_logprob', 'teacher_logprob'],
      perRow: false,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { lambda_coef: 0.5, kl_coef: 1.0, temperature: 1.0, chunk_size: null };
  }
}
