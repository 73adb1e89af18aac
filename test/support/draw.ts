/**
 * Draws batches and arguments for property tests. A batch is drawn as a short description, and a seeded generator makes
 * its values from it. So fast-check can shrink a failure to a small shape, and what it prints is enough to repeat the
 * failure.
 */
import fc from 'fast-check';
import type { Batch } from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import { FLOAT_COLUMNS } from '../reference/batch.js';
import { type ReferenceBatch, standsOnEdge } from '../reference/index.js';
import { fromHalf, type Half, toHalf } from './half.js';
import { generator } from './random.js';
import { pack, packedBatch, paddedBatch, type Subject } from './subject.js';

export interface BatchSpec {
  seed: number;
  rows: number;
  columns: number;
  values: 'moderate' | 'onpolicy' | 'wide';
  mask: 'ones' | 'prefix' | 'random' | 'emptyrows' | 'zero';
  packed: boolean;
  /** Whether the batch has weights of tokens. */
  weights?: boolean;
  /** The row lengths of a packed batch. By default, they are drawn at random. */
  rowLengths?: number[];
}

/** Packed rows with lengths on both sides of the numbers of tokens at which loops, tiles and sums end. */
export const EDGE_LENGTHS: BatchSpec = {
  seed: 21,
  rows: 10,
  columns: 2100,
  rowLengths: [1, 31, 33, 64, 65, 500, 1023, 1025, 2048, 2100],
  values: 'moderate',
  mask: 'random',
  packed: true,
};

export const batchSpec: fc.Arbitrary<BatchSpec> = fc.record({
  seed: fc.nat(),
  rows: fc.integer({ min: 1, max: 9 }),
  columns: fc.integer({ min: 1, max: 70 }),
  values: fc.constantFrom('moderate', 'onpolicy', 'wide'),
  mask: fc.constantFrom('ones', 'prefix', 'random', 'emptyrows', 'zero'),
  packed: fc.boolean(),
});

/**
 * Draws three of a kind. To make a loss takes longer than to compute a small batch, so tests with drawn arguments compute
 * three batches with each loss.
 */
export const three = <T>(drawn: fc.Arbitrary<T>): fc.Arbitrary<T[]> =>
  fc.array(drawn, { minLength: 3, maxLength: 3 });

/** Batches with at least so many tokens are remembered. */
const LONG = 8192;
/** The number of tokens in all batches that are remembered. */
const MOST = 2 ** 21;

/**
 * Makes a function that draws batches, as `draw` does, and remembers the long ones. Drawing a long batch takes longer than
 * computing a loss, and most functions are tested on the same batches.
 */
function remembered<Spec extends BatchSpec, Drawn>(draw: (spec: Spec) => Drawn): (spec: Spec) => Drawn {
  const known = new Map<string, { drawn: Drawn; tokens: number }>();
  let sum = 0;
  return (spec) => {
    const tokens = spec.rows * spec.columns;
    if (tokens < LONG) return draw(spec);
    const key = JSON.stringify(spec);
    const before = known.get(key);
    if (before) return before.drawn;
    for (const [oldest, { tokens: forgotten }] of known) {
      if (sum + tokens <= MOST) break;
      known.delete(oldest);
      sum -= forgotten;
    }
    const drawn = draw(spec);
    known.set(key, { drawn, tokens });
    sum += tokens;
    return drawn;
  };
}

/** Draws a batch. Callers must not change its arrays, because long batches are remembered. */
export const makeBatch = remembered(drawBatch);

