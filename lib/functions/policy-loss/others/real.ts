// REAL: classifies the rows of each group by the sign of their advantage.
import type { MetricsOf } from '../../../core/declaration.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';

/** REAL: raises the mean log-ratios of the rows with a positive mean advantage over those of the group's other rows. */
export class REALLossFn extends expressionLossClass(
  {
    name: 'real',
    summary:
      "a group's loss is ln(1 + Σ e^{s/τ} over its negative rows) + ln(1 + Σ e^{−s/τ} over its positive rows)",
    details: [
      's is the mean of ln r over the row. A row is positive if its mean advantage is.',
      'A group without a positive or without a negative row has no loss. The loss is the mean over all groups.',
    ],
    source: ['arXiv 2602.05630'],
    reads: [...RATIO_KEYS, 'group_ids'],
    ofRows: true,
    options: {
      tau: { type: 'number', default: 0.5, above: 0, typical: [0.1, 1], help: 'τ, the temperature' },
    },
    metrics: { pg_loss: { unit: 'loss' } },
    numerics: { range: 'any finite inputs', outside: 'the exponentials do not overflow' },
  },
  (symbols, { tau }) => {
    const { A, d, rows, rowMean, rowsSum, groupSum, select, constant } = symbols;
    const score = rowMean(d).div(tau);
    const isPositive = rowMean(A).gt(0);
    const isNegative = isPositive.not();
    const ofGroup = logOnePlusSum(symbols, score, isNegative).add(
      logOnePlusSum(symbols, score.neg(), isPositive),
    );
    const hasBoth = groupSum(isPositive).gt(0).and(groupSum(isNegative).gt(0));
    const rowsOfGroup = groupSum(1);
    const groups = rowsSum(constant(1).div(rowsOfGroup));
    const rowLoss = select(hasBoth, ofGroup, 0).div(rowsOfGroup.mul(groups));
    return { rowLoss, metrics: { pg_loss: { row: rowLoss.mul(rows) } }, allRows: true };
  },
) {
  static {
    POLICY_LOSS_FN.register('real', REALLossFn);
  }
}

/** Options of {@link REALLossFn}. */
export type REALLossOptions = NonNullable<ConstructorParameters<typeof REALLossFn>[0]>;
/** Metrics of {@link REALLossFn}. */
export type REALMetrics = MetricsOf<(typeof REALLossFn)['declaration']['metrics']>;

// Returns ln(1 + Σ e^x) over those rows of the group for which the condition holds. The largest exponent is subtracted
// first, so that nothing overflows.
function logOnePlusSum(
  { groupSum, groupMax, select, exp, log, max }: ProgramSymbols,
  x: Expression,
  condition: Expression,
): Expression {
  const largest = max(groupMax(select(condition, x, 0)), 0);
  const sum = groupSum(select(condition, exp(x.sub(largest)), 0));
  return log(sum.add(exp(largest.neg()))).add(largest);
}
