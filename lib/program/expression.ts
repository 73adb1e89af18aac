// The TypeScript form of expressions. Its values have methods instead of operators, and its functions take and return
// such values.
import { describeValue, LossError } from '../base/errors.js';
import { type CamelCase, toCamelCase } from '../base/options.js';
import type { ColumnName, InputWith, RowColumnName, SymbolOf } from '../batch/columns.js';
import type { Graph } from './graph.js';
import { type BinaryOp, isBelow, type Level, type Node } from './node.js';
import {
  describeArguments,
  describeLevel,
  FUNCTIONS,
  type LanguageFunction,
  OWN_FUNCTIONS,
  OWN_VALUES,
  takesArguments,
  VALUES,
} from './symbols.js';

/** A value in the definition of a loss: an expression, or a finite number. */
export type Operand = Expression | number;

/**
 * An expression in the definition of a loss. Its value differs from token to token, so it has methods instead of
 * JavaScript's operators: `a.mul(b)` for a·b. Each method returns a new expression.
 */
export class Expression {
  /** @internal */
  readonly graph: Graph;
  /** @internal */
  readonly node: Node;

  /** @internal */
  constructor(graph: Graph, node: Node) {
    this.graph = graph;
    this.node = node;
  }

  /** Returns this + other. */
  add(other: Operand): Expression {
    return this.#with('add', other);
  }

  /** Returns this − other. */
  sub(other: Operand): Expression {
    return this.#with('sub', other);
  }

  /** Returns this · other. It is 0 where one of them is 0 and an exponential in the other overflowed. */
  mul(other: Operand): Expression {
    return this.#with('mul', other);
  }

  /** Returns this / other. */
  div(other: Operand): Expression {
    return this.#with('div', other);
  }

  /** Returns −this. */
  neg(): Expression {
    return new Expression(this.graph, this.graph.unary('neg', this.node));
  }

  /** Returns 1 where this < other, and 0 elsewhere. */
  lt(other: Operand): Expression {
    return this.#with('lt', other);
  }

  /** Returns 1 where this ≤ other, and 0 elsewhere. */
  le(other: Operand): Expression {
    return this.#with('le', other);
  }

  /** Returns 1 where this > other, and 0 elsewhere. */
  gt(other: Operand): Expression {
    return this.#with('gt', other);
  }

  /** Returns 1 where this ≥ other, and 0 elsewhere. */
  ge(other: Operand): Expression {
    return this.#with('ge', other);
  }

  /** Returns 1 where this equals other, and 0 elsewhere. */
  eq(other: Operand): Expression {
    return this.#with('eq', other);
  }

  /** Returns 1 where this differs from other, and 0 elsewhere. */
  ne(other: Operand): Expression {
    return this.#with('ne', other);
  }

  /** Returns 1 where both conditions hold, and 0 elsewhere. A condition holds if it is neither 0 nor NaN. */
  and(other: Operand): Expression {
    return this.#with('and', other);
  }

  /** Returns 1 where one of the conditions holds, and 0 elsewhere. */
  or(other: Operand): Expression {
    return this.#with('or', other);
  }

  /** Returns 1 where the condition does not hold, and 0 elsewhere. */
  not(): Expression {
    return new Expression(this.graph, this.graph.unary('not', this.node));
  }

  /**
   * Refuses to turn an expression into a number or a text, which `a * b` and `a > b` would do.
   * @throws LossError `ERR_INVALID_OPTION`
   */
  [Symbol.toPrimitive](): never {
    throw new LossError('ERR_INVALID_OPTION', {
      at: 'expression',
      expected: 'methods (a.add(b), a.mul(b), a.gt(b))',
      received: "one of JavaScript's operators",
    });
  }

  #with(op: BinaryOp, other: Operand): Expression {
    return new Expression(this.graph, this.graph.binary(op, this.node, nodeOf(this.graph, op, other)));
  }
}

/** A function of one value. */
export type UnaryFunction = (x: Operand) => Expression;

/** The columns of a batch that the loss of a user can read, under their short names and in camelCase. */
export type ColumnSymbols = {
  readonly [N in InputWith<'symbol'> as CamelCase<N | SymbolOf<N>>]: Expression;
};

