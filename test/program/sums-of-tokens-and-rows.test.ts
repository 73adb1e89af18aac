/** Tests sums along a row and sums over groups and pairs of rows: what native code computes, and what it needs. */
import assert from 'node:assert/strict';
import { native } from '../../lib/base/native.js';
import type { Batch } from '../../lib/index.js';
import { policyLoss } from '../../lib/losses/policy-loss.js';
import type { ProgramSymbols } from '../../lib/program/expression.js';
import type { LossExpressions } from '../../lib/program/loss-program.js';
import { isLossError } from '../support/loss-error.js';
import { scanned } from './interpreter.js';

const NO_METRICS = {} as const;

/** Returns the loss that the expressions define. Its gradient is that of the sum over all tokens and rows. */
function lossOf(build: (symbols: ProgramSymbols) => Omit<LossExpressions<typeof NO_METRICS>, 'metrics'>) {
  const Loss = policyLoss({
    name: 'test',
    summary: '',
    source: [],
    reads: [],
    options: {},
    metrics: NO_METRICS,
    numerics: { range: '', outside: '' },
    formula: (symbols) => ({ ...build(symbols), metrics: NO_METRICS }),
  });
  return new Loss();
}

/** Returns the values of an expression for the tokens of a batch: the derivative of its product with logprob. */
function valuesOf(build: (symbols: ProgramSymbols) => ReturnType<ProgramSymbols['constant']>, batch: Batch) {
  const loss = lossOf((symbols) => ({ loss: symbols.sg(build(symbols)).mul(symbols.lp), allRows: true }));
  return Array.from(loss.computeSync(batch, { grad: true }).grad!);
}

// The mask has holes, and a value that must not matter under each of them.
const batch = {
  shape: [2, 6],
  logprob: [1, 2, Number.NaN, 4, 8, Number.NaN, Number.NaN, Number.NaN, 3, Number.NaN, 5, 7],
  actionMask: [1, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1],
} as const;
const packed = {
  cuSeqlens: [0, 5, 11],
  logprob: batch.logprob.toSpliced(5, 1),
  actionMask: batch.actionMask.toSpliced(5, 1),
};

describe('sums along a row', () => {
  const SUMS = {
    prefixSum: [1, 2.5, 0, 4.625, 10.3125, 0, 0, 0, 3, 0, 5.75, 9.875],
    suffixSum: [3, 4, 0, 8, 8, 0, 0, 0, 5.125, 0, 8.5, 7],
    turnSum: [3, 3, 0, 12, 12, 0, 0, 0, 3, 0, 12, 12],
  };

  for (const [name, values] of Object.entries(SUMS) as [keyof typeof SUMS, number[]][])
    it(`computes ${name}`, () => {
      const build = (symbols: ProgramSymbols) =>
        name === 'turnSum' ? symbols.turnSum(symbols.lp) : symbols[name](symbols.lp, 0.5);
      assert.deepEqual(valuesOf(build, batch), values);
      assert.deepEqual(valuesOf(build, packed), values.toSpliced(5, 1));
    });

  // Whole numbers, so that all orders of the additions give the same.
  for (const [op, decay] of [
    ['prefix_sum', 1],
    ['prefix_sum', -1],
    ['suffix_sum', 1],
    ['suffix_sum', -1],
    ['turn_sum', 0],
  ] as const)
    it(`computes ${op} with decay ${decay} in rows of all lengths and with all kinds of runs`, () => {
      const lengths = [...Array(70).keys(), 511, 512, 513, 1100, 20_000, 4100, 1000, 4033, 20_000, 4096];
      const rows = lengths.map((length, b) => {
        const values = Array.from({ length }, (_, t) => ((t * 37 + b * 11) % 101) - 40);
        // From rows without masked tokens to rows in which half of the tokens are masked, and rows of long turns.
        const mask = values.map((_, t) =>
          b % 5 < 4 ? (t * t + b) % 97 >= (b % 5) * 16 : Math.floor((t + 7 * b) / (50 + b)) % 3 > 0,
        );
        return { values, mask };
      });
      const cuSeqlens = [0];
      for (const length of lengths) cuSeqlens.push(cuSeqlens.at(-1)! + length);
      const all = {
        cuSeqlens,
        logprob: rows.flatMap(({ values, mask }) => values.map((x, t) => (mask[t] ? x : Number.NaN))),
        actionMask: rows.flatMap(({ mask }) => mask.map(Number)),
      };
      const build = ({ lp, prefixSum, suffixSum, turnSum }: ProgramSymbols) =>
        op === 'turn_sum' ? turnSum(lp) : (op === 'prefix_sum' ? prefixSum : suffixSum)(lp, decay);
      const expected = rows.flatMap(({ values, mask }) => {
        const kept = values.map((x, t) => (mask[t] ? x : 0));
        return scanned(op, kept, mask, decay).map((x, t) => (mask[t] ? x : 0));
      });
      const actual = valuesOf(build, all).map((x) => x + 0);
      assert.deepEqual(
        actual,
        expected.map((x) => x + 0),
      );
    });

  it('gives each token the derivative of all sums that contain it', () => {
    const grad = (build: (symbols: ProgramSymbols) => ReturnType<ProgramSymbols['constant']>) =>
      Array.from(lossOf((symbols) => ({ loss: build(symbols) })).computeSync(batch, { grad: true }).grad!);
    // The derivative of ½·Σ s² by x is the sum of all s in which x is.
    assert.deepEqual(
      grad(({ lp, turnSum, square }) => square(turnSum(lp)).div(2)),
      [6, 6, 0, 24, 24, 0, 0, 0, 3, 0, 24, 24],
    );
    assert.deepEqual(
      grad(({ lp, prefixSum, square }) => square(prefixSum(lp, 1)).div(2)),
      [26, 25, 0, 22, 15, 0, 0, 0, 26, 0, 23, 15],
    );
    assert.deepEqual(
      grad(({ lp, suffixSum, square }) => square(suffixSum(lp, 1)).div(2)),
      [15, 29, 0, 41, 49, 0, 0, 0, 15, 0, 27, 34],
    );
  });

  it('can follow one another, and values of the batch', () => {
    assert.deepEqual(
      valuesOf(({ lp, prefixSum, turnSum }) => turnSum(prefixSum(lp, 1)), batch),
      [4, 4, 0, 22, 22, 0, 0, 0, 3, 0, 23, 23],
    );
    assert.deepEqual(
      valuesOf(({ lp, turnSum, batchMax }) => turnSum(lp.div(batchMax(turnSum(lp)))).mul(4), batch),
      [1, 1, 0, 4, 4, 0, 0, 0, 1, 0, 4, 4],
    );
  });
});

