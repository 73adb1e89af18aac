// The FlowRL loss of verl's recipes: a row's probability is to match its exponentiated reward.
import type { MetricsOf } from '../../../core/declaration.js';
import { meanOfRow } from '../../correction/verl/arithmetic.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';

/** FlowRL as in verl's recipe: the weighted square of log_z + mean(logprob) − β·mean(A) − mean(ref_logprob). */
export class VerlFlowRLLossFn extends expressionLossClass(
  {
    name: 'verl/flowrl',
    summary: 'a row’s loss is w·(log_z + mean(logprob − β·A − ref_logprob))²',
    details: [
      'w = min(exp(Σ ln r), 10) is constant for the gradient. The loss is the mean over all rows.',
      'The paper clips w to a range around 1; verl clips it at 10 only.',
    ],
    source: ['arXiv 2509.15207', 'verl'],
    reads: ['old_logprob', 'ref_logprob', 'action_mask', 'advantages', 'log_z'],
    ofRows: true,
    options: {
      flowrlBetaCoef: {
        type: 'number',
        default: 15,
        atLeast: 0,
        typical: [1, 15],
        help: 'β, the coefficient of the reward',
      },
    },
    metrics: {
      log_prob: { unit: 'nats per token' },
      old_log_prob: { unit: 'nats per token' },
      ref_log_prob: { unit: 'nats per token' },
      log_reward: { unit: 'advantage' },
      log_z: { unit: 'nats' },
      importance_weight: { unit: 'ratio' },
      final_loss: { unit: 'loss' },
      ppo_kl: { unit: 'nats per token' },
      ref_kl: { unit: 'nats per token' },
    },
    numerics: { range: 'any finite inputs', outside: 'the importance weight is at most 10' },
  },
  (symbols, { flowrlBetaCoef }) => {
    const { lp, old, ref, A, d, logZ, rows, rowSum, exp, min, square, sg } = symbols;
    const reward = meanOfRow(symbols, A).mul(flowrlBetaCoef);
    const error = logZ.add(meanOfRow(symbols, lp)).sub(reward).sub(meanOfRow(symbols, ref));
    const weight = sg(min(exp(rowSum(d)), 10));
    const ofRow = weight.mul(square(error));
    return {
      rowLoss: ofRow.div(rows),
      metrics: {
        log_prob: { token: lp },
        old_log_prob: { token: old },
        ref_log_prob: { token: ref },
        log_reward: { token: A },
        log_z: { row: logZ },
        importance_weight: { row: weight },
        final_loss: { row: ofRow },
        ppo_kl: { token: d.neg() },
        ref_kl: { token: ref.sub(lp) },
      },
      allRows: true,
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('verl/flowrl', VerlFlowRLLossFn);
  }
}

/** Options of {@link VerlFlowRLLossFn}. */
export type VerlFlowRLLossOptions = NonNullable<ConstructorParameters<typeof VerlFlowRLLossFn>[0]>;
/** Metrics of {@link VerlFlowRLLossFn}. */
export type VerlFlowRLMetrics = MetricsOf<(typeof VerlFlowRLLossFn)['declaration']['metrics']>;
