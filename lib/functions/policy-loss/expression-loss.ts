// Makes the classes of losses that are defined by expressions instead of native code.
import type { MetricSchema } from '../../core/declaration.js';
import type { CheckedOptions } from '../../core/options.js';
import { compileLoss, type MetricPer } from '../../program/compile.js';
import { nodeOf, type Operand, type ProgramSymbols, programSymbolsOf } from '../../program/expression.js';
import { Graph, type Node, reachable } from '../../program/graph.js';
import {
  type PolicyLossClass,
  type PolicyLossDeclaration,
  type PolicyLossVariant,
  policyLossClass,
} from './policy-loss-fn.js';

/**
 * The value of a metric. `token` and `row` give a value for each token or row, and the metric is their mean: Σ over the
 * unmasked tokens / (N + 1e-8), or Σ over the rows / B. `batch` gives the metric itself. The result lacks it if it is NaN,
 * and so does the result of a part of a batch.
 */
export type MetricExpression = { token: Operand } | { row: Operand } | { batch: Operand };

/** The metrics of a loss with the schema M. Only a metric that is declared with a condition (`when`) may be undefined. */
type MetricExpressions<M extends MetricSchema> = {
  readonly [K in keyof M]: MetricExpression | (M[K] extends { when: string } ? undefined : never);
};

/**
 * A loss as expressions. The loss of a batch is Σ loss over the unmasked tokens plus Σ rowLoss over the rows, where each
 * row counts as often as its repeats say.
 */
export interface LossExpressions<M extends MetricSchema> {
  /** The loss of a token, including its weight in the batch; 0 if absent. */
  readonly loss?: Operand;
  /** The loss of a row, including its weight in the batch; 0 if absent. */
  readonly rowLoss?: Operand;
  readonly metrics: MetricExpressions<M>;
  /** Whether rows without unmasked tokens also take part. Otherwise they are skipped. */
  readonly allRows?: boolean;
}

/**
 * Makes a subclass of PolicyLossFn from a declaration and the loss's expressions.
 * @param build returns the expressions for the checked options. It is called once for each new loss.
 */
export function expressionLossClass<const D extends PolicyLossDeclaration>(
  declaration: D,
  build: (symbols: ProgramSymbols, options: CheckedOptions<D['options']>) => LossExpressions<D['metrics']>,
): PolicyLossClass<D> {
  return policyLossClass(declaration, (options) => {
    const graph = new Graph();
    return variantOf(declaration.name, graph, build(programSymbolsOf(graph), options));
  });
}

function variantOf(
  name: string,
  graph: Graph,
  { loss = 0, rowLoss = 0, metrics, allRows }: LossExpressions<MetricSchema>,
): PolicyLossVariant {
  const roots = {
    loss: nodeOf(graph, `${name}: loss`, loss),
    rowLoss: nodeOf(graph, `${name}: rowLoss`, rowLoss, 'row'),
  };
  const named = Object.entries(metrics).flatMap(([metric, expression]) =>
    expression === undefined
      ? []
      : [{ name: metric, ...metricNode(graph, `${name}: ${metric}`, expression) }],
  );
  return {
    aggregation: 'token-sum',
    stopsGradient: reachable(Object.values(roots)).some(({ op }) => op === 'stop'),
    program: {
      ...compileLoss(graph, { ...roots, metrics: named, allRows }),
      metrics: named.map(({ name, per }) => ({ name, per })),
    },
  };
}

function metricNode(graph: Graph, at: string, expression: MetricExpression): { node: Node; per: MetricPer } {
  const [per, value] = Object.entries(expression)[0] as [MetricPer, Operand];
  return { node: nodeOf(graph, at, value, per), per };
}
