// The rules by which a graph simplifies its nodes. A rule keeps the value, except for rounding, the sign of zero, and
// overflow that it avoids.
import { compute, isArithmetic, isTrue } from './arithmetic.js';
import { splitProduct } from './factors.js';
import { isBelow, isConstant, type Node, type NodeFactory, type Op } from './node.js';
import { stableSum } from './sums.js';

/** Returns a simpler node with the value of the operation, or undefined if no rule applies. */
export function simplify(graph: NodeFactory, op: Op, operands: readonly Node[]): Node | undefined {
  if (isArithmetic(op) && operands.every((x) => x.op === 'constant')) {
    const numbers = operands.map((x) => x.value);
    return graph.constant(compute(op, numbers));
  }
  const [a, b, c] = operands as [Node, Node, Node];
  return throughChoice(graph, op, operands) ?? RULES[op]?.(graph, a, b, c);
}

// An operation on constants and on a choice between two constants is a choice between two constants.
function throughChoice(graph: NodeFactory, op: Op, operands: readonly Node[]): Node | undefined {
  const [choice, ...others] = operands.filter((x) => x.op !== 'constant');
  if (!isArithmetic(op) || others.length > 0 || choice?.op !== 'select' || choice.isCondition)
    return undefined;
  const [condition, a, b] = choice.operands as [Node, Node, Node];
  if (a.op !== 'constant' || b.op !== 'constant') return undefined;
  const result = (chosen: Node) => graph.apply(op, ...operands.map((x) => (x === choice ? chosen : x)));
  return graph.apply('select', condition, result(a), result(b));
}

type Rule = (graph: NodeFactory, a: Node, b: Node, c: Node) => Node | undefined;
const RULES: Partial<Record<Op, Rule>> = {
  add: simplifyAdd,
  sub: simplifySub,
  mul: simplifyMul,
  mul_no_nan: (graph, a, b) => ordered(graph, 'mul_no_nan', a, b),
  div: simplifyDiv,
  neg: simplifyNeg,
  log: simplifyLog,
  log1p: simplifyLog1p,
  pow: simplifyPow,
  select: simplifySelect,
  abs: (graph, a) => (a.op === 'neg' ? graph.apply('abs', a.operands[0]!) : undefined),
  min: (_, a, b) => (a === b ? a : undefined),
  max: (_, a, b) => (a === b ? a : undefined),
  stop: (_, a) => (a.isActive ? undefined : a),
  row_sum: (graph, a) => simplifyTotal(graph, 'row_sum', a),
  row_min: (_, a) => (isBelow(a.level, 'token') ? a : undefined),
  row_max: (_, a) => (isBelow(a.level, 'token') ? a : undefined),
  rows_sum: (graph, a) => simplifyTotal(graph, 'rows_sum', a),
  rows_min: (_, a) => (isBelow(a.level, 'row') ? a : undefined),
  rows_max: (_, a) => (isBelow(a.level, 'row') ? a : undefined),
};

function simplifyAdd(graph: NodeFactory, a: Node, b: Node): Node | undefined {
  if (isConstant(a, 0)) return b;
  if (isConstant(b, 0)) return a;
  if (b.op === 'neg') return graph.apply('sub', a, b.operands[0]!);
  if (a.op === 'neg') return graph.apply('sub', b, a.operands[0]!);
  return stableSum(graph, a, 1, b) ?? ordered(graph, 'add', a, b);
}

function simplifySub(graph: NodeFactory, a: Node, b: Node): Node | undefined {
  if (isConstant(b, 0)) return a;
  if (isConstant(a, 0)) return graph.apply('neg', b);
  if (b.op === 'neg') return graph.apply('add', a, b.operands[0]!);
  if (isConstant(a, 1) && b.op === 'sigmoid') return mirroredSigmoid(graph, b.operands[0]!);
  if (isConstant(a, 1) && b.isCondition && b.op === 'sub') return b.operands[1]!;
  return stableSum(graph, a, -1, b);
}

function simplifyMul(graph: NodeFactory, a: Node, b: Node): Node | undefined {
  if (isConstant(a, 1)) return b;
  if (isConstant(b, 1)) return a;
  if (isConstant(a, -1)) return graph.apply('neg', b);
  if (isConstant(b, -1)) return graph.apply('neg', a);
  if (a.op === 'neg' && b.op === 'neg') return graph.apply('mul', a.operands[0]!, b.operands[0]!);
  if (a.op === 'constant' && b.op === 'neg') return negatedProduct(graph, a, b.operands[0]!);
  if (b.op === 'constant' && a.op === 'neg') return negatedProduct(graph, b, a.operands[0]!);
  return ordered(graph, 'mul', a, b);
}

