// TRL's SDPO on sampled tokens: REINFORCE with the log-ratio to the teacher as the cost.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';

/** SDPO as in TRL, where it is computed from the sampled tokens alone. */
export class TRLSDPOSampledTokenLossFn extends expressionLossClass(
  {
    name: 'trl/sdpo_sampled_token',
    summary:
      'ℓ = sg((logprob − teacher_logprob)·min(r, clip))·logprob, the mean over each row, then over the rows',
    source: ['arXiv 2601.20802', 'TRL'],
    reads: ['old_logprob', 'action_mask', 'teacher_logprob'],
    optional: ['old_logprob'],
    options: {
      distillationIsClip: {
        type: 'number',
        default: 2,
        nullable: true,
        above: 0,
        typical: [1, 3],
        help: 'the upper bound on the importance weight, which needs old_logprob; null for no weight',
      },
    },
    metrics: { 'self_distillation/distillation_loss': { unit: 'loss per token' } },
    numerics: {
      range: 'any finite logprobs',
      outside: 'the log-ratio of the importance weight is limited to 20 nats',
    },
  },
  (symbols, { distillationIsClip }, has) => {
    const { lp, teacher, d, n, rows, clip, exp, max, min, sg } = symbols;
    const cost = lp.sub(teacher);
    const isWeighted = distillationIsClip !== undefined && has('old_logprob');
    const weighted = isWeighted ? cost.mul(min(exp(clip(d, -20, 20)), distillationIsClip)) : cost;
    const perToken = sg(weighted).mul(lp);
    return {
      loss: perToken.div(rows.mul(max(n, 1))),
      metrics: { 'self_distillation/distillation_loss': { token: perToken } },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('trl/sdpo_sampled_token', TRLSDPOSampledTokenLossFn);
  }
}

/** Options of {@link TRLSDPOSampledTokenLossFn}. */
export type TRLSDPOSampledTokenLossOptions = NonNullable<
  ConstructorParameters<typeof TRLSDPOSampledTokenLossFn>[0]
>;
/** Metrics of {@link TRLSDPOSampledTokenLossFn}. */
export type TRLSDPOSampledTokenMetrics = MetricsOf<
  (typeof TRLSDPOSampledTokenLossFn)['declaration']['metrics']
>;