function drawBatch(spec: BatchSpec): ReferenceBatch {
  const { uniform, normal, integer } = generator(spec.seed);
  const { rows } = spec;
  const rowLengths = spec.packed
    ? (spec.rowLengths ?? Array.from({ length: rows }, () => integer(1, spec.columns)))
    : undefined;
  const columns = rowLengths ? Math.max(...rowLengths) : spec.columns;
  const lengthOf = (b: number) => rowLengths?.[b] ?? columns;

  const column = () => new Float64Array(rows * columns);
  const [logprob, oldLogprob, refLogprob, advantages] = [column(), column(), column(), column()];
  const [entropy, actionMask] = [column(), column()];
  for (let b = 0; b < rows; b++) {
    const prefix = integer(0, lengthOf(b));
    const empty = uniform() < 0.5;
    for (let t = 0; t < lengthOf(b); t++) {
      const at = b * columns + t;
      const lp = spec.values === 'wide' ? -25 * uniform() : -1.5 * Math.abs(normal());
      logprob[at] = lp;
      if (spec.values === 'moderate') {
        oldLogprob[at] = lp + 0.2 * normal();
        refLogprob[at] = lp + 0.3 * normal();
      } else if (spec.values === 'wide') {
        oldLogprob[at] = -25 * uniform();
        refLogprob[at] = -25 * uniform();
      } else {
        oldLogprob[at] = lp;
        refLogprob[at] = lp;
      }
      advantages[at] = uniform() < 0.05 ? 0 : normal();
      entropy[at] = 2 * uniform();
      const unmasked = {
        ones: true,
        prefix: t < prefix,
        random: uniform() < 0.6,
        emptyrows: !empty,
        zero: false,
      }[spec.mask];
      actionMask[at] = unmasked ? 1 : 0;
    }
  }
  // The engine reads float32. Rounding here gives the engine and the reference exactly the same numbers.
  const rounded = (column: Float64Array, change = (x: number) => x) => {
    const out = new Float64Array(column.length);
    for (let b = 0; b < rows; b++) {
      const end = b * columns + lengthOf(b);
      for (let i = b * columns; i < end; i++) out[i] = Math.fround(change(column[i]!));
    }
    return out;
  };
  const nearOld = (spread: number) =>
    rounded(oldLogprob, (old) => (spec.values === 'wide' ? -25 * uniform() : old + spread * normal()));
  const kinds = uniform();
  // In a tenth of the batches the policy wrote all rows, and in another tenth an expert wrote all rows.
  const expertMask = Array.from({ length: rows }, () => (kinds < 0.1 ? 0 : kinds > 0.9 ? 1 : integer(0, 1)));
  return {
    rows,
    columns,
    ...(rowLengths ? { rowLengths } : {}),
    logprob: rounded(logprob),
    oldLogprob: rounded(oldLogprob),
    refLogprob: rounded(refLogprob),
    advantages: rounded(advantages),
    entropy: rounded(entropy),
    rolloutLogprob: nearOld(0.1),
    proxLogprob: nearOld(0.2),
    teacherLogprob: nearOld(0.5),
    oldEntropy: rounded(entropy, (h) => (spec.values === 'onpolicy' ? h : h * Math.exp(0.3 * normal()))),
    actionMask,
    expertMask,
    step: Array.from({ length: rows }, () => 60),
    rewards: Array.from({ length: rows }, normal),
    vStar: Array.from({ length: rows }, normal),
    probability: Array.from({ length: rows }, uniform),
    logZ: Array.from({ length: rows }, normal),
    groupIds: Array.from({ length: rows }, () => integer(0, Math.floor(rows / 3))),
    ...drawValues(spec, columns, lengthOf, actionMask),
  };
}

