// Distillation: the policy learns from a teacher. A token's advantage is minus the generalised Jensen-Shannon
// divergence between the two.
import { ADVANTAGE_FN, advantageClass } from './advantage-fn.js';

/**
 * The advantage for distillation. A token's advantage is minus the generalised Jensen-Shannon divergence between policy
 * and teacher at that token.
 */
export class JSDAdvantage extends advantageClass(
  {
    name: 'jsd',
    summary: '− generalised Jensen-Shannon divergence from the teacher',
    details: [
      'The advantage of an unmasked token is −klCoef·(β·(t − M) + (1 − β)·(s − M)), where s, t and M are its log-probabilities under the policy, the teacher and their mixture.',
      'As in the source, the divergence in brackets is s − t at β = 0 and t − s at β = 1.',
      'As in the source, the tokens are always those that the policy sampled, never the teacher. So with β > 0, a token that the teacher finds unlikely may be rewarded for it.',
    ],
    source: ['arXiv 2306.13649', 'Trinity-RFT'],
    reads: ['old_logprob', 'teacher_logprob', 'action_mask'],
    perRow: false,
    options: {
      lambdaCoef: {
        type: 'number',
        default: 0.5,
        atLeast: 0,
        atMost: 1,
        typical: [0, 1],
        help: "the teacher's share β of the mixture; 0 is on-policy distillation",
      },
      klCoef: {
        type: 'number',
        default: 1,
        typical: [0.01, 2],
        help: 'the divergence is multiplied by this',
      },
      temperature: {
        type: 'number',
        default: 1,
        above: 0,
        typical: [0.3, 3],
        help: 'log-probabilities are divided by this',
      },
      chunkSize: {
        type: 'integer',
        trinity: null,
        atLeast: 1,
        typical: [1, 512],
        help: 'no effect; accepted because the source computes this many tokens at once',
      },
    },
    metrics: {
      'jsd/mean': { unit: 'nats per row, mean over rows' },
      'jsd/std': { unit: 'nats per row, standard deviation over rows' },
      'advantages/mean': { unit: 'nats per row, mean over rows' },
    },
    numerics: {
      range: 'any finite logprobs',
      outside:
        'NaN and Infinity pass through; the mixture is computed relative to the larger one, so it never overflows',
      /**
       * The mixture's log-probability M lies between the policy's (s) and the teacher's (t). So the terms that cancel,
       * which contain t − M and s − M, are at most |s − t| in size.
       */
      cancels: ({ oldLogprob, teacherLogprob }) => ({ value: Math.abs(oldLogprob - teacherLogprob) }),
    },
  },
  ({ lambdaCoef, klCoef, temperature }) => ({
    options: { lambda_coef: lambdaCoef, kl_coef: klCoef, temperature },
  }),
) {
  static {
    ADVANTAGE_FN.register('jsd', JSDAdvantage);
  }
}

/** The options of {@link JSDAdvantage}. */
export type JSDAdvantageOptions = NonNullable<ConstructorParameters<typeof JSDAdvantage>[0]>;
