/**
 * User-defined losses. An expression is a tree, from which this file makes the text that the library reads and the
 * formula that computes the loss in float64. So it needs no parser, and the library's parser is tested too.
 */
import type { Variable } from './autograd.js';
import { type Args, type Column, type Formula, option, type Tokens } from './batch.js';

/** A number, the name of a column or an option, or a list of an operation's name and its operands. */
export type Expression = number | string | readonly Expression[];

/** The columns, by each of their names in expressions. */
export const COLUMNS: Readonly<Record<string, Column>> = {
  logprob: 'logprob',
  lp: 'logprob',
  old_logprob: 'oldLogprob',
  old: 'oldLogprob',
  ref_logprob: 'refLogprob',
  ref: 'refLogprob',
  rollout_logprob: 'rolloutLogprob',
  rollout: 'rolloutLogprob',
  prox_logprob: 'proxLogprob',
  prox: 'proxLogprob',
  teacher_logprob: 'teacherLogprob',
  teacher: 'teacherLogprob',
  advantages: 'advantages',
  A: 'advantages',
  entropy: 'entropy',
  H: 'entropy',
  values: 'values',
  value: 'values',
  old_values: 'oldValues',
  old_value: 'oldValues',
  returns: 'returns',
};

/** The numbers of rows, by each of their names in expressions. */
export const ROW_NUMBERS: Readonly<Record<string, 'rewards' | 'margin'>> = {
  rewards: 'rewards',
  reward: 'rewards',
  margin: 'margin',
};

const difference = (x: Tokens) => x.logprob.sub(x.oldLogprob);

/** The names that are neither columns nor options. */
const DERIVED: Readonly<Record<string, (x: Tokens) => Variable>> = {
  d: difference,
  r: (x) => difference(x).exp(),
  n: (x) => x.tape.leaf(x.counts).gather(x.rowOf),
  t: (x) => x.tape.leaf(x.rowOf.map((row, i) => i - x.rowOf.indexOf(row))),
  group_size: (x) => {
    const { groupOf, groups, ofTokens } = grouped(x);
    return x.tape.leaf(countBy(groupOf, groups)).gather(ofTokens);
  },
};

/** The tokens that come first in their rows, in the order of the rows that have tokens. */
const firstTokens = (x: Tokens) => x.rowOf.flatMap((row, i) => (row === x.rowOf[i - 1] ? [] : [i]));

const countBy = (groupOf: readonly number[], groups: number) =>
  Array.from({ length: groups }, (_, group) => groupOf.filter((other) => other === group).length);

/** The group of each row that has tokens, the number of groups, and the group of each token. */
function grouped(x: Tokens) {
  const ids = x.rows.map((row) => x.batch.groupIds![row]!);
  const all = [...new Set(ids)];
  const groupOfRow = ids.map((id) => all.indexOf(id));
  return {
    groupOf: firstTokens(x).map((i) => groupOfRow[x.rowOf[i]!]!),
    groups: all.length,
    ofTokens: x.rowOf.map((row) => groupOfRow[row]!),
  };
}

type Operation = (operands: Variable[], x: Tokens) => Variable;

const unary =
  (f: (a: Variable) => Variable): Operation =>
  ([a]) =>
    f(a!);
const binary =
  (f: (a: Variable, b: Variable) => Variable): Operation =>
  ([a, b]) =>
    f(a!, b!);

/**
 * Returns 1 where the condition holds for the sign of the difference of two variables, and 0 elsewhere. The sign is
 * recorded as a choice, because float32 may round numbers to the same one that differ a little.
 */
const compared = (holds: (sign: number) => boolean) => binary((a, b) => a.sub(b).sign().test(holds));
const isTrue = (a: Variable) => a.test((x) => x !== 0 && !Number.isNaN(x));
/** Returns the smaller of two variables, or the larger if `sign` is −1. On a tie, the first gets the gradient. */
const smaller = (a: Variable, b: Variable, sign = 1) =>
  a
    .sub(b)
    .test((x) => sign * x <= 0)
    .choose(a, b);
const larger = (a: Variable, b: Variable) => smaller(a, b, -1);

const counts = (x: Tokens) => x.tape.leaf(x.counts.map((n) => Math.max(n, 1)));
const rowReduction =
  (f: (a: Variable, x: Tokens) => Variable): Operation =>
  ([a], x) =>
    x.spread(f(a!, x));
const batchReduction =
  (f: (a: Variable, x: Tokens) => Variable): Operation =>
  ([a], x) =>
    f(a!, x).gather(x.rowOf.map(() => 0));