/**
 * The columns of a batch and the functions from which a loss is built. Log-probabilities and entropies are in nats. A
 * column that the loss uses must be in the batch. Gradients are taken with respect to one column, such as `lp`; the others
 * are constants.
 */
export interface LossSymbols extends ColumnSymbols {
  /** The log-ratio: lp − old. */
  readonly d: Expression;
  /** The ratio of the current policy to the old one: exp(d). */
  readonly r: Expression;
  /** The number of unmasked tokens in the row. */
  readonly n: Expression;
  /** The token's position among the unmasked tokens of its row: 0 for the first. */
  readonly t: Expression;
  /** The number of rows of the row's group. */
  readonly groupSize: Expression;

  /** Returns a number as an expression, so that it can come first: `constant(1).sub(r)`. */
  readonly constant: (value: number) => Expression;
  /** Returns `a` where the condition holds (is neither 0 nor NaN), and `b` elsewhere. */
  readonly select: (condition: Operand, a: Operand, b: Operand) => Expression;
  /** Returns eˣ. */
  readonly exp: UnaryFunction;
  /** Returns eˣ − 1, without a loss of digits near 0. */
  readonly expm1: UnaryFunction;
  /** Returns the natural logarithm. */
  readonly log: UnaryFunction;
  /** Returns log(1 + x), without a loss of digits near 0. */
  readonly log1p: UnaryFunction;
  /** Returns the square root. */
  readonly sqrt: UnaryFunction;
  /** Returns the absolute value. Its derivative at 0 is 0. */
  readonly abs: UnaryFunction;
  /** Returns −1, 0 or 1. */
  readonly sign: UnaryFunction;
  /** Returns the hyperbolic tangent. */
  readonly tanh: UnaryFunction;
  /** Returns 1 / (1 + e⁻ˣ). */
  readonly sigmoid: UnaryFunction;
  /** Returns log(sigmoid(x)). */
  readonly logsigmoid: UnaryFunction;
  /** Returns x². */
  readonly square: UnaryFunction;
  /** Returns x to the power of y. */
  readonly pow: (x: Operand, y: Operand) => Expression;
  /** Returns the smallest argument, or NaN if one is NaN. At a tie, the first one has the derivative. */
  readonly min: (x: Operand, y: Operand, ...more: Operand[]) => Expression;
  /** Returns the largest argument, or NaN if one is NaN. At a tie, the first one has the derivative. */
  readonly max: (x: Operand, y: Operand, ...more: Operand[]) => Expression;
  /** Returns min(max(x, low), high). The derivative by x is 1 inside and on the bounds, and 0 outside. */
  readonly clip: (x: Operand, low: Operand, high: Operand) => Expression;
  /** Returns x as a constant for the gradient (stop gradient). */
  readonly sg: UnaryFunction;
  /** Returns the sum over the unmasked tokens of the row. */
  readonly rowSum: UnaryFunction;
  /** Returns the mean over the unmasked tokens of the row, or 0 if it has none. */
  readonly rowMean: UnaryFunction;
  /** Returns the smallest value of the row's unmasked tokens, or 0 if it has none. */
  readonly rowMin: UnaryFunction;
  /** Returns the largest value of the row's unmasked tokens, or 0 if it has none. */
  readonly rowMax: UnaryFunction;
  /** Returns the sum over all unmasked tokens of the batch. The batch then cannot be computed in parts. */
  readonly batchSum: UnaryFunction;
  /** Returns the mean over all unmasked tokens of the batch. The batch then cannot be computed in parts. */
  readonly batchMean: UnaryFunction;
  /** Returns the smallest value of all unmasked tokens. The batch then cannot be computed in parts. */
  readonly batchMin: UnaryFunction;
  /** Returns the largest value of all unmasked tokens. The batch then cannot be computed in parts. */
  readonly batchMax: UnaryFunction;
  /**
   * Returns the sum of a value of the rows over the row's group. Rows without unmasked tokens take part only in losses of
   * rows. The batch then cannot be computed in parts; this holds for the next three functions too.
   */
  readonly groupSum: UnaryFunction;
  /** Returns the mean of a value of the rows over the row's group. */
  readonly groupMean: UnaryFunction;
  /** Returns the smallest value of the rows of the row's group. At a tie, the first row has the derivative. */
  readonly groupMin: UnaryFunction;
  /** Returns the largest value of the rows of the row's group. At a tie, the first row has the derivative. */
  readonly groupMax: UnaryFunction;
  /** Returns the value of the chosen row of the row's pair: the first of its two rows. */
  readonly chosen: UnaryFunction;
  /** Returns the value of the rejected row of the row's pair: the second of its two rows. */
  readonly rejected: UnaryFunction;
  /**
   * Returns the quantile q, from 0 to 1, of the row's unmasked tokens, as a constant for the gradient. It interpolates
   * linearly between the two nearest values. It is 0 for a row without unmasked tokens.
   */
  readonly rowQuantile: (x: Operand, q: Operand) => Expression;
  /**
   * Returns the rank of each token's value among the unmasked tokens of its row, from 0 for the smallest, as a constant for
   * the gradient. Equal values rank in the order of their tokens, and NaN ranks last.
   */
  readonly rowRank: UnaryFunction;
}