describe('sums over groups of rows', () => {
  const rows = {
    shape: [5, 1],
    logprob: [1, 2, 4, 8, 16],
    actionMask: [1, 1, 1, 0, 1],
    groupIds: ['b', 'a', 'b', 'a', 'b'],
  } as const;
  const pairs = { shape: [4, 1], logprob: [1, 2, 4, 16] } as const;
  const ofRows = (build: (symbols: ProgramSymbols) => ReturnType<ProgramSymbols['constant']>, from: Batch) =>
    valuesOf(build, from);

  it('computes them in groups of any order', () => {
    const ofGroup = ({ lp, rowSum, groupSum }: ProgramSymbols) => groupSum(rowSum(lp));
    assert.deepEqual(ofRows(ofGroup, rows), [21, 2, 21, 0, 21]);
    assert.deepEqual(
      ofRows(ofGroup, { ...rows, groupIds: Int32Array.of(7, 7, -1, 0, 7) }),
      [19, 19, 4, 0, 19],
    );
    assert.deepEqual(
      ofRows(({ lp, rowSum, groupMax }) => groupMax(rowSum(lp).sub(3)), rows),
      [13, -1, 13, 0, 13],
    );
  });

  it('computes them in pairs, which alternate or have equal ids', () => {
    const sums = ({ lp, rowSum, pairSum, placeInPair }: ProgramSymbols) =>
      pairSum(rowSum(lp)).add(placeInPair.mul(100));
    assert.deepEqual(ofRows(sums, pairs), [3, 103, 20, 120]);
    assert.deepEqual(ofRows(sums, { ...pairs, pairIds: ['a', 'b', 'b', 'a'] }), [17, 6, 106, 117]);
    const each = ({ lp, rowSum, chosen, rejected }: ProgramSymbols) =>
      chosen(rowSum(lp))
        .mul(100)
        .add(rejected(rowSum(lp)));
    assert.deepEqual(ofRows(each, pairs), [102, 102, 416, 416]);
  });

  it('gives the first row with an extreme the derivatives of its group', () => {
    const equal = { ...rows, logprob: [4, 2, 4, 8, 3], groupIds: ['b', 'a', 'b', 'a', 'b'] };
    const gradOf = (build: (symbols: ProgramSymbols) => ReturnType<ProgramSymbols['constant']>) =>
      Array.from(lossOf((symbols) => ({ rowLoss: build(symbols) })).computeSync(equal, { grad: true }).grad!);
    assert.deepEqual(
      gradOf(({ lp, rowSum, groupMax }) => groupMax(rowSum(lp)).mul(rowSum(lp))),
      [11 + 4, 2 * 2, 4, 0, 4],
    );
    assert.deepEqual(
      gradOf(({ lp, rowSum, groupMin }) => groupMin(rowSum(lp)).mul(rowSum(lp))),
      [3, 2 * 2, 3, 0, 11 + 3],
    );
  });

  it('gives each row the derivative of the losses of its group', () => {
    const loss = lossOf(({ lp, rowSum, groupSum, square }) => ({ rowLoss: square(groupSum(rowSum(lp))) }));
    assert.deepEqual(Array.from(loss.computeSync(rows, { grad: true }).grad!), [126, 4, 126, 0, 126]);
    assert.equal(loss.computeSync(rows).loss, 3 * 21 ** 2 + 2 ** 2);
  });

  it('needs the groups, and all of their rows', () => {
    const loss = lossOf(({ lp, rowSum, groupSum }) => ({ rowLoss: groupSum(rowSum(lp)) }));
    const { groupIds: _, ...lacking } = rows;
    assert.throws(() => loss.computeSync(lacking), isLossError('ERR_MISSING_INPUT', /group_?ids/i));
    assert.throws(
      () => loss.computeSync({ ...rows, groupIds: [1, 2] }),
      isLossError('ERR_SHAPE_MISMATCH', /groupIds/),
    );
    assert.throws(() => loss.computeSync(rows, { part: true }), isLossError('ERR_INVALID_OPTION', /part/));
    const ofPairs = lossOf(({ lp, rowSum, pairSum }) => ({ rowLoss: pairSum(rowSum(lp)) }));
    assert.deepEqual([ofPairs.readsWholeBatch, ofPairs.readsPairs], [false, true]);
    assert.equal(ofPairs.computeSync(pairs).loss, 3 + 3 + 20 + 20);
    assert.throws(
      () => ofPairs.computeSync(lacking),
      isLossError('ERR_SHAPE_MISMATCH', /even number of rows/),
    );
  });
});

