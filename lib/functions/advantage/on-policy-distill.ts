// On-policy distillation: the policy learns from a teacher, on tokens that the policy sampled.
import { ADVANTAGE_FN, advantageClass } from './advantage-fn.js';

/**
 * The advantage of a token for on-policy distillation: its log-probability under the teacher minus that under the
 * policy, times a coefficient.
 */
export class OnPolicyDistillAdvantage extends advantageClass({
  name: 'on_policy_distill',
  summary: "klCoef·(the teacher's log-probability − the policy's own)",
  source: ['arXiv 2306.13649', 'Trinity-RFT'],
  reads: ['old_logprob', 'teacher_logprob', 'action_mask'],
  perRow: false,
  options: {
    klCoef: { type: 'number', default: 1, typical: [0.01, 2], help: 'the difference is multiplied by this' },
  },
  metrics: {
    'kl/mean': { unit: 'nats per row, mean over rows' },
    'kl/std': { unit: 'nats per row, standard deviation over rows' },
    'advantages/mean': { unit: 'nats per row, mean over rows' },
  },
  numerics: { range: 'any finite logprobs', outside: 'NaN and Infinity pass through' },
}) {
  static {
    ADVANTAGE_FN.register('on_policy_distill', OnPolicyDistillAdvantage);
  }
}

/** The options of {@link OnPolicyDistillAdvantage}. */
export type OnPolicyDistillAdvantageOptions = NonNullable<
  ConstructorParameters<typeof OnPolicyDistillAdvantage>[0]
>;
