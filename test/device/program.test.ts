/**
 * Tests that a CUDA device interprets user-defined losses as the CPU does: it computes the same bits per token, and the
 * same loss and metrics within rounding errors. The programs are drawn at random, so every operation, reduction and kind
 * of operand occurs. Processors without fused multiply-adds are left out, because their results differ in the last bit.
 */
import assert from 'node:assert/strict';
import type {
  NativeAdvantageBatch,
  NativeBatch,
  NativeCall,
  NativeFunction,
  NativeProgramMetric,
  NativeResident,
} from '../../binding.js';
import { cuda, native } from '../../lib/base/native.js';
import { LOSS_AGG_MODES } from '../../lib/base/options.js';
import { ROW_COLUMNS } from '../../lib/batch/columns.js';
import { ADVANTAGE_FN, devices } from '../../lib/index.js';
import { FLOAT_COLUMNS } from '../reference/batch.js';
import { EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { type Half, toHalf } from '../support/half.js';
import { isInterleaved } from '../support/on-device.js';
import { drawPrograms, LARGEST_OUTPUT } from '../support/programs.js';
import { generator } from '../support/random.js';
import { packedBatch, paddedBatch } from '../support/subject.js';
import { assertNumber, assertSameArray } from '../support/tolerance.js';

const DEVICE = 0;
/** The columns of the drawn batches. The last one stands for the old entropies. */
const COLUMNS = [...FLOAT_COLUMNS, 'entropy'] as const;
/** The most columns that a program may read. */
const MOST_COLUMNS = 9;
/** The column's index in NativeColumns. */
const ADVANTAGES = 3;
/** The kind of operands that are numbers per row. */
const ROW_COLUMN = 7;
const GROUP_OPS = ['group_sum', 'group_max', 'group_arg_max'].map((name) => native.programOps.indexOf(name));
const DTYPES = ['float32', 'float16', 'bfloat16'];

interface Shape {
  rowLengths: number[];
  packed: boolean;
  /** How many programs to draw. */
  programs: number;
}
const SHAPES: Record<string, Shape> = {
  'packed rows': { rowLengths: [0, ...EDGE_LENGTHS.rowLengths!], packed: true, programs: 24 },
  'padded rows': { rowLengths: Array(9).fill(77), packed: false, programs: 40 },
  'one short row': { rowLengths: [5], packed: false, programs: 20 },
  'a hundred rows': { rowLengths: Array(100).fill(7), packed: false, programs: 20 },
  // Row sums are added up after every 1,024 positions.
  'rows of several sums': { rowLengths: [3000, 1025, 2048, 1023], packed: true, programs: 8 },
  // All warps compute pieces of rows that are longer than 4,096 tokens, unless there are many.
  'long rows': { rowLengths: [3, 12_300, 0, 8193], packed: true, programs: 8 },
  'one row of 40,000 tokens': { rowLengths: [40_000], packed: false, programs: 3 },
  'no rows': { rowLengths: [], packed: false, programs: 3 },
};

interface Drawn {
  batch: NativeBatch;
  fn: NativeFunction;
  metrics: NativeProgramMetric[];
  readsRowColumns: boolean;
  /** The arguments of the call. */
  given: Pick<NativeCall, 'mu' | 'klCoef' | 'entropyCoef' | 'normalizer'>;
  /** The largest possible sum of the absolute values of the terms of the loss. */
  magnitude: number;
}

// Draws a batch with a mask, in which the numbers of tokens and rows that do not count are NaN or Infinity.
function drawBatch(shape: Shape, seed: number): NativeBatch {
  const { integer, uniform } = generator(seed);
  const { rowLengths } = shape;
  const rows = rowLengths.length;
  const columns = Math.max(0, ...rowLengths);
  const batch = makeBatch({
    seed,
    rows,
    columns,
    values: 'moderate',
    mask: 'random',
    packed: true,
    rowLengths,
    weights: true,
  });
  const laid = shape.packed ? packedBatch(batch) : paddedBatch({ ...batch, rows, columns });
  const mask = laid.actionMask as Uint8Array;
  if (rows > 2 && integer(0, 1) === 0) mask.fill(0, 0, rowLengths[0]! + rowLengths[1]!);
  const repeats = integer(0, 2) > 0 ? Uint32Array.from(rowLengths, () => integer(0, 3)) : undefined;
  const offsets = new Int32Array(rows + 1);
  for (let row = 0; row < rows; row++) offsets[row + 1] = offsets[row]! + rowLengths[row]!;
  const hidden = Uint8Array.from(mask, (m) => (m ? 0 : 1));
  for (let row = 0; row < rows; row++)
    if (repeats?.[row] === 0) hidden.fill(1, offsets[row], offsets[row + 1]);

  const data: (Float32Array | Uint16Array)[] = [];
  const dtypes: number[] = [];
  for (const name of COLUMNS) {
    const perRow = integer(0, 4) === 0;
    const dtype = integer(0, 1) === 0 ? 0 : integer(0, 2);
    const values = perRow
      ? Float32Array.from(rowLengths, () => uniform() - 0.5)
      : (laid[name] as Float32Array);
    if (!perRow) for (let i = 0; i < values.length; i++) if (hidden[i]) values[i] = i % 3 ? NaN : Infinity;
    data.push(dtype === 0 ? values : Uint16Array.from(values, (x) => toHalf(x, DTYPES[dtype] as Half)));
    dtypes.push(dtype + (perRow ? 4 : 0));
  }
  return {
    rows,
    rowLength: columns,
    offsets: shape.packed ? offsets : undefined,
    data,
    dtypes,
    rowData: [
      ...ROW_COLUMNS.map(() =>
        Float64Array.from(rowLengths, (_, row) => (repeats?.[row] === 0 ? NaN : uniform() - 0.5)),
      ),
      nextInGroup(rowLengths.map(() => integer(0, Math.ceil(rows / 4)))),
    ],
    mask,
    expert: integer(0, 2) === 0 ? Uint8Array.from(rowLengths, () => integer(0, 1)) : undefined,
    repeats,
  };
}

// Returns the index of the next row of each row's group, or of the first one after the last.
function nextInGroup(groups: readonly number[]): Float64Array {
  return Float64Array.from(groups, (group, row) => {
    const next = groups.indexOf(group, row + 1);
    return next < 0 ? groups.indexOf(group) : next;
  });
}

function draw(shape: Shape, seed: number): Drawn {
  const { integer } = generator(seed + 0x5eed);
  const batch = drawBatch(shape, seed);
  const { program, metrics } = drawPrograms(native.programOps, MOST_COLUMNS, seed);
  const aggregation = LOSS_AGG_MODES[integer(0, LOSS_AGG_MODES.length - 1)]!;
  const kl = { name: ['k1', 'k2', 'low_var_kl+', 'corrected_k3'][integer(0, 3)]!, aggregation };
  const fn = native.createFunction({
    policyLoss: { program, metrics, aggregation },
    ...(integer(0, 2) === 0 && { kl }),
    ...(integer(0, 2) === 0 && { entropy: { usualRowsOnly: integer(0, 1) === 0, aggregation } }),
  });
  const { rows, rowLength } = batch;
  const counted = (row: number) => batch.repeats?.[row] ?? 1;
  const rowsThatCount = shape.rowLengths.reduce((sum, _, row) => sum + counted(row), 0);
  const tokensThatCount = shape.rowLengths.reduce((sum, length, row) => sum + counted(row) * length, 0);
  // The counts of a larger batch, of which this one is a part.
  const normalizer = Float64Array.of(3 * rows * rowLength + 1, 9, 2 * rows + 1, rows, rowLength);
  return {
    batch,
    fn,
    metrics,
    readsRowColumns: program.withGrad.code.some((x, i) =>
      i % 6 === 0 ? GROUP_OPS.includes(x) : i % 6 > 1 && x >> 16 === ROW_COLUMN,
    ),
    given: { mu: undefined, klCoef: 0.05, entropyCoef: -0.02, ...(integer(0, 2) === 0 && { normalizer }) },
    magnitude:
      LARGEST_OUTPUT *
      (2 * rowsThatCount + tokenWeights(aggregation, batch.rowLength, rowsThatCount, tokensThatCount)),
  };
}

// Returns an upper limit on the sum of the tokens' weights.
function tokenWeights(aggregation: string, rowLength: number, rows: number, tokens: number): number {
  switch (aggregation) {
    case 'token-sum':
      return tokens;
    case 'seq-mean-token-sum':
      return rowLength;
    case 'seq-mean-token-sum-norm':
      return rows;
    default:
      return 1;
  }
}

interface Outcome {
  values: Float64Array;
  grad?: Float32Array;
  gradEntropy?: Float32Array;
  gradLogZ?: Float32Array;
}

/** Where to evaluate, and additional arguments of the call. */
interface Options {
  device?: number;
  resident?: NativeResident;
  withGrad?: boolean;
  more?: Partial<NativeCall>;
}

function evaluate(
  { fn, batch, given }: Drawn,
  { device, resident, withGrad = true, more }: Options,
): Outcome {
  const tokens = batch.mask!.length;
  const gradients = withGrad && {
    grad: new Float32Array(tokens).fill(42),
    gradEntropy: new Float32Array(tokens).fill(42),
    gradLogZ: new Float32Array(batch.rows).fill(42),
  };
  const values = new Float64Array(native.valueNames(fn).length).fill(42);
  const call: NativeCall = {
    fn,
    batch: resident ?? batch,
    device,
    values,
    grad: undefined,
    gradEntropy: undefined,
    ...gradients,
    ...given,
    ...(resident && { repeats: batch.repeats }),
    ...more,
  };
  native.evaluate(call);
  return { values, ...gradients };
}

async function uploaded(batch: NativeBatch, inputs?: NativeAdvantageBatch): Promise<NativeResident> {
  return (await cuda.upload({ device: DEVICE, batch, inputs })) as NativeResident;
}

// Returns the values of a batch that are computed from its only part.
function mergedValues(drawn: Drawn): Float64Array {
  const part = new Float64Array(native.partLength);
  const counts = new Float64Array(5);
  const { values } = evaluate(drawn, { device: DEVICE, more: { part, counts } });
  const merged = new Float64Array(values.length);
  native.merge(drawn.fn, [part], drawn.given.normalizer ?? counts, merged);
  return merged;
}

// Returns whether values[index] is a metric of the batch.
function isOfBatch({ fn, metrics }: Drawn, index: number): boolean {
  const named = native.valueNames(fn)[index];
  return metrics.some(({ name, per }) => name === named && per === 'batch');
}

// Returns the values of a batch that may be a part of a larger one. It has no metrics of the batch.
function ofPart(drawn: Drawn, values: Float64Array): Float64Array {
  return values.map((value, i) => (isOfBatch(drawn, i) ? NaN : value));
}

function assertGradients(actual: Outcome, expected: Outcome, what: string): void {
  for (const name of ['grad', 'gradEntropy', 'gradLogZ'] as const)
    assertSameArray(actual[name]!, expected[name]!, `${what}: ${name}`);
}

// The metrics of the batch are computed from numbers that have the same bits on all devices.
function assertAgrees(drawn: Drawn, actual: Outcome, expected: Outcome, what: string): void {
  assertGradients(actual, expected, what);
  native.valueNames(drawn.fn).forEach((name, i) => {
    const [found, value] = [actual.values[i]!, expected.values[i]!];
    if (Number.isNaN(value) || isOfBatch(drawn, i)) assert.equal(found, value, `${what}: ${name}`);
    else assertNumber(found, value, `${what}: ${name}`, drawn.magnitude);
  });
}

describe('user-defined losses on a CUDA device', () => {
  before(function () {
    if (devices()[0]!.isa === 'sse4') this.skip();
  });

  for (const [name, shape] of Object.entries(SHAPES))
    it(`compute the same as on the CPU: ${name}`, async () => {
      let finite = 0;
      const programs = isInterleaved ? Math.max(2, Math.ceil(shape.programs / 4)) : shape.programs;
      for (let seed = 1; seed <= programs; seed++) {
        const drawn = draw(shape, seed);
        const expected = evaluate(drawn, {});
        const actual = evaluate(drawn, { device: DEVICE });
        assertAgrees(drawn, actual, expected, `program ${seed}`);
        const without = evaluate(drawn, { device: DEVICE, withGrad: false });
        assert.deepEqual(without.values, actual.values, `program ${seed} without a gradient`);
        assert.deepEqual(mergedValues(drawn), ofPart(drawn, actual.values), `program ${seed} as a part`);
        if (drawn.batch.mask!.length === 0) continue;
        const resident = await uploaded(drawn.batch);
        const again = evaluate(drawn, { resident });
        cuda.release(resident);
        assertGradients(again, actual, `program ${seed} on a resident batch`);
        assert.deepEqual(again.values, actual.values, `program ${seed} on a resident batch`);
        if (expected.grad!.some((x) => x !== 0 && Number.isFinite(x))) finite++;
      }
      if (shape.rowLengths.length > 0)
        assert.ok(finite >= programs / 4, `${finite} programs with a gradient`);
    });

  it('refuse a batch without the numbers per row that they read', async () => {
    let refused = 0;
    for (let seed = 1; seed <= 20; seed++) {
      const drawn = draw(SHAPES['padded rows']!, seed);
      const lacking = { ...drawn, batch: { ...drawn.batch, rowData: undefined } };
      const resident = await uploaded(lacking.batch);
      for (const options of [{ device: DEVICE }, { resident }]) {
        const call = () => evaluate(lacking, options);
        if (drawn.readsRowColumns) assert.throws(call, /TypeError: a row column is missing/);
        else assert.deepEqual(call(), evaluate(drawn, options));
      }
      cuda.release(resident);
      if (drawn.readsRowColumns) refused++;
    }
    assert.ok(refused > 5 && refused < 20, `${refused} refused`);
  });

  it('use the advantages and the repeats that an advantage function computes in the same call', async () => {
    const shape = SHAPES['padded rows']!;
    const fn = native.createAdvantage(ADVANTAGE_FN.create('grpo', { std_threshold: 0.01 }).definition.native);
    const rows = shape.rowLengths.length;
    // The rewards of the first group are equal, so its rows do not count.
    const rewards = Float64Array.from({ length: rows }, (_, row) => (row < 3 ? 1 : row % 4));
    const groups = Int32Array.from({ length: rows }, (_, row) => Math.floor(row / 3));
    for (let seed = 1; seed <= 20; seed++) {
      const drawn = draw(shape, seed);
      drawn.batch.repeats = undefined;
      const inputs = {
        ...drawn.batch,
        data: [],
        dtypes: [],
        rewards,
        baselines: undefined,
        groups,
        runs: undefined,
      };
      const shared = {
        seed: 1,
        values: new Float64Array(native.advantageValueNames(fn).length),
        notFiniteRow: new Float64Array(1),
      };
      const scores = new Float32Array(rows);
      const repeats = new Uint32Array(rows);
      native.advantages({
        ...shared,
        fn,
        batch: inputs,
        scores,
        repeats,
        advantages: undefined,
        returns: undefined,
      });
      assert.deepEqual([...repeats.subarray(0, 4)], [0, 0, 0, 1]);
      const data = drawn.batch.data.with(ADVANTAGES, scores);
      const dtypes = drawn.batch.dtypes.with(ADVANTAGES, 4);
      const expected = evaluate({ ...drawn, batch: { ...drawn.batch, data, dtypes, repeats } }, {});
      const resident = await uploaded(drawn.batch, inputs);
      const actual = evaluate(drawn, { resident, more: { advantage: { ...shared, fn } } });
      cuda.release(resident);
      assertAgrees(drawn, actual, expected, `program ${seed}`);
    }
  });
});