describe('programs with sums along a row and over groups', () => {
  const [COLUMN, CONSTANT, ROW_VALUE, SCANNED] = [1, 2, 3, 8].map((kind) => 65536 * kind) as [
    number,
    number,
    number,
    number,
  ];
  type Instruction = readonly [op: string, out?: number, ...operands: number[]];

  function encode(instructions: readonly Instruction[]) {
    const code = instructions.flatMap(([op, out = 0, ...operands]) => [
      native.programOps.indexOf(op),
      out,
      ...operands,
      ...[0, 0, 0, 0].slice(operands.length),
    ]);
    const sizes = { registers: 0, rowValues: 1, batchValues: 0, metrics: 0, batchMetrics: 0 };
    return { code: Int32Array.from(code), constants: Float64Array.of(1), ...sizes, allRows: false };
  }

  const withGrad = encode([['tokens'], ['loss', 0, COLUMN, CONSTANT], ['grad', 0, COLUMN, CONSTANT]]);
  const create = (...instructions: Instruction[]) =>
    native.createFunction({
      policyLoss: {
        program: { withGrad, withoutGrad: encode(instructions), readsWholeBatch: false },
        metrics: [],
        aggregation: 'token-mean',
      },
    });
  const refuses = (pattern: RegExp, ...instructions: Instruction[]) =>
    assert.throws(() => create(...instructions), pattern);

  it('read a scanned value only in the segments after its own', () => {
    const scan: Instruction = ['prefix_sum', 0, COLUMN, CONSTANT];
    create(['tokens'], scan, ['tokens'], ['loss', 0, SCANNED, CONSTANT]);
    refuses(/a scanned value cannot be read here/, ['tokens'], scan, ['loss', 0, SCANNED, CONSTANT]);
    refuses(
      /a scanned value cannot be read here/,
      ['tokens'],
      scan,
      ['tokens'],
      ['loss', 0, SCANNED + 1, CONSTANT],
    );
    refuses(/a scanned value cannot be read here/, ['tokens'], scan, ['row'], ['neg', 0, SCANNED]);
  });

  it('have at most 16 scanned values, each of which is written once in a token segment', () => {
    create(['tokens'], ['turn_sum', 15, COLUMN], ['tokens'], ['loss', 0, SCANNED + 15, CONSTANT]);
    refuses(/a value does not exist/, ['tokens'], ['turn_sum', 16, COLUMN]);
    refuses(/a value is written twice/, ['tokens'], ['turn_sum', 0, COLUMN], ['turn_sum', 0, COLUMN]);
    refuses(/an operation on tokens is not in a token segment/, ['row'], ['turn_sum', 0, CONSTANT]);
    refuses(/a decay differs among tokens/, ['tokens'], ['suffix_sum', 0, COLUMN, COLUMN]);
  });

  it('read a sum over groups only after a batch segment', () => {
    for (const op of ['group_sum', 'group_max', 'group_arg_max', 'pair_sum']) {
      const reduce: Instruction = [op, 0, CONSTANT];
      const output: Instruction = ['loss', 0, CONSTANT, ROW_VALUE];
      create(['row'], reduce, ['batch'], ['tokens'], output);
      refuses(/a row value cannot be read here/, ['row'], reduce, ['tokens'], output);
      refuses(/an operation on rows is not in a row segment/, ['tokens'], reduce);
    }
  });
});
