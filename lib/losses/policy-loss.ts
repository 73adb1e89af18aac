// Makes the class of a policy loss from one statement: what the loss is called, what it reads, its options and metrics, and
// either its formula or the kernel of the native module that computes it.
import type { MetricSchema, MetricValues } from '../base/declaration.js';
import { LossError } from '../base/errors.js';
import {
  type AnyOption,
  backendOf,
  type CheckedOptions,
  type PassedOptions,
  readOptions,
  type TrinityArgs,
} from '../base/options.js';
import type { RegisteredClass } from '../base/registry.js';
import type { ColumnName, LossInput } from '../batch/columns.js';
import type { FormColumns } from '../call/forms.js';
import { type Expression, type ProgramSymbols, programSymbolsOf } from '../program/expression.js';
import { frozen } from '../program/freeze.js';
import { Graph } from '../program/graph.js';
import {
  type AnyLossExpressions,
  type LossExpressions,
  type MetricExpression,
  nodesOf,
  programOf,
  stopsGradient,
  weighted,
} from '../program/loss-program.js';
import { LOSS_CORRECTION_OPTIONS, type LossCorrectionOptions, lossCorrection } from './loss-correction.js';
import {
  type PolicyLossDeclaration,
  PolicyLossFn,
  type PolicyLossOptions,
  type PolicyLossVariant,
} from './policy-loss-fn.js';
import { classOf, type FunctionClass, located } from './statement.js';

/** Returns whether the batch has an optional input. */
export type Has = (input: LossInput) => boolean;

/** The class of a loss with the name N, the options O and the metrics M. */
export type LossClass<N extends string, O, M> = FunctionClass<
  PolicyLossFn<MetricValues<M>>,
  PolicyLossDeclaration,
  N,
  O,
  PolicyLossOptions
>;

/** The declaration of a loss with the name N, the options O and the metrics M. */
interface DeclarationOf<N extends string, O, M>
  extends Omit<PolicyLossDeclaration, 'name' | 'options' | 'metrics'> {
  readonly name: N;
  readonly options: O;
  readonly metrics: M;
}

/** A loss that is defined by expressions. */
interface ByFormula<N extends string, O, M extends MetricSchema> extends DeclarationOf<N, O, M> {
  /** Returns the expressions. It is called once for each new loss and each kind of batch that the declaration distinguishes. */
  readonly formula: (symbols: ProgramSymbols, options: CheckedOptions<O>, has: Has) => LossExpressions<M>;
  /** Returns the optional inputs that the loss needs with its options. */
  readonly needs?: (options: CheckedOptions<O>) => readonly LossInput[];
  /** What the loss is differentiated by, if it is not logprob, entropy and log_z. */
  readonly variable?: 'logprob_and_other';
  /** Returns what else depends on the options. */
  readonly further?: (options: CheckedOptions<O>) => FurtherVariant;
}

/** What can depend on the options of a loss that is defined by expressions, besides the expressions. */
export type FurtherVariant = Pick<
  PolicyLossVariant,
  'rowsOfPair' | 'prepared' | 'preparedFrom' | 'preparesWhole'
>;

/** A loss that the native module computes. */
interface ByKernel<N extends string, O, M> extends DeclarationOf<N, O, M> {
  /** Returns what depends on the options. By default, the native loss has the declared name, all options, and lossAggMode. */
  readonly kernel: (options: CheckedOptions<O>) => PolicyLossVariant;
}

/**
 * Makes a class of policy losses: `export class X extends policyLoss({ … }) {}`. The options and metrics come before the
 * formula, whose types they give.
 */
export function policyLoss<
  const N extends string,
  const O extends Readonly<Record<string, AnyOption>>,
  const M extends MetricSchema,
>(statement: ByFormula<N, O, M> | ByKernel<N, O, M>): LossClass<N, O, M> {
  const { formula, kernel, needs, variable, further, ...declaration } = statement as unknown as AnyStatement;
  if (kernel) return policyLossClass(declaration, kernel) as never;
  const how = { formula, needs, variable, further };
  const made = programClass(declaration, how);
  Object.defineProperty(made, SOURCE, { value: { declaration, ...how } });
  return made as never;
}

// biome-ignore-start lint/suspicious/noExplicitAny: each loss has its own options
/** How the expressions of a loss are made. */
interface Formula {
  readonly formula: (symbols: ProgramSymbols, options: any, has: Has) => AnyLossExpressions;
  readonly needs: ((options: any) => readonly LossInput[]) | undefined;
  readonly variable: 'logprob_and_other' | undefined;
  readonly further: ((options: any) => FurtherVariant) | undefined;
}

type AnyStatement = PolicyLossDeclaration & Formula & { kernel?: (options: any) => PolicyLossVariant };
// biome-ignore-end lint/suspicious/noExplicitAny: each loss has its own options

/** The class of policy losses with the declaration D. */
export interface PolicyLossClass<D extends PolicyLossDeclaration> {
  /** @throws LossError `ERR_INVALID_OPTION` for an invalid option, `ERR_UNKNOWN_NAME` for an unknown backend. */
  new (options?: PassedOptions<D['options']> & PolicyLossOptions): PolicyLossFn<MetricValues<D['metrics']>>;
  /** The declaration from which the class was made. */
  readonly declaration: D;
  /** Returns Trinity-RFT's default arguments, with their names in snake_case. */
  defaultArgs(): TrinityArgs;
}

