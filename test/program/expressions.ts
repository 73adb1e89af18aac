// Expressions of the loss language as trees: how to draw them, build their graph, and evaluate them in float64.
import fc from 'fast-check';
import { COLUMNS, type ColumnName, ROW_COLUMNS, type RowColumnName } from '../../lib/batch/columns.js';
import type { BatchInput, Graph, Over } from '../../lib/program/graph.js';
import {
  BINARY_OPS,
  type BinaryOp,
  type Node,
  SCANS,
  UNARY_OPS,
  type UnaryOp,
} from '../../lib/program/node.js';
import { type Row, scanned, sizesOf } from './interpreter.js';

type Reduction = 'sum' | 'mean' | 'min' | 'max';
type Scan = (typeof SCANS)[number];
type OfRows = Reduction | 'pair' | 'chosen' | 'rejected';
export type Expression =
  | { readonly kind: 'constant'; readonly value: number }
  | { readonly kind: 'column'; readonly name: ColumnName }
  | { readonly kind: 'tokens' | 'repeats' | 'place' | 'position' | 'group size' }
  | { readonly kind: 'size'; readonly name: BatchInput }
  | { readonly kind: 'number'; readonly name: RowColumnName }
  | { readonly kind: 'unary'; readonly op: UnaryOp; readonly of: readonly [Expression] }
  | { readonly kind: 'binary'; readonly op: BinaryOp; readonly of: readonly [Expression, Expression] }
  | { readonly kind: 'select' | 'clip'; readonly of: readonly [Expression, Expression, Expression] }
  | { readonly kind: 'stop'; readonly of: readonly [Expression] }
  | { readonly kind: 'scan'; readonly op: Scan; readonly decay: number; readonly of: readonly [Expression] }
  | { readonly kind: 'group'; readonly op: OfRows; readonly of: readonly [Expression] }
  | { readonly kind: 'quantile'; readonly share: number; readonly of: readonly [Expression] }
  | {
      readonly kind: 'reduce';
      readonly over: Over;
      readonly op: Reduction;
      readonly of: readonly [Expression];
    };

export const constant = (value: number): Expression => ({ kind: 'constant', value });
export const column = (name: ColumnName): Expression => ({ kind: 'column', name });
export const unary = (op: UnaryOp, a: Expression): Expression => ({ kind: 'unary', op, of: [a] });
export const binary = (op: BinaryOp, a: Expression, b: Expression): Expression => ({
  kind: 'binary',
  op,
  of: [a, b],
});
export const stop = (a: Expression): Expression => ({ kind: 'stop', of: [a] });
export const clip = (...of: [Expression, Expression, Expression]): Expression => ({ kind: 'clip', of });
export const select = (...of: [Expression, Expression, Expression]): Expression => ({ kind: 'select', of });
export const reduce = (over: Over, op: Reduction, a: Expression): Expression => ({
  kind: 'reduce',
  over,
  op,
  of: [a],
});

export function build(graph: Graph, x: Expression): Node {
  const [a, b, c] = 'of' in x ? x.of.map((operand) => build(graph, operand)) : [];
  switch (x.kind) {
    case 'constant':
      return graph.constant(x.value);
    case 'column':
      return graph.column(x.name);
    case 'tokens':
      return graph.rowTokens();
    case 'repeats':
      return graph.rowRepeats();
    case 'size':
      return graph.batchInput(x.name);
    case 'number':
      return graph.rowColumn(x.name);
    case 'unary':
      return graph.unary(x.op, a!);
    case 'binary':
      return graph.binary(x.op, a!, b!);
    case 'select':
      return graph.select(a!, b!, c!);
    case 'clip':
      return graph.clip(a!, b!, c!);
    case 'stop':
      return graph.stopGradient(a!);
    case 'reduce':
      return graph.reduce(x.over, x.op, a!);
    case 'scan':
      if (x.op === 'token_rank') return graph.tokenRanks(a!);
      return graph.apply(x.op, a!, ...(x.op === 'turn_sum' ? [] : [graph.constant(x.decay)]));
    case 'group':
      if (x.op === 'chosen' || x.op === 'rejected') return graph.ofPair(x.op, a!);
      return x.op === 'pair' ? graph.apply('pair_sum', a!) : graph.reduceGroups(x.op, a!);
    case 'quantile':
      return graph.rowQuantile(a!, graph.constant(x.share));
    case 'place':
      return graph.placeInPair();
    case 'position':
      return graph.tokenPositions();
    case 'group size':
      return graph.groupSize();
  }
}

