// Makes the classes of losses that are defined by expressions instead of native code.

import type { FormColumns } from '../../core/forms.js';
import type { ColumnName } from '../../core/native-batch.js';
import type { CheckedOptions } from '../../core/options.js';
import { type ProgramSymbols, programSymbolsOf } from '../../program/expression.js';
import { Graph } from '../../program/graph.js';
import {
  type LossExpressions,
  type LossProgram,
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
  return policyLossClass(declaration, (options, isWeighted) => {
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