/**
 * Makes a subclass of {@link PolicyLossFn} from a declaration.
 * @param variant returns the properties that depend on the checked options. `isWeighted` tells whether a program must
 * multiply the losses of the tokens by the column token_weights.
 */
export function policyLossClass<D extends PolicyLossDeclaration>(
  declaration: D,
  variant: (options: CheckedOptions<D['options']>, isWeighted: boolean) => PolicyLossVariant,
): PolicyLossClass<D> {
  return classOf(PolicyLossFn, declaration, (owner, options) => {
    const backend = backendOf(options);
    const checked = readOptions<D['options']>(owner, declaration.options, options, FURTHER);
    const isOfRows = 'ofRows' in declaration || 'pairs' in declaration;
    const correction = lossCorrection(owner, backend, options, isOfRows);
    const isCorrected = correction?.hasWeights === true;
    const plain = located(owner, () => variant(checked, false));
    const readsWeights = readsTokenWeights(plain);
    if (isCorrected && ('pairs' in declaration || readsWeights))
      throw takesNoWeights(
        owner,
        (options as LossCorrectionOptions).correction ? 'correction' : 'masks',
        readsWeights ? 'the loss reads token_weights itself' : 'the loss of a pair is not a sum over tokens',
      );
    const own = isCorrected ? located(owner, () => variant(checked, true)) : plain;
    const isMultiplied = !isCorrected && !isOfRows && !readsWeights;
    const multiplied = isMultiplied ? () => variant(checked, true) : undefined;
    return [backend, declaration, checked, { ...own, multiplied }, correction];
  }) as never;
}

const FURTHER = ['backend', ...LOSS_CORRECTION_OPTIONS];

function readsTokenWeights({ program, forms }: PolicyLossVariant): boolean {
  return program?.columns.includes('token_weights') || forms?.optional.includes('token_weights') || false;
}

function takesNoWeights(at: string, option: string, reason: string): LossError {
  return new LossError('ERR_INVALID_OPTION', {
    at,
    option,
    expected: `one that only leaves out tokens, because ${reason}`,
    received: 'one with weights',
  });
}

function programClass(
  declaration: PolicyLossDeclaration,
  made: Formula,
): PolicyLossClass<PolicyLossDeclaration> {
  return policyLossClass(declaration, (...args) => programVariant(declaration, made, ...args));
}

// Compiles the formula of a loss for checked options.
function programVariant(
  declaration: PolicyLossDeclaration,
  made: Formula,
  options: unknown,
  isWeighted: boolean,
  frozenBy?: ColumnName,
): PolicyLossVariant {
  const { name, optional = [], perRow = [] } = declaration;
  const needed = made.needs?.(options) ?? [];
  const columns = { optional: optional.filter((column) => !needed.includes(column)), perRow };
  const bits = columns.optional.length + perRow.length;
  const nodes = (form: number) => {
    const graph = new Graph(batchForm(columns, form), made.variable);
    const has: Has = (column) => columns.optional.every((x, i) => x !== column || isSet(form, i));
    const symbols = programSymbolsOf(graph);
    const built = made.formula(symbols, options, has);
    const named = nodesOf(name, graph, isWeighted ? weighted(symbols, graph, built) : built);
    return frozenBy === undefined ? named : frozen(named, frozenBy);
  };
  const first = nodes(0);
  const firstProgram = programOf(first);
  const programs = [firstProgram];
  const program = (form: number) => {
    programs[form] ??= programOf(nodes(form));
    return programs[form];
  };
  return {
    ...made.further?.(options),
    aggregation: 'token-sum',
    stopsGradient: stopsGradient(bits === 0 ? first : nodes(2 ** bits - 1)),
    program: firstProgram,
    ...(bits > 0 && { forms: { ...columns, program } }),
    frozen: (column) => programVariant(declaration, made, options, isWeighted, column),
  };
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

/** The metrics of a loss. */
export type Metrics = Readonly<Record<string, MetricExpression | undefined>>;

/** A term that is added to the losses of the tokens. */
export interface AddedTerm {
  /** The term of a token, including its weight in the batch. */
  readonly loss: Expression;
  /** The metrics of the sum. */
  readonly metrics: Metrics;
}

/**
 * Makes a class of losses that are the sum of another loss and a further term. The new class has the name and the options
 * of the other one.
 * @param cls a class that {@link policyLoss} made from a formula, or a subclass.
 * @param add returns the term for the checked options and the metrics of the other loss.
 * @throws LossError `ERR_INVALID_OPTION` for a class that was not made from a formula.
 */
export function withAddedTerm(
  cls: RegisteredClass<unknown>,
  // biome-ignore lint/suspicious/noExplicitAny: each loss has its own options
  add: (symbols: ProgramSymbols, options: any, metrics: Metrics) => AddedTerm,
): PolicyLossClass<PolicyLossDeclaration> {
  const source = (cls as { [SOURCE]?: Formula & { declaration: PolicyLossDeclaration } })[SOURCE];
  if (!source)
    throw new LossError('ERR_INVALID_OPTION', {
      at: cls.name,
      expected: 'a loss of this package that is defined by expressions',
      received: 'another class under its name',
    });
  const formula: Formula['formula'] = (symbols, options, has) => {
    const { loss, metrics, ...built } = source.formula(symbols, options, has);
    const term = add(symbols, options, metrics);
    return { ...built, loss: loss === undefined ? term.loss : term.loss.add(loss), metrics: term.metrics };
  };
  return programClass(source.declaration, { ...source, formula });
}

// Where a class keeps what it was made from.
const SOURCE = Symbol('source');