const isTrue = (x: number) => x !== 0 && !Number.isNaN(x);
const UNARY: Record<UnaryOp, (x: number) => number> = {
  neg: (x) => -x,
  abs: Math.abs,
  sign: Math.sign,
  sqrt: Math.sqrt,
  exp: Math.exp,
  expm1: Math.expm1,
  log: Math.log,
  log1p: Math.log1p,
  tanh: Math.tanh,
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  logsigmoid: (x) => -Math.log1p(Math.exp(-x)),
  square: (x) => x * x,
  not: (x) => Number(!isTrue(x)),
};
const BINARY: Record<BinaryOp, (x: number, y: number) => number> = {
  add: (x, y) => x + y,
  sub: (x, y) => x - y,
  mul: (x, y) => x * y,
  div: (x, y) => x / y,
  pow: (x, y) => x ** y,
  min: Math.min,
  max: Math.max,
  lt: (x, y) => Number(x < y),
  le: (x, y) => Number(x <= y),
  gt: (x, y) => Number(x > y),
  ge: (x, y) => Number(x >= y),
  eq: (x, y) => Number(x === y),
  ne: (x, y) => Number(x !== y),
  and: (x, y) => Number(isTrue(x) && isTrue(y)),
  or: (x, y) => Number(isTrue(x) || isTrue(y)),
};

/** The values of an expression: one per unmasked token of each row that counts. */
type Values = number[][];

/**
 * An evaluation of an expression. It records the choices that the expression made. Values under sg() can be those of an
 * earlier evaluation.
 */
export class Evaluation {
  readonly stopped: Values[] = [];
  readonly choices: number[] = [];
  largest = 0;
  /** Whether rounding can change a choice. */
  isDelicate = false;
  readonly #rows: readonly Row[];
  // The numbers of these rows in the batch.
  readonly #numbers: readonly number[];
  readonly #sizes: Readonly<Record<BatchInput, number>>;
  readonly #frozen: readonly Values[] | undefined;

  constructor(rows: readonly Row[], frozen?: readonly Values[]) {
    const [tokens, count, row_length] = sizesOf(rows);
    this.#sizes = { tokens, rows: count, row_length };
    const counts = (row: Row) => row.repeats > 0 && row.mask.some(Boolean);
    this.#rows = rows.filter(counts);
    this.#numbers = rows.flatMap((row, b) => (counts(row) ? [b] : []));
    this.#frozen = frozen;
  }

  /** Returns the loss of each token. */
  values(x: Expression): Values {
    const result = this.#compute(x, 'of' in x ? x.of.map((operand) => this.values(operand)) : []);
    for (const row of result) for (const value of row) this.#record(value);
    return result;
  }

  /** Returns Σ weight · loss over the tokens, plus Σ repeats · rowLoss over the rows. */
  total(loss: Expression, rowLoss: Expression): number {
    const [ofTokens, ofRows] = [this.values(loss), this.values(rowLoss)];
    return sum(
      this.#rows.map(({ weight, repeats }, b) => weight * sum(ofTokens[b]!) + repeats * ofRows[b]![0]!),
    );
  }

