// Makes the classes of value and reward losses from statements, as policy-loss.ts does for policy losses.
import type { FunctionDeclaration, MetricSchema, MetricValues } from '../base/declaration.js';
import { type AnyOption, backendOf, type CheckedOptions, readOptions } from '../base/options.js';
import type { InputName } from '../batch/columns.js';
import { type ProgramSymbols, programSymbolsOf } from '../program/expression.js';
import { Graph, type Variable } from '../program/graph.js';
import {
  type AnyLossExpressions,
  type LossExpressions,
  type LossProgram,
  type MetricExpression,
  nodesOf,
  programOf,
  weighted,
} from '../program/loss-program.js';
import { type ColumnLossFn, type ColumnLossOptions, RewardLossFn, ValueLossFn } from './column-loss-fn.js';
import { classOf, type FunctionClass, located } from './statement.js';

/** What is said about a loss, with its formula. */
interface ColumnLossStatement<N extends string, O, M extends MetricSchema>
  extends Omit<FunctionDeclaration, 'name' | 'options' | 'metrics'> {
  readonly name: N;
  readonly options: O;
  readonly metrics: M;
  /** The input that the loss reads in place of group_ids. */
  readonly groups?: InputName;
  /** Returns the expressions. It is called once for each new loss. */
  readonly formula: (symbols: ProgramSymbols, options: CheckedOptions<O>) => LossExpressions<M>;
  /** Returns metrics of the batch in which the tokens of attention_mask count. */
  readonly attended?: (symbols: ProgramSymbols) => Readonly<Record<string, MetricExpression>>;
}

type ClassOf<F, N extends string, O> = FunctionClass<F, FunctionDeclaration, N, O, ColumnLossOptions>;
type Options = Readonly<Record<string, AnyOption>>;

/** Makes a class of value losses: `export class X extends valueLoss({ … }) {}`. */
export function valueLoss<const N extends string, const O extends Options, const M extends MetricSchema>(
  statement: ColumnLossStatement<N, O, M>,
): ClassOf<ValueLossFn<MetricValues<M>>, N, O> {
  return columnLoss('values', ValueLossFn, statement) as never;
}

/** Makes a class of losses of reward models: `export class X extends rewardLoss({ … }) {}`. */
export function rewardLoss<const N extends string, const O extends Options, const M extends MetricSchema>(
  statement: ColumnLossStatement<N, O, M>,
): ClassOf<RewardLossFn<MetricValues<M>>, N, O> {
  return columnLoss('rewards', RewardLossFn, statement) as never;
}

type Arguments = ConstructorParameters<typeof ColumnLossFn>;
type Build = (symbols: ProgramSymbols, graph: Graph) => AnyLossExpressions;

function columnLoss<N extends string, O, M extends MetricSchema>(
  variable: Exclude<Variable, 'logprob'>,
  Base: abstract new (...args: Arguments) => object,
  { formula, attended, groups, ...declaration }: ColumnLossStatement<N, O, M>,
): unknown {
  const declared = declaration as unknown as FunctionDeclaration;
  const programFrom = (build: Build): LossProgram => {
    const graph = new Graph(undefined, variable);
    return programOf(nodesOf(declaration.name, graph, build(programSymbolsOf(graph), graph)));
  };
  return classOf<Arguments>(Base, declared, (owner, given) => {
    const backend = backendOf(given);
    const options = readOptions(owner, declared.options, given) as CheckedOptions<O>;
    const program = located(owner, () => programFrom((symbols) => formula(symbols, options)));
    const over = attended && programFrom((symbols) => ({ metrics: attended(symbols) }));
    const ofTokens = () =>
      programFrom((symbols, graph) => weighted(symbols, graph, formula(symbols, options)));
    const weightedProgram = variable === 'values' ? ofTokens : undefined;
    return [variable, backend, declared, { program, weighted: weightedProgram, attended: over, groups }];
  });
}
