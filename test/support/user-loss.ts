/** Runs losses that are written as expressions, in the ways in which tests run built-in losses. */
import {
  type Batch,
  type DeviceBatch,
  type LossAggMode,
  lossFromExpression,
  type PolicyLossFn,
} from '../../lib/index.js';
import type { Formula } from '../reference/batch.js';
import { type Expression, expressionFormula, textOf } from '../reference/expression.js';
import type { Args } from '../reference/index.js';
import { OPTIONS } from './expressions.js';
import type { Computed } from './subject.js';

export const syncOf = (fn: PolicyLossFn, batch: Batch | DeviceBatch) =>
  fn.computeSync(batch, { grad: true }) as Computed;
export const asyncOf = (fn: PolicyLossFn, batch: Batch | DeviceBatch, device?: string) =>
  fn.compute(batch, { grad: true, ...(device ? { device } : {}) }) as Promise<Computed>;

/** A drawn loss: the library's version, and the reference's formula with its arguments. */
export interface UserLoss {
  text: string;
  /** Whether the loss or a metric reduces over all rows, so that the batch cannot be divided. */
  readsWholeBatch: boolean;
  fn: PolicyLossFn;
  formula: Formula;
  args: Args;
}

/** Makes a loss with the drawn options from trees. `metrics` maps names to expressions. */
export function userLoss(
  loss: Expression,
  lossAggMode: LossAggMode = 'token-mean',
  metrics: Record<string, Expression> = {},
): UserLoss {
  const texts = Object.fromEntries(Object.entries(metrics).map(([name, metric]) => [name, textOf(metric)]));
  const text = textOf(loss);
  return {
    text,
    readsWholeBatch: [text, ...Object.values(texts)].some((each) => /batch_|group_/.test(each)),
    fn: lossFromExpression(text, { options: OPTIONS, variable: 'logprob', lossAggMode, metrics: texts }),
    formula: expressionFormula(loss, metrics),
    args: { ...OPTIONS, loss_agg_mode: lossAggMode },
  };
}
