// Losses that users define: from the text of an expression, or in TypeScript.

export type { Expression, LossSymbols, Operand, UnaryFunction } from '../program/expression.js';
export { checkLoss, type LossCheck, type LossReport } from './check-loss.js';
export {
  type DefinedLoss,
  defineLoss,
  type ExpressionOf,
  type LossDefinition,
  type LossesByVariable,
  type MetricDefinition,
  type OptionsWithAggregation,
} from './define-loss.js';
export { type ExpressionOptions, lossFromExpression } from './loss-from-expression.js';
