/** Draws expressions of user-defined losses, and compares the library's results with the reference's. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { Tape } from '../reference/autograd.js';
import type { Formula } from '../reference/batch.js';
import { COLUMNS, type Expression, ROW_NUMBERS } from '../reference/expression.js';
import { type Args, evaluator, type ReferenceBatch, type ReferenceResult } from '../reference/index.js';
import { generator } from './random.js';
import type { Computed } from './subject.js';

/** The options that drawn expressions may use. */
export const OPTIONS = { low: 0.2, high: 0.28, beta: 0.5 };

const CONSTANTS = [0, 1, 2, 3, 10, -1, -0.5, 0.25, 0.1, 1e-3, 1.7];
const ARITHMETIC = ['+', '+', '-', '*', '*'];
const COMPARISONS = ['<', '<=', '>', '>=', '==', '!='];
const ROW_REDUCTIONS = ['row_sum', 'row_mean', 'row_min', 'row_max'];
const BATCH_REDUCTIONS = ['batch_sum', 'batch_mean', 'batch_min', 'batch_max'];
const GROUP_REDUCTIONS = ['group_sum', 'group_mean', 'group_min', 'group_max'];
const OF_PAIRS = ['chosen', 'rejected'];

/** A program can read nine columns. Two expressions with so many each, and logprob, are within that limit. */
const MOST_COLUMNS = 4;

function columnsOf(expression: Expression): readonly string[] {
  if (typeof expression === 'number') return [];
  if (typeof expression !== 'string') return expression.flatMap(columnsOf);
  return expression === 'd' || expression === 'r' ? ['logprob', 'oldLogprob'] : [COLUMNS[expression] ?? ''];
}

/**
 * Generates expressions. Arguments of exp, log and the like are drawn from ranges in which they neither overflow nor
 * are undefined.
 * @param reductions the reductions of tokens that may occur, including nested ones. If there are any, ranks and quantiles
 * of rows may occur too.
 * @param ofRows the functions of values of rows that may occur.
 */
function expressions(
  reductions: readonly string[],
  ofRows: readonly string[] = [],
): fc.Arbitrary<Expression> {
  type Kinds = Record<'any' | 'leaf' | 'positive' | 'bounded' | 'row', Expression>;
  const { any } = fc.letrec<Kinds>((tie) => {
    const [any, positive, bounded, row] = [tie('any'), tie('positive'), tie('bounded'), tie('row')];
    const of = (operations: readonly string[], ...operands: fc.Arbitrary<Expression>[]) =>
      fc.tuple(fc.constantFrom(...operations), ...operands);
    const several = fc.array(any, { minLength: 2, maxLength: 4 });
    const shares = fc.constantFrom<Expression>(0, 0.3, 0.5, 1, ['sigmoid', 'reward']);
    const reduced: fc.Arbitrary<Expression>[] =
      reductions.length > 0
        ? [
            ...new Array(4).fill(of(reductions, any)),
            of(['row_rank'], any),
            of(['row_quantile'], any, shares),
            row,
          ]
        : [];
    const combined: fc.Arbitrary<Expression>[] = ofRows.length > 0 ? [of(ofRows, row)] : [];
    return {
      leaf: fc.oneof(
        { arbitrary: fc.constantFrom('lp', 'd', 'r'), weight: 4 },
        { arbitrary: fc.constantFrom('n', 't', ...Object.keys(COLUMNS)), weight: 2 },
        fc.constantFrom(...Object.keys(OPTIONS), ...CONSTANTS),
      ),
      row: fc.oneof(
        { maxDepth: 3 },
        fc.constantFrom(...Object.keys(ROW_NUMBERS), ...(ofRows.length > 0 ? ['n', 'group_size'] : ['n'])),
        { arbitrary: of(ROW_REDUCTIONS, any), weight: 3 },
        of(ARITHMETIC, row, row),
        ...combined,
      ),
      positive: fc.oneof(
        { maxDepth: 4 },
        fc.constantFrom<Expression>('r', 0.1, 2, ['+', 'H', 0.25]),
        any.map((x) => ['+', ['abs', x], 0.5]),
        bounded.map((x) => ['exp', x]),
        any.map((x) => ['max', x, 0.2]),
      ),
      bounded: fc.oneof(
        { maxDepth: 4 },
        fc.constantFrom<Expression>('d', -1, 0.5, 1),
        any.map((x) => ['clip', x, -2, 2]),
        any.map((x) => ['tanh', x]),
      ),
      any: fc.oneof(
        { maxDepth: 4 },
        tie('leaf'),
        { arbitrary: of(ARITHMETIC, any, any), weight: 4 },
        of(['/'], any, positive),
        of(['**', 'pow'], positive, bounded),
        of(['**', 'pow'], any, fc.integer({ min: 0, max: 4 })),
        of(['exp', 'expm1'], bounded),
        of(['log', 'log1p', 'sqrt'], positive),
        of(['-', 'abs', 'sign', 'tanh', 'sigmoid', 'logsigmoid', 'square', 'sg'], any),
        several.chain((operands) => of(['min', 'max']).map(([name]) => [name, ...operands])),
        of(['clip'], any, any, any),
        of([...COMPARISONS, '&&', '||'], any, any),
        of(['!'], any),
        of(['?:'], any, any, any),
        ...reduced,
        ...combined,
        ...combined,
      ),
    };
  });
  return any.filter((each) => new Set(columnsOf(each)).size <= MOST_COLUMNS + 1);
}

