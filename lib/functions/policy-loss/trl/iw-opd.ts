// TRL's importance-weighted on-policy distillation: earlier tokens of a row weigh more.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';

/** IW-OPD as in TRL: REINFORCE with the log-ratio of the teacher to the sampler as the advantage. */
export class TRLIWOPDLossFn extends expressionLossClass(
  {
    name: 'trl/iw_opd',
    summary: 'ℓ = −v·a·logprob, where a = teacher_logprob − rollout_logprob, averaged over the tokens',
    details: [
      'v = 1 + γ·(1 − s), where s is the share of Σ|a| of the row that lies before the token.',
      'Without rollout_logprob, the sampler is the current policy.',
    ],
    source: ['arXiv 2606.22600', 'TRL'],
    reads: ['rollout_logprob', 'action_mask', 'teacher_logprob'],
    optional: ['rollout_logprob'],
    options: {
      iwOpdGamma: {
        type: 'number',
        default: 0.5,
        atLeast: 0,
        typical: [0, 2],
        help: 'γ, the additional weight of the first token of a row',
      },
      iwOpdEpsilon: {
        type: 'number',
        default: 1e-8,
        above: 0,
        typical: [1e-8, 1e-3],
        help: 'the least divisor of the shares',
      },
      numItemsInBatch: {
        type: 'integer',
        atLeast: 0,
        typical: [1, 200],
        help: 'the sum over the tokens is divided by this; by the number of unmasked tokens if absent',
      },
    },
    metrics: {
      'iw_opd/mean_advantage': { unit: 'nats per token' },
      'iw_opd/mean_abs_advantage': { unit: 'nats per token' },
      'iw_opd/mean_weight': { unit: 'ratio' },
      'iw_opd/min_weight': { unit: 'ratio', when: 'when the whole batch is computed in one call' },
      'iw_opd/max_weight': { unit: 'ratio', when: 'when the whole batch is computed in one call' },
    },
    numerics: { range: 'any finite logprobs', outside: 'nothing is clipped' },
  },
  (
    { lp, teacher, rollout, tokens, abs, max, rowSum, prefixSum, batchMin, batchMax, constant, sg },
    { iwOpdGamma, iwOpdEpsilon, numItemsInBatch },
    has,
  ) => {
    const advantage = sg(teacher.sub(has('rollout_logprob') ? rollout : lp));
    const size = abs(advantage);
    const before = prefixSum(size, 1).sub(size);
    const share = before.div(max(rowSum(size), iwOpdEpsilon));
    const weight = constant(1).sub(share).mul(iwOpdGamma).add(1);
    const weighted = weight.mul(advantage);
    return {
      loss: weighted
        .neg()
        .mul(lp)
        .div(max(numItemsInBatch ?? tokens, 1)),
      metrics: {
        'iw_opd/mean_advantage': { token: weighted },
        'iw_opd/mean_abs_advantage': { token: size },
        'iw_opd/mean_weight': { token: weight },
        'iw_opd/min_weight': { batch: batchMin(weight) },
        'iw_opd/max_weight': { batch: batchMax(weight) },
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('trl/iw_opd', TRLIWOPDLossFn);
  }
}

/** Options of {@link TRLIWOPDLossFn}. */
export type TRLIWOPDLossOptions = NonNullable<ConstructorParameters<typeof TRLIWOPDLossFn>[0]>;
/** Metrics of {@link TRLIWOPDLossFn}. */
export type TRLIWOPDMetrics = MetricsOf<(typeof TRLIWOPDLossFn)['declaration']['metrics']>;
