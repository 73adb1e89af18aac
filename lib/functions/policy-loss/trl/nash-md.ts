// TRL's Nash-MD: REINFORCE with the probability of being preferred as the reward, and a KL penalty.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';

const BETA = 0.1;

/** Nash-MD as in TRL: `probability` is that of the row being preferred to a sample of the mixture of policies. */
export class TRLNashMDLossFn extends expressionLossClass(
  {
    name: 'trl/nash_md',
    summary: 'ℓ = (β·sg(logprob − ref_logprob) − (probability − ½))·logprob, summed over each row',
    source: ['arXiv 2312.00886', 'TRL'],
    reads: ['ref_logprob', 'action_mask', 'probability'],
    options: {
      beta: {
        type: 'number',
        default: BETA,
        atLeast: 0,
        typical: [0, 1],
        help: 'β, the coefficient of the KL',
      },
    },
    metrics: { 'loss/score': { unit: 'nats per row' }, 'loss/kl': { unit: 'nats per row' } },
    numerics: {
      range: 'any finite logprobs',
      outside: 'nothing is clipped',
      /** The KL term and the preference cancel each other. This is the KL term. */
      cancels: ({ logprob, refLogprob }) => {
        const gradient = BETA * Math.abs(logprob - refLogprob);
        return { value: gradient * Math.abs(logprob), gradient };
      },
    },
  },
  ({ lp, ref, probability, rows, rowSum, sg }, { beta }) => {
    const logRatio = lp.sub(ref);
    const preference = probability.sub(0.5);
    return {
      loss: sg(logRatio).mul(beta).sub(preference).mul(lp).div(rows),
      metrics: {
        'loss/score': { row: preference.mul(rowSum(lp)) },
        'loss/kl': { row: rowSum(logRatio) },
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('trl/nash_md', TRLNashMDLossFn);
  }
}

/** Options of {@link TRLNashMDLossFn}. */
export type TRLNashMDLossOptions = NonNullable<ConstructorParameters<typeof TRLNashMDLossFn>[0]>;
/** Metrics of {@link TRLNashMDLossFn}. */
export type TRLNashMDMetrics = MetricsOf<(typeof TRLNashMDLossFn)['declaration']['metrics']>;
