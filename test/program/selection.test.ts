/**
 * Compares order statistics, selections and random numbers of native programs with those of the interpreter in float64,
 * which sorts. The values are few, so that many are equal, and NaN, infinities and −0 are among them.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { NativeProgramMetric } from '../../binding.js';
import { native } from '../../lib/base/native.js';
import { COLUMNS, ROW_COLUMNS } from '../../lib/batch/columns.js';
import { compileLoss, type LossNodes } from '../../lib/program/compile.js';
import { type Expression, type ProgramSymbols, programSymbolsOf } from '../../lib/program/expression.js';
import { Graph } from '../../lib/program/graph.js';
import { interpret, type Row } from './interpreter.js';

type Metrics = Record<string, { node: Expression; per: 'row' | 'batch' }>;

const ADVANTAGES = COLUMNS.indexOf('advantages');

/** The values of a row's tokens, its mask, and how often it counts. */
interface DrawnRow {
  values: number[];
  mask: boolean[];
  repeats: number;
}

const finite = fc.oneof(
  { arbitrary: fc.constantFrom(0, -0, 1, -1, 0.5, 1e-40, -1e-40, 3e38, 2 ** -149), weight: 2 },
  { arbitrary: fc.float({ min: -4, max: 4, noNaN: true }), weight: 2 },
);
const special = fc.oneof(
  { arbitrary: finite, weight: 6 },
  fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY),
);
const positive = finite.map((x) => Math.min(Math.abs(x), 1e4));

function drawnRows(value: fc.Arbitrary<number>): fc.Arbitrary<DrawnRow[]> {
  const row = fc
    .array(fc.record({ value, isUnmasked: fc.boolean() }), { minLength: 7, maxLength: 7 })
    .chain((tokens) =>
      fc.integer({ min: 0, max: 3 }).map((repeats) => ({
        values: tokens.map((token) => Math.fround(token.value)),
        mask: tokens.map(({ isUnmasked }) => isUnmasked),
        repeats,
      })),
    );
  return fc.array(row, { minLength: 1, maxLength: 6 });
}

// Returns the metrics of rows, which are means, and those of the batch, as native code and as the interpreter computes
// them.
function compute(rows: readonly DrawnRow[], build: (symbols: ProgramSymbols) => Metrics) {
  const graph = new Graph();
  const built = Object.entries(build(programSymbolsOf(graph)));
  const nodes: LossNodes = {
    loss: graph.column('logprob'),
    metrics: built.map(([, { node, per }]) => ({ node: node.node, per })),
    allRows: true,
  };
  const program = compileLoss(graph, nodes);
  const metrics: NativeProgramMetric[] = built.map(([name, { per }]) => ({ name, per }));
  const fn = native.createFunction({ policyLoss: { program, metrics, aggregation: 'token-sum' } });
  const flat = Float32Array.from(rows.flatMap(({ values }) => values));
  const zeros = new Float32Array(flat.length);
  const results = new Float64Array(native.valueNames(fn).length);
  const batch = {
    rows: rows.length,
    rowLength: rows[0]!.values.length,
    offsets: undefined,
    data: COLUMNS.map((_, i) => (i === ADVANTAGES ? flat : zeros)),
    dtypes: COLUMNS.map(() => 0),
    rowData: ROW_COLUMNS.map(() => new Float64Array(rows.length)),
    mask: Uint8Array.from(
      rows.flatMap(({ mask }) => mask),
      Number,
    ),
    expert: undefined,
    repeats: Uint32Array.from(rows, ({ repeats }) => repeats),
  };
  native.evaluate({
    fn,
    batch,
    values: results,
    grad: undefined,
    gradEntropy: undefined,
    mu: undefined,
    klCoef: undefined,
    entropyCoef: undefined,
  });
  const names = native.valueNames(fn);
  const expected = interpret(program.withoutGrad, rows.map(interpreted));
  const count = rows.reduce((sum, { repeats }) => sum + repeats, 0);
  const ofRows = expected.rowMetrics.map((values) =>
    values.reduce((sum: number, x, b) => sum + rows[b]!.repeats * (x ?? 0), 0),
  );
  const wanted = [...ofRows.map((sum) => (count > 0 ? sum / count : 0)), ...expected.batchMetrics];
  const order = [
    ...built.filter(([, { per }]) => per === 'row'),
    ...built.filter(([, { per }]) => per === 'batch'),
  ];
  return {
    actual: Object.fromEntries(order.map(([name]) => [name, results[names.indexOf(name)]! + 0])),
    expected: Object.fromEntries(order.map(([name], i) => [name, wanted[i]! + 0])),
  };
}

