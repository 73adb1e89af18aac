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
import {
  type ColumnLossFn,
  type ColumnLossOptions,
  type ColumnLossPrograms,
  type ProgramForms,
  RewardLossFn,
  ValueLossFn,
} from './column-loss-fn.js';
import { classOf, type FunctionClass, located } from './statement.js';

/** The declaration of a loss and its formula. */
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
  return columnLoss('values', statement) as never;
}

/** Makes a class of losses of reward models: `export class X extends rewardLoss({ … }) {}`. */
export function rewardLoss<const N extends string, const O extends Options, const M extends MetricSchema>(
  statement: ColumnLossStatement<N, O, M>,
): ClassOf<RewardLossFn<MetricValues<M>>, N, O> {
  return columnLoss('rewards', statement) as never;
}

type Arguments = ConstructorParameters<typeof ColumnLossFn>;
type Build = (symbols: ProgramSymbols, graph: Graph) => AnyLossExpressions;
type ColumnVariable = Exclude<Variable, 'logprob'>;

/**
 * Makes a subclass of ValueLossFn or RewardLossFn from a declaration.
 * @param programs returns the compiled forms for the checked options.
 */
export function columnLossClass(
  variable: ColumnVariable,
  declaration: FunctionDeclaration,
  programs: (options: Readonly<Record<string, unknown>>) => ColumnLossPrograms,
) {
  const Base: abstract new (...args: Arguments) => object =
    variable === 'values' ? ValueLossFn : RewardLossFn;
  return classOf<Arguments>(Base, declaration, (owner, given) => {
    const backend = backendOf(given);
    const options = readOptions(owner, declaration.options, given);
    return [variable, backend, located(owner, () => programs(options))];
  });
}

function columnLoss<N extends string, O, M extends MetricSchema>(
  variable: ColumnVariable,
  { formula, attended, groups, ...declaration }: ColumnLossStatement<N, O, M>,
): unknown {
  const declared = declaration as unknown as FunctionDeclaration;
  const programFrom = (build: Build): LossProgram => {
    const graph = new Graph(undefined, variable);
    return programOf(nodesOf(declaration.name, graph, build(programSymbolsOf(graph), graph)));
  };
  return columnLossClass(variable, declared, (given) => {
    const options = given as CheckedOptions<O>;
    const formsOf = (build: Build): ProgramForms => ({
      program: programFrom(build),
      weighted:
        variable === 'values'
          ? () => programFrom((symbols, graph) => weighted(symbols, graph, build(symbols, graph)))
          : undefined,
    });
    const whole = formsOf((symbols) => formula(symbols, options));
    return {
      ...whole,
      ofParts: whole.program.readsWholeBatch
        ? formsOf((symbols) => withoutMetricsOfBatch(formula(symbols, options)))
        : undefined,
      attended: attended && programFrom((symbols) => ({ metrics: attended(symbols) })),
      groups,
    };
  });
}

function withoutMetricsOfBatch({ metrics, ...others }: AnyLossExpressions): AnyLossExpressions {
  const kept = Object.entries(metrics).filter(([, metric]) => metric && !('batch' in metric));
  return { ...others, metrics: Object.fromEntries(kept) };
}