/** Draws the columns of losses of values and of rewards. */
function drawValues(
  spec: BatchSpec,
  columns: number,
  lengthOf: (row: number) => number,
  actionMask: ArrayLike<number>,
): Partial<ReferenceBatch> {
  const { uniform, normal, integer } = generator(spec.seed + 0xc4171c);
  const perRow = <T>(value: (row: number) => T) => Array.from({ length: spec.rows }, (_, row) => value(row));
  const column = () => new Float64Array(spec.rows * columns);
  const perToken = (value: () => number) => column().map(() => Math.fround(value()));
  const [values, oldValues, returns, attentionMask] = [column(), column(), column(), column()];
  const scale = spec.values === 'wide' ? 20 : 1;
  for (let row = 0; row < spec.rows; row++)
    for (let at = row * columns; at < row * columns + lengthOf(row); at++) {
      const old = Math.fround(scale * normal());
      oldValues[at] = old;
      values[at] = spec.values === 'onpolicy' ? old : Math.fround(old + scale * normal());
      returns[at] = Math.fround(old + scale * normal());
      attentionMask[at] = actionMask[at] && uniform() < 0.9 ? 1 : 0;
    }
  const margins = perRow(() => 0.5 * normal());
  const weight = () => (uniform() < 0.2 ? 0 : Math.fround(2 * uniform()));
  return {
    ...(spec.weights && { tokenWeights: Array.from(values, weight) }),
    values,
    oldValues,
    returns,
    attentionMask,
    sampleMask: perRow(() => (uniform() < 0.8 ? 1 : 0)),
    margin: perRow((row) => margins[row - (row % 2)]!),
    lossMaskSum: perRow((row) => integer(1, 2 * lengthOf(row))),
    logSumSqProb: perToken(() => -2 * uniform()),
    entropyOther: perToken(() => -3 * uniform()),
    label: perRow(() => integer(0, 1)),
    probDesirable: perRow(uniform),
    chosen: perRow((row) => (margins[row - (row % 2)]! > 0 ? 1 : 0)),
    klLogprob: perToken(() => -2 * uniform()),
    klRefLogprob: perToken(() => -2.2 * uniform()),
    klActionMask: perToken(() => (uniform() < 0.7 ? 1 : 0)),
    rolloutIds: perRow(() => integer(0, Math.floor(spec.rows / 2))),
  };
}

export interface RewardSpec extends BatchSpec {
  groups: 'one' | 'each' | 'some';
  rewards: 'normal' | 'binary' | 'equal' | 'large';
  /** Whether the batch has token-level rewards. If not, each row's reward counts at its last unmasked token. */
  perToken: boolean;
}

export const rewardSpec: fc.Arbitrary<RewardSpec> = fc
  .tuple(
    batchSpec,
    fc.record({
      groups: fc.constantFrom('one', 'each', 'some', 'some'),
      rewards: fc.constantFrom('normal', 'binary', 'equal', 'large'),
      perToken: fc.boolean(),
    }),
  )
  .map(([spec, more]) => ({ ...spec, ...more }));

/**
 * Draws a batch that has the inputs of every advantage function, and also a column of advantages. Callers must not change
 * its arrays.
 */
export const makeRewarded = remembered(drawRewarded);

function drawRewarded(spec: RewardSpec): RewardedBatch {
  const batch = makeBatch(spec);
  const { uniform, normal, integer } = generator(spec.seed + 0x5eed);
  const same = normal();
  const reward = {
    normal,
    binary: () => integer(0, 1),
    equal: () => same,
    large: () => 10_000 + 100 * normal(),
  }[spec.rewards];
  const perRow = (value: (b: number) => number) => Array.from({ length: spec.rows }, (_, b) => value(b));
  const perToken = (value: () => number) =>
    Array.from({ length: spec.rows * batch.columns }, () => Math.fround(value()));
  /** Draws the probabilities of the other words, between very many unlikely ones and a single one. */
  const sumPiSquared = (oldLogprob: number) =>
    Math.fround(Math.exp(oldLogprob) ** 2 + (1 - Math.exp(oldLogprob)) ** 2 * uniform());
  const group = { one: () => 0, each: (b: number) => b, some: () => integer(0, Math.floor(spec.rows / 3)) };
  return {
    ...batch,
    rewards: perRow(() => Math.fround(reward())),
    groupIds: perRow(group[spec.groups]),
    runIds: perRow(() => integer(0, 2)),
    datasetIds: perRow((b) => b % 3),
    rewardBaselines: perRow(() => Math.fround(normal())),
    ...(spec.perToken ? { tokenLevelRewards: perToken(() => (uniform() < 0.5 ? 0 : reward())) } : {}),
    sumPiSquared: Array.from(batch.oldLogprob!, sumPiSquared),
    rolloutIsWeights: perToken(() => Math.exp(0.3 * normal())),
  };
}

