// REC: REINFORCE with a choice of clip modes, weights and regularizers.
import type { MetricsOf } from '../../core/declaration.js';
import { POLICY_LOSS_FN, policyLossClass, RATIO_KEYS } from './policy-loss-fn.js';

/**
 * REC: REINFORCE with three choices. The clip mode decides which tokens keep their loss, the weight multiplies the
 * advantage, and the regularizer is added to the loss of every token.
 */
export class RECPolicyLossFn extends policyLossClass(
  {
    name: 'rec',
    summary: 'ℓ = −A·logprob with a clip mode, a weight and a regularizer',
    details: [
      'The advantage is multiplied by a constant weight, and the regularizer acts on all tokens, clipped or not.',
      'The aggregation is token-mean, or seq-mean-token-mean with clipMode gspo-one-side.',
    ],
    source: ['arXiv 2509.24203', 'Trinity-RFT'],
    reads: RATIO_KEYS,
    options: {
      epsilonLow: {
        type: 'number',
        default: 0.2,
        above: 0,
        atMost: 1,
        typical: [0.05, 0.5],
        help: 'the lower bound on the ratio is 1 − this',
      },
      epsilonHigh: {
        type: 'number',
        default: 0.2,
        above: 0,
        typical: [0.05, 0.5],
        help: 'the upper bound on the ratio is 1 + this',
      },
      epsilonLowPrime: {
        type: 'number',
        default: 0.4,
        trinity: 0.6,
        above: 0,
        atMost: 1,
        typical: [0.1, 1],
        help: "the ring's outer lower bound is 1 − this",
      },
      epsilonHighPrime: {
        type: 'number',
        default: 0.4,
        trinity: 2,
        above: 0,
        typical: [0.1, 2],
        help: "the ring's outer upper bound is 1 + this",
      },
      clipMode: {
        type: 'choice',
        choices: ['none', 'one-side', 'gspo-one-side', 'two-side', 'ring'],
        default: 'none',
        help: 'which tokens are kept',
      },
      weight: {
        type: 'choice',
        choices: ['none', 'importance_sampling', 'gspo_importance_sampling', 'advantage'],
        default: 'none',
        needs: { gspo_importance_sampling: { clipMode: ['gspo-one-side'] } },
        help: 'what the advantage is multiplied by',
      },
      regularizer: {
        type: 'choice',
        choices: ['none', 'k2', 'forward-kl'],
        default: 'none',
        help: 'what is added to the loss of every token, clipped or not',
      },
      regularizerCoef: {
        type: 'number',
        default: 0,
        atLeast: 0,
        typical: [0, 0.5],
        help: 'the regularizer is multiplied by this',
      },
      temp: {
        type: 'number',
        default: 1,
        above: 0,
        typical: [0.5, 2],
        help: 'temperature of the advantage weight',
      },
    },
    metrics: { pg_clipfrac: { unit: 'fraction of tokens' }, pg_loss: { unit: 'loss' } },
    numerics: {
      range:
        'any finite logprobs and advantages; with importance weights, logprob − old_logprob up to 88.7; weighted by ' +
        'advantage, advantages / temp up to 88.7',
      outside: 'the weight overflows: loss and gradient are ±Infinity',
      /** The regularizer may cancel the policy term, so errors are measured relative to the size of the policy term. */
      cancels: ({ logprob, advantage }) => ({
        value: Math.abs(advantage * logprob),
        gradient: Math.abs(advantage),
      }),
      variants: [
        { weight: 'importance_sampling' },
        { weight: 'advantage' },
        { regularizer: 'k2', regularizer_coef: 0.1 },
      ],
    },
  },
  ({ clipMode }) => ({ aggregation: clipMode === 'gspo-one-side' ? 'seq-mean-token-mean' : 'token-mean' }),
) {
  static {
    POLICY_LOSS_FN.register('rec', RECPolicyLossFn);
  }
}

/** Options of {@link RECPolicyLossFn}. */
export type RECPolicyLossOptions = NonNullable<ConstructorParameters<typeof RECPolicyLossFn>[0]>;
/** Metrics of {@link RECPolicyLossFn}. */
export type RECMetrics = MetricsOf<(typeof RECPolicyLossFn)['declaration']['metrics']>;
