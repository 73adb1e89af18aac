// Compiles the expressions of a loss and of its metrics to a program.
import type { NativeProgramMetric } from '../../binding.js';
import type { MetricSchema } from '../base/declaration.js';
import { type CompiledLoss, compileLoss, type LossNodes, type MetricPer } from './compile.js';
import { Expression, nodeOf, type Operand, type ProgramSymbols } from './expression.js';
import type { Graph } from './graph.js';
import { type Node, reachable } from './node.js';

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
  readonly allRows?: boolean | undefined;
}

/** The expressions of any loss. */
export type AnyLossExpressions = Omit<LossExpressions<MetricSchema>, 'metrics'> & {
  readonly metrics: Readonly<Record<string, MetricExpression | undefined>>;
};

/** The compiled form of a loss, with the names of its metrics. */
export type LossProgram = CompiledLoss & { readonly metrics: readonly NativeProgramMetric[] };

/** A loss as nodes of a graph. */
export type NamedNodes = Omit<LossNodes, 'metrics'> & {
  readonly graph: Graph;
  readonly metrics: readonly { readonly name: string; readonly node: Node; readonly per: MetricPer }[];
};

/** Returns the nodes of a loss. The name is for error messages. */
export function nodesOf(
  name: string,
  graph: Graph,
  { loss = 0, rowLoss = 0, metrics, allRows }: AnyLossExpressions,
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

/** Returns whether the gradient treats a part of a loss that depends on logprob as constant. */
export function stopsGradient({ loss, rowLoss }: NamedNodes): boolean {
  return reachable([loss, rowLoss].filter((x) => x !== undefined)).some(({ op }) => op === 'stop');
}

/** Compiles a loss. */
export function programOf({ graph, ...nodes }: NamedNodes): LossProgram {
  return {
    ...compileLoss(graph, nodes),
    metrics: nodes.metrics.map(({ name, per }) => ({ name, per })),
  };
}

function metricNode(graph: Graph, at: string, expression: MetricExpression): { node: Node; per: MetricPer } {
  const [per, value] = Object.entries(expression)[0] as [MetricPer, Operand];
  return { node: nodeOf(graph, at, value, per), per };
}

/**
 * Returns the metric whose value is the loss of the batch.
 * @param loss the loss of a token, including its weight in the batch.
 */
export function lossMetric(symbols: ProgramSymbols, loss: Expression): MetricExpression {
  return { token: repeated(symbols, loss) };
}

// A metric of tokens is divided by N + 1e-8.
function repeated({ tokens }: ProgramSymbols, loss: Expression): Expression {
  return loss.mul(tokens.add(1e-8));
}

/**
 * Returns a loss whose tokens are multiplied by the column token_weights, which holds the weights of the batch, of a
 * correction, or their products. A row's own loss is multiplied by their geometric mean over the row. Metrics that repeat
 * the loss change with it.
 */
export function weighted(
  symbols: ProgramSymbols,
  graph: Graph,
  { loss = 0, rowLoss = 0, metrics, allRows }: AnyLossExpressions,
): AnyLossExpressions {
  const weights = new Expression(graph, graph.column('token_weights'));
  const expression = (operand: Operand) => symbols.constant(1).mul(operand);
  const [ofToken, ofRow] = [expression(loss), expression(rowLoss)];
  const ofTokenWeighted = ofToken.mul(weights);
  const ofRowWeighted = rowLoss === 0 ? ofRow : ofRow.mul(geometricMean(symbols, weights));
  // Equal expressions are one node, so the metrics that repeat the loss are known by their nodes.
  const changed = new Map([
    [repeated(symbols, ofToken).node, repeated(symbols, ofTokenWeighted)],
    [ofRow.mul(symbols.rows).node, ofRowWeighted.mul(symbols.rows)],
  ]);
  const changedMetric = (metric: MetricExpression | undefined) => {
    const [per, value] = Object.entries(metric ?? {})[0] ?? [];
    const whole = value === undefined ? undefined : expression(value);
    const isRowLoss = whole !== undefined && whole.div(symbols.rows).node === ofRow.node;
    const other = isRowLoss ? ofRowWeighted.mul(symbols.rows) : whole && changed.get(whole.node);
    return other ? ({ [per!]: other } as unknown as MetricExpression) : metric;
  };
  return {
    loss: ofTokenWeighted,
    rowLoss: ofRowWeighted,
    metrics: Object.fromEntries(Object.entries(metrics).map(([name, x]) => [name, changedMetric(x)])),
    allRows,
  };
}

/** Returns the geometric mean of the weights of a row's tokens, computed as in verl. */
export function geometricMean({ rowSum, n, exp, log }: ProgramSymbols, weight: Expression): Expression {
  return exp(rowSum(log(weight.add(1e-10))).div(n.add(1e-8)));
}