const extremeOfRow = (sign: 1 | -1) => rowReduction((a, x) => a.extremeBy(x.rowOf, x.rows.length, sign));
const extremeOfBatch = (sign: 1 | -1) =>
  batchReduction((a, x) =>
    a.extremeBy(
      x.rowOf.map(() => 0),
      1,
      sign,
    ),
  );

const groupReduction =
  (f: (ofRows: Variable, groupOf: number[], groups: number) => Variable): Operation =>
  ([a], x) => {
    const { groupOf, groups, ofTokens } = grouped(x);
    return f(a!.gather(firstTokens(x)), groupOf, groups).gather(ofTokens);
  };
const extremeOfGroup = (sign: 1 | -1) =>
  groupReduction((a, groupOf, groups) => a.extremeBy(groupOf, groups, sign));

/** Returns the value of the row that has this place in its pair. */
const ofPair =
  (place: number): Operation =>
  ([a], x) => {
    const tokens = firstTokens(x).filter((i) => x.rows[x.rowOf[i]!]! % 2 === place);
    const pairOf = (i: number) => x.rows[x.rowOf[i]!]! >> 1;
    const pairs = Math.ceil(x.batch.rows / 2);
    return a!
      .gather(tokens)
      .sumBy(tokens.map(pairOf), pairs)
      .gather(x.rowOf.map((_, i) => pairOf(i)));
  };

/** Computes constants for each row from the values of its tokens, one for each token. */
const ofRowsTokens =
  (f: (values: number[], by: number | undefined) => number[]): Operation =>
  ([a, by], x) => {
    const rows = firstTokens(x).map((first) => {
      const tokens = x.rowOf.flatMap((row, i) => (row === x.rowOf[first] ? [i] : []));
      return f(
        tokens.map((i) => a!.value[i]!),
        by?.value[first],
      );
    });
    return x.tape.leaf(rows.flat()).detach();
  };

const rowQuantile = ofRowsTokens((values, q = 0) => {
  const sorted = values.toSorted((a, b) => a - b);
  const last = sorted.length - 1;
  const rank = Math.min(Math.max(q * last, 0), last);
  const [low, high] = [sorted[Math.floor(rank)]!, sorted[Math.ceil(rank)]!];
  return values.map(() => low + (high - low) * (rank - Math.floor(rank)));
});

const rowRank: Operation = (operands, x) => {
  const ranks = ofRowsTokens((values) => {
    const order = values.map((_, i) => i).sort((a, b) => values[a]! - values[b]! || a - b);
    return values.map((_, i) => order.indexOf(i));
  })(operands, x);
  x.tape.choose(ranks.length, (i) => ranks.value[i]!);
  return ranks;
};

const OPERATIONS: Readonly<Record<string, Operation>> = {
  '+': binary((a, b) => a.add(b)),
  '-': ([a, b]) => (b ? a!.sub(b) : a!.neg()),
  '*': binary((a, b) => a.mul(b)),
  '/': binary((a, b) => a.div(b)),
  '**': binary((a, b) => a.pow(b)),
  '<': compared((x) => x < 0),
  '<=': compared((x) => x <= 0),
  '>': compared((x) => x > 0),
  '>=': compared((x) => x >= 0),
  '==': compared((x) => x === 0),
  '!=': compared((x) => x !== 0),
  '&&': binary((a, b) => isTrue(a).mul(isTrue(b))),
  '||': binary((a, b) => isTrue(isTrue(a).add(isTrue(b)))),
  '!': unary((a) => isTrue(a).test((x) => x === 0)),
  '?:': ([condition, a, b]) => isTrue(condition!).choose(a!, b!),
  exp: unary((a) => a.exp()),
  expm1: unary((a) => a.expm1()),
  log: unary((a) => a.log()),
  log1p: unary((a) => a.log1p()),
  sqrt: unary((a) => a.sqrt()),
  abs: unary((a) => a.abs()),
  sign: unary((a) => a.sign()),
  tanh: unary((a) => a.tanh()),
  sigmoid: unary((a) => a.sigmoid()),
  logsigmoid: unary((a) => a.logSigmoid()),
  square: unary((a) => a.square()),
  pow: binary((a, b) => a.pow(b)),
  min: (operands) => operands.reduce((a, b) => smaller(a, b)),
  max: (operands) => operands.reduce((a, b) => larger(a, b)),
  clip: ([a, low, high]) => smaller(larger(a!, low!), high!),
  sg: unary((a) => a.detach()),
  row_sum: rowReduction((a, x) => x.rowSum(a)),
  row_mean: rowReduction((a, x) => x.rowSum(a).div(counts(x))),
  row_min: extremeOfRow(-1),
  row_max: extremeOfRow(1),
  batch_sum: batchReduction((a) => a.sum()),
  batch_mean: batchReduction((a) => a.sum().div(Math.max(a.length, 1))),
  batch_min: extremeOfBatch(-1),
  batch_max: extremeOfBatch(1),
  group_sum: groupReduction((a, groupOf, groups) => a.sumBy(groupOf, groups)),
  group_mean: groupReduction((a, groupOf, groups) =>
    a.sumBy(groupOf, groups).div(a.tape.leaf(countBy(groupOf, groups).map((n) => Math.max(n, 1)))),
  ),
  group_min: extremeOfGroup(-1),
  group_max: extremeOfGroup(1),
  chosen: ofPair(0),
  rejected: ofPair(1),
  row_quantile: rowQuantile,
  row_rank: rowRank,
};

