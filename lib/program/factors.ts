// Splits products into the factors of different levels.
import { type Graph, isBelow, type Level, type Node } from './graph.js';

// The parts of a product that are looked at. It bounds the time for a long product.
const MAX_PARTS = 32;

/**
 * Splits a product, quotient or negation into `factor · rest`, where `factor` has all factors below the level. Returns
 * undefined if there are none.
 */
export function splitProduct(
  graph: Graph,
  product: Node,
  level: Level,
): { factor: Node; rest: Node } | undefined {
  const one = graph.constant(1);
  let factor = one;
  let rest = one;
  const parts: { node: Node; isDivisor: boolean }[] = [{ node: product, isDivisor: false }];
  for (let count = 0; parts.length > 0; count++) {
    const { node, isDivisor } = parts.pop()!;
    const [a, b] = node.operands;
    const op = isDivisor ? 'div' : 'mul';
    const isSplit = !isDivisor && count < MAX_PARTS && !isBelow(node.level, level);
    if (isSplit && node.op === 'neg') {
      factor = graph.apply('neg', factor);
      parts.push({ node: a!, isDivisor: false });
    } else if (isSplit && (node.op === 'mul' || node.op === 'div'))
      parts.push({ node: b!, isDivisor: node.op === 'div' }, { node: a!, isDivisor: false });
    else if (isBelow(node.level, level)) factor = graph.apply(op, factor, node);
    else rest = graph.apply(op, rest, node);
  }
  return factor === one ? undefined : { factor, rest };
}
