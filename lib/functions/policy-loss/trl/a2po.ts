// TRL's A*-PO: the squared difference of a row's implicit reward and its advantage.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';

/** A*-PO as in TRL. Rows without tokens count; their implicit reward is 0. */
export class TRLA2POLossFn extends expressionLossClass(
  {
    name: 'trl/a2po',
    summary: 'the loss of a row is (β₂·Σ(logprob − ref_logprob) − (rewards − v_star))²',
    source: ['arXiv 2505.20686', 'TRL'],
    reads: ['ref_logprob', 'action_mask', 'rewards', 'v_star'],
    ofRows: true,
    options: {
      beta2: {
        type: 'number',
        default: 1e-3,
        typical: [1e-3, 0.5],
        help: 'β₂, the coefficient of the log-ratio in the implicit reward',
      },
    },
    metrics: { implicit_reward: { unit: 'reward' }, advantage: { unit: 'reward' } },
    numerics: { range: 'any finite logprobs and rewards', outside: 'nothing is clipped' },
  },
  ({ lp, ref, rewards, vStar, rows, rowSum, square }, { beta2 }) => {
    const implicit = rowSum(lp.sub(ref)).mul(beta2);
    const advantage = rewards.sub(vStar);
    return {
      rowLoss: square(implicit.sub(advantage)).div(rows),
      metrics: { implicit_reward: { row: implicit }, advantage: { row: advantage } },
      allRows: true,
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('trl/a2po', TRLA2POLossFn);
  }
}

/** Options of {@link TRLA2POLossFn}. */
export type TRLA2POLossOptions = NonNullable<ConstructorParameters<typeof TRLA2POLossFn>[0]>;
/** Metrics of {@link TRLA2POLossFn}. */
export type TRLA2POMetrics = MetricsOf<(typeof TRLA2POLossFn)['declaration']['metrics']>;