/** Computes the value of an expression for each unmasked token. `args` holds the values of the options. */
export function tokenValues(expression: Expression, x: Tokens, args: Args): Variable {
  if (typeof expression === 'number') return constant(expression, x);
  if (typeof expression !== 'string') {
    const [operation, ...operands] = expression;
    return OPERATIONS[operation as string]!(
      operands.map((each) => tokenValues(each, x, args)),
      x,
    );
  }
  const column = COLUMNS[expression];
  if (column) return x.column(column);
  const numbers = ROW_NUMBERS[expression];
  if (numbers) return x.spread(x.tape.leaf(x.rows.map((row) => x.batch[numbers]![row]!)).mul(1));
  return DERIVED[expression]?.(x) ?? constant(args[expression] as number, x);
}

function constant(value: number, x: Tokens): Variable {
  const variable = x.tape.leaf(x.rowOf.map(() => value));
  // Numbers that float32 cannot represent are rounded, so the tape's noise must reach them.
  return Math.fround(value) === value ? variable : variable.mul(1);
}

/** Returns the formula of a user-defined loss. Its arguments are the options and loss_agg_mode. */
export const expressionFormula =
  (loss: Expression, metrics: Readonly<Record<string, Expression>> = {}): Formula =>
  (x, args) => ({
    loss: x.aggregate(tokenValues(loss, x, args), option(args, 'loss_agg_mode', 'token-mean')),
    metrics: Object.fromEntries(
      Object.entries(metrics).map(([name, metric]) => [name, x.mean(tokenValues(metric, x, args))]),
    ),
  });

const CONDITIONAL = 1;
const UNARY = 8;
const POWER = 9;
const PRIMARY = 10;
/** How tightly JavaScript's binary operators bind. */
const PRECEDENCE: Readonly<Record<string, number>> = {
  '||': 2,
  '&&': 3,
  '==': 4,
  '!=': 4,
  '<': 5,
  '<=': 5,
  '>': 5,
  '>=': 5,
  '+': 6,
  '-': 6,
  '*': 7,
  '/': 7,
  '**': POWER,
};

/**
 * Writes an expression as text, with only the parentheses that JavaScript needs.
 * @param least how tightly the text must bind to stand without parentheses.
 */
export function textOf(expression: Expression, least = CONDITIONAL): string {
  const [text, precedence] = written(expression);
  return precedence < least ? `(${text})` : text;
}

function written(expression: Expression): [text: string, precedence: number] {
  if (typeof expression === 'string') return [expression, PRIMARY];
  if (typeof expression === 'number') return [String(expression), expression < 0 ? UNARY : PRIMARY];
  const [operation, ...operands] = expression as readonly [string, ...Expression[]];
  const [a, b, c] = operands as [Expression, Expression, Expression];
  if (operation === '?:') return [`${textOf(a, CONDITIONAL + 1)} ? ${textOf(b)} : ${textOf(c)}`, CONDITIONAL];
  if (operands.length === 1 && (operation === '-' || operation === '!'))
    return [operation + textOf(a, PRIMARY), UNARY];
  const precedence = PRECEDENCE[operation];
  if (precedence === undefined)
    return [`${operation}(${operands.map((each) => textOf(each)).join(', ')})`, PRIMARY];
  // `**` groups from the right, and its left operand must not be a unary operator. The others group from the left.
  const [left, right] = precedence === POWER ? [PRIMARY, UNARY] : [precedence, precedence + 1];
  return [`${textOf(a, left)} ${operation} ${textOf(b, right)}`, precedence];
}