function interpreted({ values, mask, repeats }: DrawnRow): Row {
  const zeros = values.map(() => 0);
  return {
    columns: COLUMNS.map((_, i) => (i === ADVANTAGES ? values : zeros)),
    numbers: ROW_COLUMNS.map(() => 0),
    mask,
    weight: repeats,
    repeats,
    group: 0,
  };
}

function agree(
  value: fc.Arbitrary<number>,
  by: fc.Arbitrary<number>,
  build: (symbols: ProgramSymbols, by: number) => Metrics,
): void {
  fc.assert(
    fc.property(drawnRows(value), by, (rows, number) => {
      const { actual, expected } = compute(rows, (symbols) => build(symbols, number));
      assert.deepEqual(actual, expected);
    }),
    { seed: 17, numRuns: 300 },
  );
}

/** How the values of a large batch are distributed. */
const DISTRIBUTIONS: readonly ((uniform: () => number, row: number, token: number) => number)[] = [
  (uniform) => uniform() - 0.5,
  (uniform) => Math.floor(uniform() * 4) - 1,
  (uniform) => (uniform() < 0.7 ? 0 : uniform() < 0.5 ? -0 : uniform() - 0.5),
  (uniform, row) => 16 ** (row - 3) * (uniform() + 0.5),
  (_, row, token) => (row % 2 === 0 ? token : -token),
  (uniform) => Math.exp(60 * (uniform() - 0.5)) * Math.sign(uniform() - 0.5),
  (uniform) =>
    [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 1, 1][Math.floor(uniform() * 5)]!,
  (uniform) => (uniform() < 0.01 ? Number.NaN : uniform()),
];

/** Draws rows with so many tokens that native code first searches a sample of them. */
function manyTokens(
  value: (uniform: () => number, row: number, token: number) => number,
  seed: number,
): DrawnRow[] {
  let state = seed;
  const uniform = () => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return state / 2 ** 32;
  };
  return Array.from({ length: 7 }, (_, row) => ({
    values: Array.from({ length: 1500 }, (_, token) => Math.fround(value(uniform, row, token))),
    mask: Array.from({ length: 1500 }, () => row !== 5 && uniform() < 0.9),
    repeats: [1, 2, 0, 1, 3, 1, 1][row]!,
  }));
}

function agreeOnManyTokens(
  values: typeof DISTRIBUTIONS,
  by: fc.Arbitrary<number>,
  build: (symbols: ProgramSymbols, by: number) => Metrics,
): void {
  fc.assert(
    fc.property(fc.nat(values.length - 1), fc.nat(1e6), by, (index, seed, number) => {
      const { actual, expected } = compute(manyTokens(values[index]!, seed), (symbols) =>
        build(symbols, number),
      );
      assert.deepEqual(actual, expected);
    }),
    { seed: 17, numRuns: 30 },
  );
}

const rank = fc.oneof(fc.integer({ min: -2, max: 60 }), fc.double({ min: 0, max: 20, noNaN: true }));