// The inputs of a batch that only the losses of this package can read.
type OwnInput = Exclude<RowColumnName | ColumnName, 'chosen' | InputWith<'symbol'>>;

/**
 * What the losses of this package are built from: the symbols of users' losses, and others that are not part of the
 * language. N, B and the reductions over rows count each row as often as its repeats say.
 * @internal
 */
export interface ProgramSymbols extends LossSymbols, Readonly<Record<CamelCase<OwnInput>, Expression>> {
  /** The input `chosen`: whether the first row of the pair is preferred. */
  readonly firstIsChosen: Expression;
  /** N: the number of unmasked tokens of the whole batch. */
  readonly tokens: Expression;
  /** B: the number of rows of the whole batch. Rows without unmasked tokens are among them. */
  readonly rows: Expression;
  /** T: the length of the rows, of which some tokens may be masked. */
  readonly rowLength: Expression;
  /** How often the row counts. */
  readonly repeats: Expression;
  /** 0 in the first row of a pair, 1 in the second one, and 2 in the third row of three. */
  readonly placeInPair: Expression;
  /** The position of the row's first unmasked token, which counts masked tokens. */
  readonly firstPosition: Expression;
  /** Returns the sum of a value of the rows. The batch then cannot be computed in parts. */
  readonly rowsSum: UnaryFunction;
  /** Returns the mean of a value of the rows, whose divisor is B. The batch then cannot be computed in parts. */
  readonly rowsMean: UnaryFunction;
  /** Returns the smallest value of the rows. The batch then cannot be computed in parts. */
  readonly rowsMin: UnaryFunction;
  /** Returns the largest value of the rows. The batch then cannot be computed in parts. */
  readonly rowsMax: UnaryFunction;
  /** Returns the sum of the values of the two rows of the row's pair, each of which counts once. */
  readonly pairSum: UnaryFunction;
  /**
   * Returns a value of the row whose `other` has the rank that `own` has in this row. Equal values rank in the order of
   * their rows. The batch then cannot be computed in parts.
   */
  readonly atSameRank: (x: Operand, own: Operand, other: Operand) => Expression;
  /** Returns 1 for the tokens up to a position in the row, which counts masked tokens, and 0 for those after it. */
  readonly isUpToPosition: UnaryFunction;
  /**
   * Returns for each token x + decay · (the result of the token before). x is 0 for masked tokens. The decay is one value
   * per row, and a constant for the gradient.
   */
  readonly prefixSum: (x: Operand, decay: Operand) => Expression;
  /** Returns for each token x + decay · (the result of the token after). Otherwise, it is like prefixSum(). */
  readonly suffixSum: (x: Operand, decay: Operand) => Expression;
  /** Returns for each token the sum over its turn: the contiguous unmasked tokens around it. */
  readonly turnSum: UnaryFunction;
  /** Returns the largest whole number that is at most x. Its derivative is 0. */
  readonly floor: UnaryFunction;
  /**
   * Returns the value with a rank, from 0 for the smallest, among the unmasked tokens of the row. Ranks are rounded down,
   * and those that do not exist become the nearest one that does. The result of this and of the functions below is
   * constant for the gradient.
   */
  readonly rowRanked: (x: Operand, rank: Operand) => Expression;
  /**
   * The same among all unmasked tokens of the batch. In this function and those below, each row counts as often as its
   * repeats say, the second argument must be the same for all rows, and the batch cannot be computed in parts.
   */
  readonly batchRanked: (x: Operand, rank: Operand) => Expression;
  /** Returns the place, for isUpTo(), of the token with a rank. Equal values rank in the order of their tokens. */
  readonly batchRankAt: (x: Operand, rank: Operand) => Expression;
  /** Returns how many of the smallest values at most have a mean less than the given one. */
  readonly batchUnderMean: (x: Operand, mean: Operand) => Expression;
  /** Returns how many values are less than the smallest level t at which the sum of min(x, t) reaches the given one. */
  readonly batchUnderFill: (x: Operand, sum: Operand) => Expression;
  /** Returns 1 for the tokens up to a place in the batch, and 0 for those after it. */
  readonly isUpTo: UnaryFunction;
  /** Returns a random number from 0 to 1 for each token. It depends on the seed, the row and the position in the row. */
  readonly draw: UnaryFunction;
}

