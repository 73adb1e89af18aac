// Makes the classes of losses that are defined by expressions instead of native code.

import { LossError } from '../../core/errors.js';
import type { FormColumns } from '../../core/forms.js';
import type { ColumnName } from '../../core/native-batch.js';
import type { CheckedOptions } from '../../core/options.js';
import type { RegisteredClass } from '../../core/registry.js';
import { type Expression, type ProgramSymbols, programSymbolsOf } from '../../program/expression.js';
import { Graph } from '../../program/graph.js';
import {
  type AnyLossExpressions,
  type LossExpressions,
  type MetricExpression,
  nodesOf,
  programOf,
  stopsGradient,
  weighted,
} from '../../program/loss-program.js';
import { type PolicyLossClass, type PolicyLossDeclaration, policyLossClass } from './policy-loss-fn.js';

export type { MetricExpression } from '../../program/loss-program.js';

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
  const made = policyLossClass(declaration, (options, isWeighted) => {
    const needed = needs(options);
    const columns = { optional: optional.filter((column) => !needed.includes(column)), perRow };
    const bits = columns.optional.length + perRow.length;
    const nodes = (form: number) => {
      const graph = new Graph(batchForm(columns, form));
      const has: Has = (column) => columns.optional.every((x, i) => x !== column || isSet(form, i));
      const symbols = programSymbolsOf(graph);
      const built = build(symbols, options, has);
      return nodesOf(name, graph, isWeighted ? weighted(symbols, graph, built) : built);
    };
    const first = nodes(0);
    const firstProgram = programOf(first);
    const programs = [firstProgram];
    const program = (form: number) => {
      const made = programs[form] ?? programOf(nodes(form));
      programs[form] = made;
      return made;
    };
    return {
      aggregation: 'token-sum',
      stopsGradient: stopsGradient(bits === 0 ? first : nodes(2 ** bits - 1)),
      program: firstProgram,
      ...(bits > 0 && { forms: { ...columns, program } }),
    };
  });
  Object.defineProperty(made, SOURCE, { value: { declaration, build, needs } });
  return made;
}

const SOURCE = Symbol('source');

/** What a class of losses was made from. */
interface ExpressionSource {
  readonly declaration: ExpressionLossDeclaration;
  // biome-ignore lint/suspicious/noExplicitAny: each loss has its own options
  readonly build: (symbols: ProgramSymbols, options: any, has: Has) => AnyLossExpressions;
  // biome-ignore lint/suspicious/noExplicitAny: each loss has its own options
  readonly needs: (options: any) => readonly ColumnName[];
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
 * @param cls a class that {@link expressionLossClass} made, or a subclass.
 * @param add returns the term for the checked options and the metrics of the other loss.
 * @throws LossError `ERR_INVALID_OPTION` for a class that was not made from expressions.
 */
export function withAddedTerm(
  cls: RegisteredClass<unknown>,
  // biome-ignore lint/suspicious/noExplicitAny: each loss has its own options
  add: (symbols: ProgramSymbols, options: any, metrics: Metrics) => AddedTerm,
): PolicyLossClass<ExpressionLossDeclaration> {
  const source = (cls as { [SOURCE]?: ExpressionSource })[SOURCE];
  if (!source)
    throw new LossError('ERR_INVALID_OPTION', {
      at: cls.name,
      expected: 'a loss of this package that is defined by expressions',
      received: 'another class under its name',
    });
  const { declaration, build, needs } = source;
  return expressionLossClass(
    declaration,
    (symbols, options, has) => {
      const { loss, metrics, ...built } = build(symbols, options, has);
      const term = add(symbols, options, metrics);
      const sum = loss === undefined ? term.loss : term.loss.add(loss);
      return { ...built, loss: sum, metrics: term.metrics as Record<string, MetricExpression> };
    },
    needs,
  );
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