  #compare(a: number, b: number): void {
    this.choices.push(Math.sign(a - b));
    this.isDelicate ||= a !== b && Math.abs(a - b) < 1e-9 * (1 + Math.abs(a));
  }

  #record(value: number): void {
    this.largest = Number.isFinite(value) ? Math.max(this.largest, Math.abs(value)) : Infinity;
    if (this.largest === Infinity) throw new RangeError('not finite');
  }

  #compute(x: Expression, operands: readonly Values[]): Values {
    const perToken = (compute: (...numbers: number[]) => number) =>
      this.#rows.map(({ mask }, b) =>
        mask.filter(Boolean).map((_, i) => compute(...operands.map((values) => values[b]![i]!))),
      );
    switch (x.kind) {
      case 'constant':
        return perToken(() => x.value);
      case 'tokens':
        return this.#rows.map(({ mask }) => mask.filter(Boolean).map((_, __, all) => all.length));
      case 'repeats':
        return this.#perRow(({ repeats }) => repeats);
      case 'position':
        return this.#rows.map(({ mask }) => mask.filter(Boolean).map((_, i) => i));
      case 'group size':
        return this.#reduceGroups(
          'sum',
          perToken(() => 1),
        );
      case 'quantile':
        return this.#constant(operands[0]!.map((row) => fill(row, quantile(row.map(Math.fround), x.share))));
      case 'place':
        return this.#rows.map(({ mask }, b) => mask.filter(Boolean).map(() => this.#numbers[b]! % 2));
      case 'size':
        return perToken(() => this.#sizes[x.name]);
      case 'number':
        return this.#perRow(({ numbers }) => numbers[ROW_COLUMNS.indexOf(x.name)]!);
      case 'column':
        return this.#rows.map(({ columns, mask }) =>
          columns[COLUMNS.indexOf(x.name)]!.filter((_, t) => mask[t]),
        );
      case 'unary':
        return perToken((a) => {
          if (x.op === 'abs' || x.op === 'sign' || x.op === 'not') this.#compare(a, 0);
          // The slope of sqrt(u) at u = 0 is infinite, and NaN where u is constant.
          if (x.op === 'sqrt') this.isDelicate ||= a === 0;
          return UNARY[x.op](a);
        });
      case 'binary':
        return perToken((a, b) => {
          if (x.op === 'and' || x.op === 'or') {
            this.#compare(a, 0);
            this.#compare(b, 0);
          } else if (!['add', 'sub', 'mul', 'div', 'pow'].includes(x.op)) this.#compare(a, b);
          return BINARY[x.op](a, b);
        });
      case 'select':
        return perToken((condition, a, b) => {
          this.#compare(condition, 0);
          return isTrue(condition) ? a : b;
        });
      case 'clip':
        return perToken((a, low, high) => {
          this.#compare(a, low);
          this.#compare(a, high);
          this.#compare(low, high);
          return Math.min(Math.max(a, low), high);
        });
      case 'stop':
        return this.#constant(operands[0]!);
      case 'reduce':
        return this.#reduce(x.over, x.op, operands[0]!);
      case 'scan':
        return this.#rows.map(({ mask }, b) => {
          const left = [...operands[0]![b]!];
          const values = mask.map((isUnmasked) => (isUnmasked ? left.shift()! : 0));
          const results = scanned(x.op, values, mask, x.decay).filter((_, t) => mask[t]);
          if (x.op === 'token_rank') this.#compareAll(operands[0]![b]!);
          return results;
        });
      case 'group':
        return this.#reduceGroups(x.op, operands[0]!);
    }
  }

  #reduceGroups(op: OfRows, values: Values): Values {
    const isOfPairs = op === 'pair' || op === 'chosen' || op === 'rejected';
    const groupOf = (b: number) => (isOfPairs ? this.#numbers[b]! >> 1 : this.#rows[b]!.group);
    const counts = (b: number) =>
      !isOfPairs || op === 'pair' || this.#numbers[b]! % 2 === Number(op === 'rejected');
    return values.map((row, b) => {
      const members = values.flatMap((_, other) =>
        groupOf(other) === groupOf(b) && counts(other) ? [other] : [],
      );
      const numbers = members.map((other) => values[other]![0]!);
      if (isOfPairs) return fill(row, sum(numbers));
      const repeats = members.map((other) => this.#rows[other]!.repeats);
      return fill(row, this.#reduced(op, numbers, repeats));
    });
  }

  // Returns values that are constant for the derivative.
  #constant(values: Values): Values {
    this.stopped.push(values);
    return this.#frozen?.[this.stopped.length - 1] ?? values;
  }

  // Records the order of values on which the result depends.
  #compareAll(values: readonly number[]): void {
    for (const [i, a] of values.entries()) for (const b of values.slice(i + 1)) this.#compare(a, b);
  }

  #perRow(compute: (row: Row) => number): Values {
    return this.#rows.map((row) => row.mask.filter(Boolean).map(() => compute(row)));
  }

  #reduce(over: Over, op: Reduction, values: Values): Values {
    if (over === 'rows') {
      const all = values.map(([value]) => value!);
      const repeats = this.#rows.map((row) => row.repeats);
      const result =
        op === 'mean'
          ? sum(all.map((x, b) => x * repeats[b]!)) / Math.max(1, this.#sizes.rows)
          : this.#reduced(op, all, repeats);
      return values.map((row) => fill(row, result));
    }
    if (over === 'row')
      return values.map((row) =>
        fill(
          row,
          this.#reduced(
            op,
            row,
            row.map(() => 1),
          ),
        ),
      );
    const repeats = values.flatMap((row, b) => row.map(() => this.#rows[b]!.repeats));
    const result = this.#reduced(op, values.flat(), repeats);
    return values.map((row) => fill(row, result));
  }

  #reduced(op: Reduction, values: readonly number[], repeats: readonly number[]): number {
    if (op === 'min' || op === 'max') {
      const best = Math[op](...values);
      this.choices.push(values.indexOf(best));
      for (const value of values) this.#compare(value, best);
      return values.length > 0 ? best : 0;
    }
    const total = sum(values.map((x, i) => x * repeats[i]!));
    return op === 'sum' ? total : total / Math.max(1, sum(repeats));
  }
}

