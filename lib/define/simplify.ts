// The rules by which a graph simplifies its nodes.
import { compute, isArithmetic } from './arithmetic.js';
import type { Graph, Node, Op } from './graph.js';

/** Returns a simpler node with the value of the operation, or undefined if no rule applies. */
export function simplify(graph: Graph, op: Op, operands: readonly Node[]): Node | undefined {
  if (isArithmetic(op) && operands.every((x) => x.op === 'constant'))
    return graph.constant(
      compute(
        op,
        operands.map((x) => x.value),
      ),
    );
  return undefined;
}