function simplifyDiv(graph: NodeFactory, a: Node, b: Node): Node | undefined {
  if (isConstant(b, 1)) return a;
  if (isConstant(b, -1)) return graph.apply('neg', a);
  if (a.op === 'neg' && b.op === 'neg') return graph.apply('div', a.operands[0]!, b.operands[0]!);
  // If exp(u) overflows, the derivative of a / (1 + exp(u)) is Infinity / Infinity; the sigmoid's is 0.
  const power = onePlus(b);
  if (power?.op !== 'exp') return undefined;
  if (a === power) return graph.apply('sigmoid', power.operands[0]!);
  return graph.apply('mul', a, mirroredSigmoid(graph, power.operands[0]!));
}

function simplifyNeg(graph: NodeFactory, a: Node): Node | undefined {
  if (a.op === 'neg') return a.operands[0]!;
  if (a.op === 'sub') return graph.apply('sub', a.operands[1]!, a.operands[0]!);
  if (a.op !== 'mul') return undefined;
  const [x, y] = a.operands as [Node, Node];
  if (x.op === 'constant') return negatedProduct(graph, x, y);
  return y.op === 'constant' ? negatedProduct(graph, y, x) : undefined;
}

function simplifyLog(graph: NodeFactory, a: Node): Node | undefined {
  if (a.op === 'exp') return a.operands[0]!;
  if (a.op === 'sigmoid') return graph.apply('logsigmoid', a.operands[0]!);
  if (a.op === 'sub' && isConstant(a.operands[0]!, 1))
    return graph.apply('log1p', graph.apply('neg', a.operands[1]!));
  const x = onePlus(a);
  return x === undefined ? undefined : graph.apply('log1p', x);
}

function simplifyLog1p(graph: NodeFactory, a: Node): Node | undefined {
  const u = a.operands[0]!;
  if (a.op === 'expm1') return u;
  if (a.op === 'neg' && u.op === 'sigmoid')
    return graph.apply('logsigmoid', graph.apply('neg', u.operands[0]!));
  // log(1 + exp(u)) without the overflow of exp(u).
  if (a.op === 'exp') return graph.apply('neg', graph.apply('logsigmoid', graph.apply('neg', u)));
  return undefined;
}

// Whole exponents up to this one become products.
const MAX_PRODUCT = 8;

function simplifyPow(graph: NodeFactory, base: Node, exponent: Node): Node | undefined {
  const k = exponent.value;
  if (exponent.op !== 'constant' || !Number.isInteger(k) || Math.abs(k) > MAX_PRODUCT) return undefined;
  if (k < 0) return graph.apply('div', graph.constant(1), graph.apply('pow', base, graph.constant(-k)));
  if (k === 0) return graph.constant(1);
  if (k === 1) return base;
  const root = graph.apply('pow', base, graph.constant(k >> 1));
  const square = graph.apply('mul', root, root);
  return k % 2 === 0 ? square : graph.apply('mul', square, base);
}

function simplifySelect(graph: NodeFactory, condition: Node, a: Node, b: Node): Node | undefined {
  if (condition.op === 'constant') return isTrue(condition.value) ? a : b;
  if (a === b) return a;
  if (!condition.isCondition) return undefined;
  if (condition.op === 'sub') return graph.apply('select', condition.operands[1]!, b, a);
  return isConstant(a, 1) && isConstant(b, 0) ? condition : undefined;
}

// A factor that is the same for all terms of a sum is taken out of it: it is then applied once, in float64, and the sum
// does not have to wait for it. A sum of equal terms is a product. The tokens of a row without a property are counted by
// those with it, which are often counted too.
function simplifyTotal(graph: NodeFactory, op: 'row_sum' | 'rows_sum', a: Node): Node | undefined {
  const level = op === 'row_sum' ? 'token' : 'row';
  const one = graph.constant(1);
  if (isBelow(a.level, level)) {
    if (op === 'row_sum') return graph.apply('mul', graph.rowTokens(), a);
    return a === one ? undefined : graph.apply('mul', a, graph.apply('rows_sum', one));
  }
  if (op === 'row_sum' && a.op === 'sub' && a.isCondition)
    return graph.apply('sub', graph.rowTokens(), graph.apply('row_sum', a.operands[1]!));
  const product = splitProduct(graph, a, level);
  if (product === undefined) return undefined;
  return graph.apply('mul', product.factor, graph.apply(op, product.rest));
}

function mirroredSigmoid(graph: NodeFactory, x: Node): Node {
  return graph.apply('sigmoid', graph.apply('neg', x));
}

function negatedProduct(graph: NodeFactory, constant: Node, x: Node): Node {
  return graph.apply('mul', graph.constant(-constant.value), x);
}

// Returns x if the node is 1 + x or x + 1, and undefined otherwise.
function onePlus(node: Node): Node | undefined {
  if (node.op !== 'add') return undefined;
  const [a, b] = node.operands as [Node, Node];
  return isConstant(a, 1) ? b : isConstant(b, 1) ? a : undefined;
}

// Puts the operands into the order of their numbers, so that a + b and b + a are one node. Both have the same bits.
function ordered(graph: NodeFactory, op: 'add' | 'mul' | 'mul_no_nan', a: Node, b: Node): Node | undefined {
  return a.id > b.id ? graph.apply(op, b, a) : undefined;
}
