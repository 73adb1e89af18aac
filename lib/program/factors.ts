// Splits products into the factors of different levels.
import { isBelow, type Level, type Node, type NodeFactory } from './node.js';

// The factors of a product that are looked at. It bounds the time for a long product.
const MAX_FACTORS = 32;

/** A product as the factors below a level, and the rest. */
interface SplitProduct {
  readonly factor: Node;
  readonly rest: Node;
}

/**
 * Splits a product, quotient or negation into `factor · rest`, where `factor` has all factors below the level. Returns
 * undefined if there are none. Both keep the product's structure. So their bits do not depend on the order of the operands,
 * which is that in which the nodes were made.
 */
export function splitProduct(graph: NodeFactory, product: Node, level: Level): SplitProduct | undefined {
  const one = graph.constant(1);
  let factors = 0;
  const split = (node: Node): SplitProduct => {
    if (isBelow(node.level, level)) return { factor: node, rest: one };
    const [a, b] = node.operands as [Node, Node];
    if (++factors > MAX_FACTORS || !['mul', 'div', 'neg'].includes(node.op))
      return { factor: one, rest: node };
    const first = split(a);
    if (node.op === 'neg') return { ...first, factor: graph.apply('neg', first.factor) };
    if (node.op === 'mul') {
      const second = split(b);
      return {
        factor: graph.apply('mul', first.factor, second.factor),
        rest: graph.apply('mul', first.rest, second.rest),
      };
    }
    return isBelow(b.level, level)
      ? { ...first, factor: graph.apply('div', first.factor, b) }
      : { ...first, rest: graph.apply('div', first.rest, b) };
  };
  const result = split(product);
  return result.factor === one ? undefined : result;
}
