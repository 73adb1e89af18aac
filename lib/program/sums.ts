// Finds sums that cancel, such as exp(u) − 1 − u, and replaces them by operations that are exact near 0.
import type { Node, NodeFactory } from './node.js';

// The terms of a sum that are looked at. It bounds the time for a long sum.
const MAX_TERMS = 16;

/** A sum Σ count·node + constant, whose nodes are not sums. */
interface Sum {
  readonly terms: Map<Node, number>;
  constant: number;
}

/** Terms of a sum that `sign` times the node `by` can replace. */
interface Replacement {
  readonly pattern: Sum;
  readonly by: Node;
  readonly sign: number;
}

/** Returns a + sign·b in a stable form if there is one. `sign` is 1 or −1. */
export function stableSum(graph: NodeFactory, a: Node, sign: number, b: Node): Node | undefined {
  const sum: Sum = { terms: new Map(), constant: 0 };
  expand(sum, a, 1);
  expand(sum, b, sign);
  for (const [term, count] of sum.terms) {
    if (Math.abs(count) !== 1) continue;
    for (const replacement of replacements(graph, term, count))
      if (contains(sum, replacement.pattern)) return replaced(graph, sum, replacement);
  }
  return undefined;
}

// Yields what can replace terms of a sum with the given term, the most useful first.
function* replacements(graph: NodeFactory, term: Node, count: number): Generator<Replacement> {
  const u = term.operands[0]!;
  if (term.op === 'exp') {
    yield { pattern: sumOf(count, term, -1, u, -1), by: graph.apply('exp_residual', u), sign: count };
    yield { pattern: sumOf(count, term, -1), by: graph.apply('expm1', u), sign: count };
  }
  if (term.op === 'expm1')
    yield { pattern: sumOf(count, term, 0, u, -1), by: graph.apply('exp_residual', u), sign: count };
  // x − 1 − log(x) = exp(log(x)) − 1 − log(x)
  if (term.op === 'log')
    yield { pattern: sumOf(-count, term, -1, u, 1, -1), by: graph.apply('exp_residual', term), sign: -count };
}

// Returns sign·(termSign·term + constant + uSign·u).
function sumOf(sign: number, term: Node, constant: number, u?: Node, uSign = 0, termSign = 1): Sum {
  const sum: Sum = { terms: new Map([[term, sign * termSign]]), constant: sign * constant };
  if (u !== undefined) expand(sum, u, sign * uSign);
  return sum;
}

// Adds sign·node to a sum.
function expand(sum: Sum, node: Node, sign: number): void {
  const terms: [Node, number][] = [[node, sign]];
  for (let count = 0; terms.length > 0; count++) {
    const [x, s] = terms.pop()!;
    const [a, b] = x.operands;
    if (x.op === 'constant') sum.constant += s * x.value;
    else if (count < MAX_TERMS && (x.op === 'add' || x.op === 'sub'))
      terms.push([b!, x.op === 'add' ? s : -s], [a!, s]);
    else if (count < MAX_TERMS && x.op === 'neg') terms.push([a!, -s]);
    else addTerm(sum, x, s);
  }
}

function addTerm(sum: Sum, node: Node, count: number): void {
  const total = (sum.terms.get(node) ?? 0) + count;
  if (total === 0) sum.terms.delete(node);
  else sum.terms.set(node, total);
}

function contains(sum: Sum, pattern: Sum): boolean {
  if (pattern.constant !== 0 && pattern.constant !== sum.constant) return false;
  return [...pattern.terms].every(([node, count]) => {
    const available = sum.terms.get(node) ?? 0;
    return available * count > 0 && Math.abs(available) >= Math.abs(count);
  });
}

function replaced(graph: NodeFactory, sum: Sum, { pattern, by, sign }: Replacement): Node {
  for (const [node, count] of pattern.terms) addTerm(sum, node, -count);
  let result = graph.constant(0);
  for (const [node, count] of sum.terms) {
    const times = Math.abs(count);
    const term = times === 1 ? node : graph.apply('mul', graph.constant(times), node);
    result = graph.apply(count > 0 ? 'add' : 'sub', result, term);
  }
  result = graph.apply('add', result, graph.constant(sum.constant - pattern.constant));
  return graph.apply(sign > 0 ? 'add' : 'sub', result, by);
}
