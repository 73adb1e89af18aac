// Builds the nodes of a loss from the expressions of a user.
import type { MetricDeclaration } from '../base/declaration.js';
import { describeValue, LossError, reasonOf } from '../base/errors.js';
import type { AggregationOption, CheckedOptions, LossAggMode, OptionSchema } from '../base/options.js';
import type { MetricPer } from '../program/compile.js';
import {
  checkedLevel,
  Expression,
  type LossSymbols,
  nodeOf,
  type Operand,
  programSymbolsOf,
  symbolsOf,
} from '../program/expression.js';
import { Graph, type Variable } from '../program/graph.js';
import { geometricMean, type NamedNodes } from '../program/loss-program.js';
import { isBelow, isRowReduction, type Node, reachable } from '../program/node.js';
import { parseExpression } from '../program/parse.js';

/**
 * An expression in the definition of a loss with the options S: a text as for {@link lossFromExpression}, or a function
 * that builds the expression. The function gets the columns and functions of the language, and the loss's options. It is
 * called when the loss is defined, with the default options, and once for each new loss.
 */
export type ExpressionOf<S extends OptionSchema> =
  | string
  | ((symbols: LossSymbols, options: Checked<S>) => Operand);

/** The options of a defined loss: its own, and lossAggMode. */
export type OptionsWithAggregation<S extends OptionSchema> = Omit<S, 'lossAggMode'> & {
  readonly lossAggMode: AggregationOption & { readonly default: LossAggMode };
};

type Checked<S extends OptionSchema> = CheckedOptions<OptionsWithAggregation<S>>;
type Options = Readonly<Record<string, unknown>>;

/** The expressions of a loss and of its metrics. */
export interface DefinedExpressions<S extends OptionSchema> {
  readonly loss: ExpressionOf<S>;
  readonly metrics: readonly (readonly [
    name: string,
    metric: { declaration: MetricDeclaration; value: ExpressionOf<S>; per: MetricPer | undefined },
  ])[];
}

/** The columns by which a loss may be differentiated. If a loss does not say, it is the first on which its gradient depends. */
export const VARIABLES = ['logprob', 'values', 'rewards'] as const satisfies readonly Variable[];

/** Returns the column by which a loss is differentiated. */
export function variableOf<S extends OptionSchema>(
  at: string,
  { loss }: DefinedExpressions<S>,
  options: Options,
): Variable {
  const depends = (variable: Variable) => built(at, new Graph(undefined, variable), loss, options).isActive;
  return VARIABLES.find(depends) ?? 'logprob';
}

/**
 * Returns whether a loss is one of rows. Such a loss is the mean over all rows. It is one if it has no tokens, or if it has
 * one value per row and no aggregation mode.
 */
function isOfRows(variable: Variable, loss: Node, { lossAggMode }: Options): boolean {
  return variable === 'rewards' || (lossAggMode === undefined && loss.level === 'row');
}

/**
 * Builds a loss.
 * @param isWeighted whether the losses are multiplied by the weights of a correction.
 */
export function buildLoss<S extends OptionSchema>(
  at: string,
  variable: Variable,
  { loss, metrics }: DefinedExpressions<S>,
  options: Options,
  isWeighted = false,
): NamedNodes & { readonly ofRows: boolean } {
  const graph = new Graph(undefined, variable);
  const value = built(at, graph, loss, options);
  const ofRows = isOfRows(variable, value, options);
  const nodes = metrics.map(([name, { value: metric, per: given }]) => {
    const place = `${at}: metric ${name}`;
    const node = built(place, graph, metric, options, given);
    const per = given ?? (ofRows && isBelow(node.level, 'token') ? 'row' : 'token');
    if (variable === 'rewards') checkHasNoTokens(place, graph, node, per);
    return { name, per, node };
  });
  if (!ofRows)
    return {
      graph,
      loss: isWeighted ? graph.binary('mul', value, graph.column('token_weights')) : value,
      metrics: nodes,
      ofRows,
    };
  if (variable === 'rewards') checkHasNoTokens(at, graph, value, 'row');
  const symbols = programSymbolsOf(graph);
  const ofRow = new Expression(graph, value).div(symbols.rows);
  const weight = isWeighted
    ? geometricMean(symbols, new Expression(graph, graph.column('token_weights')))
    : 1;
  return { graph, rowLoss: ofRow.mul(weight).node, metrics: nodes, allRows: true, ofRows };
}

// A batch of rewards need not have tokens.
function checkHasNoTokens(at: string, graph: Graph, node: Node, per: MetricPer): void {
  const isOfTokens = (x: Node) => x.level === 'token' || isRowReduction(x.op) || x === graph.rowTokens();
  if (per === 'token' || reachable([node]).some(isOfTokens))
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      expected: 'a value of rows, because a loss that is differentiated by reward has no tokens',
      received: 'a value of tokens, or one that is computed from tokens',
    });
}

function built<S extends OptionSchema>(
  at: string,
  graph: Graph,
  expression: ExpressionOf<S>,
  options: Options,
  per: MetricPer = 'token',
): Node {
  if (typeof expression === 'string')
    return checkedLevel(at, parseExpression(at, expression, graph, numbersOf(options)), per);
  if (typeof expression !== 'function')
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      expected: 'the text of an expression, or a function that returns one',
      received: describeValue(expression),
    });
  return nodeOf(
    graph,
    at,
    called(at, () => expression(symbolsOf(graph), options as Checked<S>)),
    per,
  );
}

// Calls a function of the user. An error that it throws becomes the cause of a LossError.
function called<T>(at: string, fn: () => T): T {
  try {
    return fn();
  } catch (error) {
    if (error instanceof LossError) throw error;
    throw new LossError(
      'ERR_INVALID_OPTION',
      { at, expected: 'a function that returns an expression', received: `the error '${reasonOf(error)}'` },
      { cause: error },
    );
  }
}

// Returns the options that a text can use. true is 1 and false is 0.
function numbersOf(options: Options): ReadonlyMap<string, number> {
  const numbers = Object.entries(options).filter(([, value]) => ['number', 'boolean'].includes(typeof value));
  return new Map(numbers.map(([name, value]) => [name, Number(value)]));
}