/** Returns the columns and functions for the definition of a loss in a graph. */
export function symbolsOf(graph: Graph): LossSymbols {
  const expression = (node: Node) => new Expression(graph, node);
  return {
    ...(namedSymbols(graph, VALUES, FUNCTIONS) as unknown as Omit<LossSymbols, 'constant' | 'select'>),
    constant: (value) => expression(nodeOf(graph, 'constant', value)),
    select: (condition, a, b) => {
      const node = (operand: Operand) => nodeOf(graph, 'select', operand);
      return expression(graph.select(node(condition), node(a), node(b)));
    },
  };
}

/** Returns the columns, numbers and functions for the definition of one of this package's losses in a graph. */
export function programSymbolsOf(graph: Graph): ProgramSymbols {
  return { ...symbolsOf(graph), ...namedSymbols(graph, OWN_VALUES, OWN_FUNCTIONS) } as ProgramSymbols;
}

// Returns values and functions under their names in camelCase.
function namedSymbols(
  graph: Graph,
  values: typeof VALUES,
  functions: typeof FUNCTIONS,
): Record<string, Expression | ((...args: Operand[]) => Expression)> {
  const expressions = [...values].map(
    ([name, build]) => [toCamelCase(name), new Expression(graph, build(graph))] as const,
  );
  const calls = [...functions].map(([name, fn]) => {
    const at = toCamelCase(name);
    return [at, (...args: Operand[]) => new Expression(graph, callOf(graph, at, fn, args))] as const;
  });
  return Object.fromEntries([...expressions, ...calls]);
}

function callOf(graph: Graph, name: string, fn: LanguageFunction, args: readonly Operand[]): Node {
  if (!takesArguments(fn, args.length))
    throw new LossError('ERR_INVALID_OPTION', {
      at: name,
      expected: describeArguments(fn),
      received: String(args.length),
    });
  return fn.build(
    graph,
    args.map((arg, i) => nodeOf(graph, name, arg, fn.levels?.[i])),
  );
}

/**
 * Returns the node of an operand.
 * @param at the call that the operand was passed to, for the error message.
 * @param most the highest level that the operand may have.
 * @throws LossError `ERR_INVALID_OPTION` if the operand is not a finite number or an expression of this graph, or if its
 * level is too high.
 */
export function nodeOf(graph: Graph, at: string, operand: unknown, most: Level = 'token'): Node {
  if (typeof operand === 'number' && Number.isFinite(operand)) return graph.constant(operand);
  if (operand instanceof Expression && operand.graph === graph) return checkedLevel(at, operand.node, most);
  throw new LossError('ERR_INVALID_OPTION', {
    at,
    expected: 'an expression of this loss or a finite number',
    received: operand instanceof Expression ? 'an expression of another loss' : describeValue(operand),
  });
}

/**
 * Returns a node whose level is at most the given one.
 * @throws LossError `ERR_INVALID_OPTION` if the level is higher.
 */
export function checkedLevel(at: string, node: Node, most: Level): Node {
  if (!isBelow(most, node.level)) return node;
  throw new LossError('ERR_INVALID_OPTION', { at, ...describeLevel(node, most) });
}