const sum = (values: readonly number[]) => values.reduce((total, x) => total + x, 0);
const fill = (row: readonly number[], value: number) => row.map(() => value);

function quantile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  const rank = share * (sorted.length - 1);
  const [low, high] = [sorted[Math.floor(rank)]!, sorted[Math.ceil(rank)]!];
  return low + (high - low) * (rank - Math.floor(rank));
}

const ratio = unary('exp', binary('sub', column('logprob'), column('old_logprob')));
const leaf = fc.oneof(
  { arbitrary: fc.constant(column('logprob')), weight: 4 },
  { arbitrary: fc.constant(ratio), weight: 2 },
  // The loss has gradients with respect to these two also.
  { arbitrary: fc.constant(column('entropy')), weight: 1 },
  { arbitrary: fc.constant<Expression>({ kind: 'number', name: 'log_z' }), weight: 1 },
  { arbitrary: fc.constantFrom(...COLUMNS.slice(1)).map(column), weight: 3 },
  { arbitrary: fc.constantFrom(0, 1, -1, 2, 0.5, 0.2, 1.28).map(constant), weight: 2 },
  { arbitrary: fc.constant<Expression>({ kind: 'tokens' }), weight: 1 },
  { arbitrary: fc.constant<Expression>({ kind: 'repeats' }), weight: 1 },
  { arbitrary: fc.constant<Expression>({ kind: 'place' }), weight: 1 },
  { arbitrary: fc.constant<Expression>({ kind: 'position' }), weight: 1 },
  { arbitrary: fc.constant<Expression>({ kind: 'group size' }), weight: 1 },
  {
    arbitrary: fc
      .constantFrom<BatchInput>('tokens', 'rows', 'row_length')
      .map((name): Expression => ({ kind: 'size', name })),
    weight: 1,
  },
  {
    arbitrary: fc.constantFrom(...ROW_COLUMNS).map((name): Expression => ({ kind: 'number', name })),
    weight: 1,
  },
);

// Keeps the arguments of functions in their domains.
const positive = (x: Expression) => binary('add', unary('square', x), constant(0.5));
function unaryOf(op: UnaryOp, x: Expression): Expression {
  if (op === 'exp' || op === 'expm1') return unary(op, unary('tanh', x));
  if (op === 'sqrt' || op === 'log' || op === 'log1p') return unary(op, positive(x));
  return unary(op, x);
}
function binaryOf(op: BinaryOp, a: Expression, b: Expression): Expression {
  if (op === 'div') return binary(op, a, positive(b));
  if (op === 'pow') return binary(op, positive(a), unary('tanh', b));
  return binary(op, a, b);
}

// exp(u) − 1 − u in several orders.
function residual(u: Expression, order: number): Expression {
  const terms: [number, Expression][] = [
    [1, unary('exp', u)],
    [-1, constant(1)],
    [-1, u],
  ];
  const [first, ...rest] = [...terms.slice(order % 3), ...terms.slice(0, order % 3)];
  const flipped = order >= 3 ? -1 : 1;
  return rest.reduce(
    (x, [sign, term]) => binary(sign * flipped > 0 ? 'add' : 'sub', x, term),
    first![0] * flipped > 0 ? first![1] : unary('neg', first![1]),
  );
}