describe('selections of programs', () => {
  it('find the value with a rank in the batch, and the place of its token', () => {
    agree(special, rank, ({ A, batchRanked, batchRankAt }, by) => ({
      value: { node: batchRanked(A, by), per: 'batch' },
      place: { node: batchRankAt(A, by), per: 'batch' },
    }));
  });

  it('take a rank that depends on the counts of the batch', () => {
    agree(special, fc.double({ min: 0, max: 1, noNaN: true }), ({ A, tokens, batchRanked }, share) => ({
      value: { node: batchRanked(A, tokens.mul(share)), per: 'batch' },
    }));
  });

  it('find the value with a rank in each row', () => {
    agree(finite, rank, ({ A, n, floor, rowRanked }, by) => ({
      value: { node: floor(rowRanked(A, by).mul(8)), per: 'row' },
      middle: { node: floor(rowRanked(A, n.div(2)).mul(8)), per: 'row' },
    }));
  });

  it('count the smallest values with a small mean', () => {
    // These numbers and their sums are exact.
    const exact = fc.integer({ min: -20, max: 60 }).map((x) => x / 8);
    agree(exact, exact, ({ A, batchUnderMean }, mean) => ({
      count: { node: batchUnderMean(A, mean), per: 'batch' },
    }));
  });

  it('count the values below the level that a sum allows', () => {
    const exact = fc.integer({ min: -20, max: 60 }).map((x) => x / 8);
    agree(
      exact,
      exact.map((x) => 20 * x),
      ({ A, batchUnderFill }, sum) => ({
        count: { node: batchUnderFill(A, sum), per: 'batch' },
      }),
    );
  });

  it('find values and places among many tokens', () => {
    agreeOnManyTokens(
      DISTRIBUTIONS,
      fc.oneof(fc.nat(12000), fc.nat(20)),
      ({ A, tokens, batchRanked, batchRankAt, batchMax, rowMax }, by) => ({
        value: { node: batchRanked(A, by), per: 'batch' },
        place: { node: batchRankAt(A, by), per: 'batch' },
        // A rank that is known only after the pass over the values, and ranks far from it.
        last: { node: batchRankAt(A, tokens.sub(batchMax(A.mul(0)).add(1))), per: 'batch' },
        middle: { node: batchRanked(A, tokens.div(2)), per: 'batch' },
        // The same number for all tokens of a row.
        uniform: { node: batchRankAt(rowMax(A), by), per: 'batch' },
      }),
    );
  });

  it('find the value with a rank among many tokens of a row', () => {
    agreeOnManyTokens(
      DISTRIBUTIONS,
      fc.oneof(fc.nat(1500), fc.nat(20)),
      ({ A, n, batchMax, rowRanked }, by) => {
        // The number of limits below the value, which is exact. It differs for NaN and −∞.
        const code = (x: Expression) =>
          [-100, -0.25, 0, 0.125, 0.5, 2, 1000].reduce((sum, limit) => sum.add(x.gt(limit)), x.le(-1e30));
        return {
          value: { node: code(rowRanked(A, by)), per: 'row' },
          next: { node: code(rowRanked(A, by + 1)), per: 'row' },
          middle: { node: code(rowRanked(A, n.div(2))), per: 'row' },
          // The rank is known only after the pass that keeps the values.
          later: { node: code(rowRanked(A, batchMax(n).div(3))), per: 'row' },
        };
      },
    );
  });

  it('find every rank in a row', () => {
    // A search finds the range of values around a rank, which serves the later ranks too. Near the ends of so short a
    // row, it begins or ends at a value of the row.
    const perSearch = 64;
    const perCall = 8;
    for (const value of DISTRIBUTIONS) {
      const [row] = manyTokens(value, 5);
      const short = { values: row!.values.slice(0, 600), mask: row!.mask.slice(0, 600), repeats: 1 };
      for (let first = 0; first < 600; first += perCall) {
        const later = Array.from({ length: perCall }, (_, i) => first + i);
        const { actual, expected } = compute([short], ({ A, rowRanked }) =>
          Object.fromEntries(
            [first - (first % perSearch), ...later].map((rank, i) => [
              `${i}: rank ${rank}`,
              { node: rowRanked(A, rank), per: 'row' },
            ]),
          ),
        );
        assert.deepEqual(actual, expected);
      }
    }
  });

  it('count the smallest values of many tokens by their mean and their sum', () => {
    // These numbers and their sums are exact.
    agreeOnManyTokens(
      [
        (uniform) => Math.floor(uniform() * 9) / 8,
        (uniform) => Math.floor(uniform() * 2 ** 12) / 64 - 3,
        (uniform) => 2 ** Math.floor(uniform() * 12),
        // The rows, or the tokens that the sample takes, differ from the others.
        (uniform, row) => (row % 2 === 0 ? 0 : Math.floor(uniform() * 64) - 16),
        (uniform, row, token) => ((1500 * row + token) % 1024 < 64 ? 50 : Math.floor(uniform() * 64) / 8),
        (uniform, row, token) => ((1500 * row + token) % 1024 < 64 ? 0 : Math.floor(uniform() * 64) / 8),
      ],
      fc.integer({ min: -10, max: 400 }).map((x) => x / 8),
      ({ A, floor, batchUnderMean, batchUnderFill, batchRankAt }, by) => ({
        count: { node: batchUnderMean(A, by), per: 'batch' },
        last: { node: batchRankAt(A, batchUnderMean(A, by).sub(1)), per: 'batch' },
        under: { node: batchUnderFill(A, 8192 * by), per: 'batch' },
        small: { node: batchUnderMean(A, floor(by)), per: 'batch' },
      }),
    );
  });

  it('select by numbers that the pass over the values computes', () => {
    // These numbers and their sums are exact. The sample differs from the other tokens in the last ones.
    const values: typeof DISTRIBUTIONS = [
      (uniform) => Math.floor(uniform() * 2 ** 12) / 64 - 3,
      (uniform, row) => (row % 2 === 0 ? 0 : Math.floor(uniform() * 64) - 16),
      (uniform, row, token) => ((1500 * row + token) % 1024 < 64 ? 50 : Math.floor(uniform() * 64) / 8),
      (uniform, row, token) => ((1500 * row + token) % 1024 < 64 ? 0 : Math.floor(uniform() * 64) / 8),
    ];
    const by = fc.integer({ min: 0, max: 400 }).map((x) => x / 8);
    agreeOnManyTokens(values, by, ({ A, batchSum, batchRanked, batchUnderFill }, by) => {
      const under = batchUnderFill(A, batchSum(A.gt(1)).mul(by));
      return {
        under: { node: under, per: 'batch' },
        last: { node: batchRanked(A, under.sub(1)), per: 'batch' },
      };
    });
    agreeOnManyTokens(values, by, ({ A, batchSum, batchRanked, batchRankAt }, by) => {
      const rank = batchSum(A.le(by));
      return {
        value: { node: batchRanked(A, rank), per: 'batch' },
        place: { node: batchRankAt(A, rank), per: 'batch' },
      };
    });
    // The sum and the rank are infinite or NaN.
    agreeOnManyTokens(DISTRIBUTIONS, by, ({ A, batchSum, batchRanked }, by) => ({
      value: { node: batchRanked(A, batchSum(A.div(0)).add(by)), per: 'batch' },
    }));
  });

  it('flag the tokens up to a place', () => {
    agree(positive, rank, ({ A, batchRankAt, isUpTo, rowSum }, by) => ({
      count: { node: rowSum(isUpTo(batchRankAt(A, by))), per: 'row' },
    }));
  });

  it('draw the same numbers in every engine', () => {
    agree(finite, fc.integer({ min: 0, max: 2 ** 40 }), ({ draw, batchRanked, batchMax }, seed) => ({
      middle: { node: batchRanked(draw(seed), 5), per: 'batch' },
      largest: { node: batchMax(draw(seed)), per: 'batch' },
    }));
  });

  it('draw each number with the same probability', () => {
    const rows = Array.from({ length: 2000 }, () => ({
      values: Array<number>(7).fill(0),
      mask: Array<boolean>(7).fill(true),
      repeats: 1,
    }));
    const { actual } = compute(rows, ({ draw, rowRanked, batchMean, square, constant }) => ({
      mean: { node: batchMean(draw(3)), per: 'batch' },
      square: { node: batchMean(square(draw(3))), per: 'batch' },
      least: { node: rowRanked(draw(3), 0), per: 'row' },
      product: { node: batchMean(draw(3).mul(draw(4))), per: 'batch' },
      one: { node: constant(1), per: 'batch' },
    }));
    const close = (name: string, x: number) => assert.ok(Math.abs(actual[name]! - x) < 0.01, name);
    close('mean', 1 / 2);
    close('square', 1 / 3);
    close('least', 1 / 8);
    close('product', 1 / 4);
  });
});
