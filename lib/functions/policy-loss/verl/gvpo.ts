// The GVPO loss of verl's recipes: the log-ratios of a group's rows are to match their advantages.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';

/** GVPO as in verl's recipe: the square of a row's implicit reward, less the mean of its group and its advantage. */
export class VerlGVPOLossFn extends expressionLossClass(
  {
    name: 'verl/gvpo',
    summary: 'a row’s loss is (R − sg(mean of R over the group) − mean(A))²/(2(n − 1)), where R = β·Σ ln r',
    details: [
      'The loss is the sum over the rows. Rows without unmasked tokens are left out.',
      'The paper also differentiates the mean, which changes nothing if advantages are centred in their groups.',
    ],
    source: ['arXiv 2504.19599', 'verl'],
    reads: [...RATIO_KEYS, 'group_ids'],
    ofRows: true,
    options: {
      gvpoBeta: {
        type: 'number',
        default: 0.1,
        typical: [0.05, 1],
        help: 'β, the coefficient of the log-ratio in the implicit reward',
      },
      n: {
        type: 'integer',
        atLeast: 2,
        required: true,
        typical: [2, 8],
        help: 'the number of rows in each group',
      },
    },
    metrics: { pg_loss: { unit: 'loss' } },
    numerics: { range: 'any finite inputs', outside: 'nothing is clipped' },
  },
  ({ A, d, rows, rowSum, rowMean, groupSum, square, sg }, { gvpoBeta, n }) => {
    const reward = rowSum(d).mul(gvpoBeta);
    const error = reward.sub(sg(groupSum(reward).div(n))).sub(rowMean(A));
    const rowLoss = square(error).div(2 * (n - 1));
    return { rowLoss, metrics: { pg_loss: { row: rowLoss.mul(rows) } } };
  },
) {
  static {
    POLICY_LOSS_FN.register('verl/gvpo', VerlGVPOLossFn);
  }
}

/** Options of {@link VerlGVPOLossFn}. */
export type VerlGVPOLossOptions = NonNullable<ConstructorParameters<typeof VerlGVPOLossFn>[0]>;
/** Metrics of {@link VerlGVPOLossFn}. */
export type VerlGVPOMetrics = MetricsOf<(typeof VerlGVPOLossFn)['declaration']['metrics']>;
