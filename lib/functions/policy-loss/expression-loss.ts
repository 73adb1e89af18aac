// Makes the classes of losses that are defined by expressions instead of native code.
import type { CheckedOptions } from '../../core/options.js';
import { type ProgramSymbols, programSymbolsOf } from '../../program/expression.js';
import { Graph } from '../../program/graph.js';
import { type LossExpressions, lossProgram, weighted } from '../../program/loss-program.js';
import { type PolicyLossClass, type PolicyLossDeclaration, policyLossClass } from './policy-loss-fn.js';

export type { MetricExpression } from '../../program/loss-program.js';

/**
 * Makes a subclass of PolicyLossFn from a declaration and the loss's expressions.
 * @param build returns the expressions for the checked options. It is called once for each new loss.
 */
export function expressionLossClass<const D extends PolicyLossDeclaration>(
  declaration: D,
  build: (symbols: ProgramSymbols, options: CheckedOptions<D['options']>) => LossExpressions<D['metrics']>,
): PolicyLossClass<D> {
  return policyLossClass(declaration, (options, isWeighted) => {
    const graph = new Graph();
    const symbols = programSymbolsOf(graph);
    const built = build(symbols, options);
    const { stopsGradient, ...program } = lossProgram(
      declaration.name,
      graph,
      isWeighted ? weighted(symbols, graph, built) : built,
    );
    return { aggregation: 'token-sum', stopsGradient, program };
  });
}