const TOKEN_COLUMNS = ['tokenLevelRewards', 'sumPiSquared', 'rolloutIsWeights'] as const;
const ROW_COLUMNS = ['rewards', 'rewardBaselines'] as const;
const ID_COLUMNS = ['groupIds', 'runIds', 'datasetIds'] as const;

/** Returns the batch as the library takes it: packed if it has row lengths, and padded otherwise. */
export function layOut(batch: RewardedBatch): Batch & Record<string, unknown> {
  const laid = batch.rowLengths ? packedBatch(batch) : paddedBatch(batch);
  for (const name of TOKEN_COLUMNS) {
    const column = batch[name];
    if (column) laid[name] = new Float32Array(batch.rowLengths ? pack(batch, column) : column);
  }
  for (const name of ROW_COLUMNS) if (batch[name]) laid[name] = Float64Array.from(batch[name]);
  for (const name of ID_COLUMNS) if (batch[name]) laid[name] = Array.from(batch[name]);
  return laid;
}

interface InHalf {
  rounded: RewardedBatch;
  laid: Batch & Record<string, unknown>;
}

const halves: Record<Half, WeakMap<RewardedBatch, InHalf>> = {
  float16: new WeakMap(),
  bfloat16: new WeakMap(),
};

/**
 * Returns the batch with its columns rounded to 16 bits, and the same batch as the library takes it, in 16-bit columns.
 * Returns the same arrays for the same batch, so callers must not change them.
 */
export function inHalf(batch: RewardedBatch, dtype: Half): InHalf {
  const known = halves[dtype].get(batch) ?? toHalves(batch, dtype);
  halves[dtype].set(batch, known);
  return known;
}

function toHalves(batch: RewardedBatch, dtype: Half): InHalf {
  const rounded = { ...batch };
  const names = [...FLOAT_COLUMNS, ...TOKEN_COLUMNS].filter((name) => batch[name]);
  for (const name of names) {
    const out = new Float64Array(batch[name]!);
    for (let i = 0; i < out.length; i++) out[i] = fromHalf(toHalf(out[i]!, dtype), dtype);
    rounded[name] = out;
  }
  const laid = layOut(rounded);
  for (const name of names) {
    const column = laid[name] as Float32Array;
    const data = new Uint16Array(column.length);
    for (let i = 0; i < data.length; i++) data[i] = toHalf(column[i]!, dtype);
    laid[name] = { data, dtype };
  }
  return { rounded, laid };
}

/**
 * Tries one seed after another, beginning with the seed of `spec`. Returns the first batch in which no token is on a
 * threshold of the subject's formula.
 */
export function makeBatchOffEdges(spec: BatchSpec, subject: Subject): ReferenceBatch {
  for (let tried = 0; tried < 1000; tried++) {
    const batch = makeBatch({ ...spec, seed: spec.seed + tried });
    if (!standsOnEdge(subject.formula, subject.args, batch)) return batch;
  }
  throw new Error('every seed leaves a token on a threshold');
}

const layouts = new WeakMap<ReferenceBatch, Batch & Record<string, unknown>>();

/**
 * Returns the batch as the library takes it: packed if it has row lengths, and padded otherwise. Returns the same arrays
 * for the same batch, so callers must not change them.
 */
export function laidOut(batch: ReferenceBatch): Batch & Record<string, unknown> {
  const known = layouts.get(batch) ?? (batch.rowLengths ? packedBatch(batch) : paddedBatch(batch));
  layouts.set(batch, known);
  return known;
}