/** Generators of expressions, by the reductions that they contain. */
export const EXPRESSIONS = {
  token: expressions([]),
  row: expressions(ROW_REDUCTIONS),
  batch: expressions([...ROW_REDUCTIONS, ...BATCH_REDUCTIONS], GROUP_REDUCTIONS),
  /** Expressions for an even number of rows. */
  pairs: expressions(ROW_REDUCTIONS, OF_PAIRS),
};

/** The reference's result, and how far the rounding errors of float32 could move each of its numbers. */
export interface Judged {
  expected: ReferenceResult;
  slack: { loss: number; metrics: Record<string, number>; grad: Float64Array };
}

/** The largest rounding error of an operation, relative to its result: two units in the last place of a float32. */
const ROUNDING = 2 ** -22;
/** Results beyond this bound, or below its inverse, may be out of the range of float32. */
const LARGEST = 1e30;
const RUNS = 5;
/** How much larger an error may be than the largest error of the runs. */
const MARGIN = 8;

/**
 * Evaluates a formula several times in float64. In all runs but the first, every operation has a random error as large
 * as a rounding error of float32. The differences between the runs bound the error of a float32 engine.
 * @returns undefined if a run takes another branch, so that rounding decides the result, if an intermediate result may
 * be out of the range of float32, or if a result is not finite.
 */
export function judge(formula: Formula, args: Args, batch: ReferenceBatch): Judged | undefined {
  const { uniform } = generator(batch.rows * 1000 + batch.columns);
  const noise = () => 1 + ROUNDING * (2 * uniform() - 1);
  const evaluate = evaluator(formula, 'logprob');
  const run = (tape: Tape) => ({ ...evaluate(args, batch, tape), branches: tape.branches });
  const expected = run(new Tape());
  const slack = {
    loss: 0,
    metrics: Object.fromEntries(Object.keys(expected.metrics).map((name) => [name, 0])),
    grad: new Float64Array(expected.grad.length),
  };
  const larger = (known: number, x: number, y: number) => Math.max(known, MARGIN * Math.abs(x - y));
  for (let i = 0; i < RUNS; i++) {
    const tape = new Tape(undefined, noise);
    const moved = run(tape);
    if (tape.largest > LARGEST || tape.smallest < 1 / LARGEST) return undefined;
    if (moved.branches.some((branch, k) => branch !== expected.branches[k])) return undefined;
    slack.loss = larger(slack.loss, moved.loss, expected.loss);
    for (const name of Object.keys(slack.metrics))
      slack.metrics[name] = larger(slack.metrics[name]!, moved.metrics[name]!, expected.metrics[name]!);
    for (let k = 0; k < slack.grad.length; k++)
      slack.grad[k] = larger(slack.grad[k]!, moved.grad[k]!, expected.grad[k]!);
  }
  const numbers = [slack.loss, ...Object.values(slack.metrics), ...slack.grad];
  return numbers.every(Number.isFinite) ? { expected, slack } : undefined;
}

const RELATIVE = 2e-5;

/** Fails if a result is farther from the reference's than the bounds of built-in losses and rounding errors allow. */
export function assertJudged(actual: Computed, { expected, slack }: Judged): void {
  const close = (what: string, x: number | undefined, y: number, least: number, more: number) => {
    const bound = RELATIVE * Math.max(Math.abs(y), least) + more;
    assert.ok(Math.abs(x! - y) <= bound, `${what} is ${x}, expected ${y} ± ${bound.toExponential(2)}`);
  };
  close('loss', actual.loss, expected.loss, 0.05, slack.loss);
  assert.deepEqual(Object.keys(actual.metrics), Object.keys(expected.metrics));
  for (const [name, value] of Object.entries(expected.metrics))
    close(name, actual.metrics[name], value, 0.05, slack.metrics[name]!);
  assert.equal(actual.grad.length, expected.grad.length, 'length of grad');
  const largest = expected.grad.reduce((most, g) => Math.max(most, Math.abs(g)), 0);
  expected.grad.forEach((g, i) => {
    close(`grad[${i}]`, actual.grad[i], g, largest / 100, slack.grad[i]!);
  });
}