const reductions = fc.constantFrom<Reduction>('sum', 'mean', 'min', 'max');

// Combines two reductions over the row.
function ofRow(tokens: fc.Arbitrary<Expression>): fc.Arbitrary<Expression> {
  const reduced = fc.tuple(reductions, tokens).map(([op, a]) => reduce('row', op, a));
  return fc.tuple(fc.constantFrom(...BINARY_OPS), reduced, reduced).map(([op, a, b]) => binaryOf(op, a, b));
}

/** Draws expressions that use the whole language, mostly with finite values. */
export const expressions = fc.letrec<{ node: Expression }>((tie) => {
  const node = tie('node');
  return {
    node: fc.oneof(
      { maxDepth: 5, depthIdentifier: 'expression' },
      leaf,
      fc.tuple(fc.constantFrom(...UNARY_OPS), node).map(([op, a]) => unaryOf(op, a)),
      fc.tuple(fc.constantFrom(...UNARY_OPS), node).map(([op, a]) => unary(op, a)),
      {
        arbitrary: fc
          .tuple(fc.constantFrom(...BINARY_OPS), node, node)
          .map(([op, a, b]) => binaryOf(op, a, b)),
        weight: 3,
      },
      fc
        .tuple(node, fc.integer({ min: -3, max: 4 }))
        .map(([a, k]) => binary('pow', positive(a), constant(k))),
      fc.tuple(node, node, node).map((of) => select(...of)),
      fc.tuple(node, node, node).map((of) => clip(...of)),
      fc.tuple(node, fc.nat(5)).map(([a, order]) => residual(unary('tanh', a), order)),
      node.map(stop),
      {
        arbitrary: fc
          .tuple(fc.constantFrom<Over>('row', 'batch'), reductions, node)
          .map(([over, op, a]) => reduce(over, op, a)),
        weight: 3,
      },
      fc.tuple(reductions, ofRow(node)).map(([op, a]) => reduce('rows', op, a)),
      {
        arbitrary: fc
          .tuple(fc.constantFrom(...SCANS), fc.constantFrom(0, 0.5, 1), node)
          .map(([op, decay, a]): Expression => ({ kind: 'scan', op, decay, of: [a] })),
        weight: 2,
      },
      fc
        .tuple(
          fc.constantFrom<OfRows>('sum', 'mean', 'min', 'max', 'pair', 'chosen', 'rejected'),
          ofRow(node),
        )
        .map(([op, a]): Expression => ({ kind: 'group', op, of: [a] })),
      fc
        .tuple(fc.constantFrom(0, 0.3, 0.5, 1), node)
        .map(([share, a]): Expression => ({ kind: 'quantile', share, of: [a] })),
    ),
  };
}).node;

/** Draws expressions with one value per row. */
export const expressionsOfRows = ofRow(expressions);
/** Draws expressions with one value for the batch. */
export const expressionsOfBatches = fc
  .tuple(reductions, reductions, expressionsOfRows, expressions)
  .map(([ofRows, ofTokens, a, b]) => binary('add', reduce('rows', ofRows, a), reduce('batch', ofTokens, b)));

const value = fc.integer({ min: -128, max: 128 }).map((x) => x / 64);
const row = (length: number): fc.Arbitrary<Row> =>
  fc
    .record({
      mask: fc.array(fc.boolean(), { minLength: length, maxLength: length }),
      columns: fc.array(fc.array(value, { minLength: length, maxLength: length }), {
        minLength: COLUMNS.length,
        maxLength: COLUMNS.length,
      }),
      numbers: fc.array(value, { minLength: ROW_COLUMNS.length, maxLength: ROW_COLUMNS.length }),
      weight: fc.double({ min: 0.1, max: 1, noNaN: true }),
      repeats: fc.nat(2),
      group: fc.nat(1),
    })
    .map(({ mask, columns, ...rest }) => ({
      ...rest,
      mask,
      // Masked values must not matter.
      columns: columns.map((x) => x.map((y, t) => (mask[t] ? y : Number.NaN))),
    }));

/** Draws batches of a few rows, with masked tokens, rows without tokens and rows that count 0 or 2 times. */
export const batches: fc.Arbitrary<Row[]> = fc.array(fc.integer({ min: 1, max: 4 }).chain(row), {
  minLength: 1,
  maxLength: 4,
});
