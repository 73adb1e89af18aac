// The rules of differentiation. They use the node's own value where they can, because it is computed anyway.
import type { Graph } from './graph.js';
import { isConstant, type Node } from './node.js';

/** The derivatives of a node's operands by some variable; undefined if always 0. */
type Tangents = readonly (Node | undefined)[];

/** Returns the derivative of a node, or undefined if it is always 0. */
export function tangentOf(graph: Graph, node: Node, tangents: Tangents): Node | undefined {
  const [a, b] = node.operands as [Node, Node];
  const [da, db, dc] = tangents;
  switch (node.op) {
    case 'add':
      return sum(graph, da, db);
    case 'sub':
      return difference(graph, da, db);
    case 'neg':
      return difference(graph, undefined, da);
    case 'mul':
    case 'mul_no_nan':
      if (a === b) return product(graph, graph.apply('mul', graph.constant(2), a), da);
      return sum(graph, product(graph, b, da), product(graph, a, db));
    case 'div':
      return quotient(graph, difference(graph, da, product(graph, node, db)), b);
    case 'pow':
      return powTangent(graph, node, da, db);
    case 'min':
      return choice(graph, graph.apply('le', a, b), da, db);
    case 'max':
      return choice(graph, graph.apply('le', b, a), da, db);
    case 'select':
      return choice(graph, a, db, dc);
    case 'clip':
      return clipTangent(graph, node, tangents);
    case 'sqrt':
      return quotient(graph, da, graph.apply('mul', graph.constant(2), node));
    case 'log':
      return quotient(graph, da, a);
    case 'log1p':
      return quotient(graph, da, graph.apply('add', graph.constant(1), a));
    default:
      return product(graph, slope(graph, node, a), da);
  }
}

// Returns the derivative of a function of one number.
function slope(graph: Graph, node: Node, x: Node): Node {
  const mirrored = () => graph.apply('sigmoid', graph.apply('neg', x));
  switch (node.op) {
    case 'abs':
      return graph.apply('sign', x);
    case 'exp':
      return node;
    case 'expm1':
      return graph.apply('exp', x);
    case 'exp_residual':
      return graph.apply('expm1', x);
    case 'tanh':
      return tanhSlope(graph, x);
    case 'sigmoid':
      return graph.apply('mul', node, mirrored());
    case 'logsigmoid':
      return mirrored();
    default:
      throw new Error(`${node.op} has no derivative`);
  }
}

// tanh'(x) = 4·sigmoid(2x)·sigmoid(−2x). 1 − tanh(x)² cancels where tanh(x) is almost 1.
function tanhSlope(graph: Graph, x: Node): Node {
  const twice = graph.apply('mul', graph.constant(2), x);
  const rising = graph.apply('sigmoid', twice);
  const falling = graph.apply('sigmoid', graph.apply('neg', twice));
  return graph.apply('mul', graph.constant(4), graph.apply('mul', rising, falling));
}

// d(aᵇ) = b·aᵇ⁻¹·da + aᵇ·log(a)·db.
function powTangent(graph: Graph, node: Node, da: Node | undefined, db: Node | undefined): Node | undefined {
  const [a, b] = node.operands as [Node, Node];
  const lower = graph.apply('pow', a, graph.apply('sub', b, graph.constant(1)));
  const byBase = () => graph.binary('mul', b, lower);
  const byExponent = () => graph.binary('mul', node, graph.apply('log', a));
  return sum(graph, da && product(graph, byBase(), da), db && product(graph, byExponent(), db));
}

// The bounds themselves belong to the inside.
function clipTangent(graph: Graph, node: Node, [dx, dLow, dHigh]: Tangents): Node | undefined {
  const [x, low, high] = node.operands as [Node, Node, Node];
  if (low.op === 'constant' && high.op === 'constant' && low.value <= high.value)
    return choice(graph, graph.apply('eq', node, x), dx, undefined);
  const raised = graph.apply('max', x, low);
  const inner = choice(graph, graph.apply('le', low, x), dx, dLow);
  return choice(graph, graph.apply('le', raised, high), inner, dHigh);
}

function sum(graph: Graph, x: Node | undefined, y: Node | undefined): Node | undefined {
  return x && y ? graph.apply('add', x, y) : (x ?? y);
}

function difference(graph: Graph, x: Node | undefined, y: Node | undefined): Node | undefined {
  return y ? graph.apply('sub', x ?? graph.constant(0), y) : x;
}

// Multiplies inside of choices, so that x is not multiplied by the 0 of a branch that was not chosen. It also finds more
// products that the loss itself computes.
function product(graph: Graph, x: Node, y: Node | undefined): Node | undefined {
  if (y?.isCondition) return choice(graph, y, x, undefined);
  if (y?.op !== 'select' || !isConstant(y.operands[2]!, 0)) return y && graph.binary('mul', x, y);
  const [condition, chosen] = y.operands as [Node, Node];
  return choice(graph, condition, product(graph, x, chosen), undefined);
}

function quotient(graph: Graph, x: Node | undefined, y: Node): Node | undefined {
  return x && graph.apply('div', x, y);
}

function choice(graph: Graph, condition: Node, x: Node | undefined, y: Node | undefined): Node | undefined {
  if (x === undefined && y === undefined) return undefined;
  const zero = graph.constant(0);
  return graph.apply('select', condition, x ?? zero, y ?? zero);
}
