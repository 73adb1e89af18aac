// Makes the classes of losses that are defined by expressions instead of native code.
import type { ColumnName } from '../../core/batch-reader.js';
import type { MetricSchema } from '../../core/declaration.js';
import type { FormColumns } from '../../core/evaluator.js';
import type { CheckedOptions } from '../../core/options.js';
import { compileLoss, type LossNodes, type MetricPer } from '../../program/compile.js';
import { nodeOf, type Operand, type ProgramSymbols, programSymbolsOf } from '../../program/expression.js';
import { Graph, type Node, reachable } from '../../program/graph.js';
import {
  type LossProgram,
  type PolicyLossClass,
  type PolicyLossDeclaration,
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

/** The declaration of a loss that is defined by expressions. */
export interface ExpressionLossDeclaration extends PolicyLossDeclaration {
  /** Columns that a batch may lack. Without `old_logprob`, the old policy is the current one. */
  readonly optional?: readonly ColumnName[];
  /** Columns that become values of rows, which rows without tokens have too, if the batch has one value per row. */
  readonly perRow?: readonly ColumnName[];
}

/** Returns whether the batch has an optional column. */
export type Has = (column: ColumnName) => boolean;

/**
 * Makes a subclass of PolicyLossFn from a declaration and the loss's expressions.
 * @param build returns the expressions for the checked options. It is called once for each new loss and each kind of
 * batch that the declaration distinguishes.
 * @param needs returns the optional columns that the loss needs with the checked options.
 */
export function expressionLossClass<const D extends ExpressionLossDeclaration>(
  declaration: D,
  build: (
    symbols: ProgramSymbols,
    options: CheckedOptions<D['options']>,
    has: Has,
  ) => LossExpressions<D['metrics']>,
  needs: (options: CheckedOptions<D['options']>) => readonly ColumnName[] = () => [],
): PolicyLossClass<D> {
  const { name, optional = [], perRow = [] } = declaration;
  return policyLossClass(declaration, (options) => {
    const needed = needs(options);
    const columns = { optional: optional.filter((column) => !needed.includes(column)), perRow };
    const bits = columns.optional.length + perRow.length;
    const nodes = (form: number) => {
      const graph = new Graph(batchForm(columns, form));
      const has: Has = (column) => columns.optional.every((x, i) => x !== column || isSet(form, i));
      return nodesOf(name, graph, build(programSymbolsOf(graph), options, has));
    };
    const programs: LossProgram[] = [];
    const program = (form: number) => {
      const made = programs[form] ?? programOf(nodes(form));
      programs[form] = made;
      return made;
    };
    return {
      aggregation: 'token-sum',
      stopsGradient: stopsGradient(nodes(2 ** bits - 1)),
      program: program(0),
      ...(bits > 0 && { forms: { ...columns, program } }),
    };
  });
}

function batchForm({ optional, perRow }: FormColumns, form: number) {
  return {
    absent: optional.filter((_, i) => !isSet(form, i)),
    perRow: perRow.filter((_, i) => isSet(form, optional.length + i)),
  };
}

function isSet(number: number, bit: number): boolean {
  return ((number >> bit) & 1) === 1;
}

// A loss as nodes of a graph.
type NamedNodes = Omit<LossNodes, 'metrics'> & {
  readonly graph: Graph;
  readonly metrics: readonly { readonly name: string; readonly node: Node; readonly per: MetricPer }[];
};

function nodesOf(
  name: string,
  graph: Graph,
  { loss = 0, rowLoss = 0, metrics, allRows }: LossExpressions<MetricSchema>,
): NamedNodes {
  const named = Object.entries(metrics).flatMap(([metric, expression]) =>
    expression === undefined
      ? []
      : [{ name: metric, ...metricNode(graph, `${name}: ${metric}`, expression) }],
  );
  return {
    graph,
    loss: nodeOf(graph, `${name}: loss`, loss),
    rowLoss: nodeOf(graph, `${name}: rowLoss`, rowLoss, 'row'),
    metrics: named,
    allRows,
  };
}

function stopsGradient({ loss, rowLoss }: NamedNodes): boolean {
  return reachable([loss!, rowLoss!]).some(({ op }) => op === 'stop');
}

function programOf({ graph, ...nodes }: NamedNodes): LossProgram {
  return {
    ...compileLoss(graph, nodes),
    metrics: nodes.metrics.map(({ name, per }) => ({ name, per })),
  };
}

function metricNode(graph: Graph, at: string, expression: MetricExpression): { node: Node; per: MetricPer } {
  const [per, value] = Object.entries(expression)[0] as [MetricPer, Operand];
  return { node: nodeOf(graph, at, value, per), per };
}
