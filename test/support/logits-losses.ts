/** Draws batches for the losses from logits, and lays them out as the library takes them. */
import type { Batch } from '../../lib/index.js';
import { FLOAT_COLUMNS, rowPositions } from '../reference/batch.js';
import type { ReferenceBatch } from '../reference/index.js';
import type { BatchSpec } from './draw.js';
import { fromHalf, type Half, toHalf } from './half.js';
import { generator } from './random.js';

export interface LogitsBatchSpec {
  seed: number;
  rows: number;
  columns: number;
  /** By default, every row has `columns` tokens. */
  rowLengths?: readonly number[];
  vocabulary: number;
  /** The length of the teacher's lists. */
  listed: number;
  /**
   * How far the teacher is from the student. With "infinite", some entries are -Infinity for both, and some lists are
   * shorter than others.
   */
  values: 'moderate' | 'wide' | 'equal' | 'infinite';
  mask: BatchSpec['mask'];
}

/** Columns with one or more numbers per token. */
const LOGITS = ['logits', 'teacherLogits', 'refLogits'] as const;
const FLOATS = [...FLOAT_COLUMNS, 'probs', 'teacherProbs', 'teacherTopkLogprobs', 'targetProbs'] as const;
const IDS = ['targets', 'teacherTopkIds'] as const;
const MASKS = ['actionMask', 'distillMask', 'teacherActionMask'] as const;
const TOKEN_COLUMNS = [...LOGITS, ...FLOATS, ...IDS, ...MASKS] as const;
type TokenColumn = (typeof TOKEN_COLUMNS)[number];

function columnsOf<K extends TokenColumn>(
  batch: ReferenceBatch,
  names: readonly K[],
): [K, ArrayLike<number>][] {
  return names.flatMap((name): [K, ArrayLike<number>][] => {
    const column = batch[name];
    return column ? [[name, column]] : [];
  });
}

/** Draws a batch that has the inputs of every loss from logits. Only unmasked tokens have a meaning. */
export function makeLogitsBatch(spec: LogitsBatchSpec): ReferenceBatch {
  const { uniform, normal, integer } = generator(spec.seed);
  const { rows, columns, vocabulary: size, listed } = spec;
  const tokens = rows * columns;
  const wide = () => new Float64Array(tokens * size);
  const [logits, teacherLogits, refLogits, probs, teacherProbs] = [wide(), wide(), wide(), wide(), wide()];
  const perToken = () => new Float64Array(tokens);
  const [oldLogprob, teacherLogprob, targets] = [perToken(), perToken(), perToken()];
  const teacherTopkIds = new Float64Array(tokens * listed);
  const teacherTopkLogprobs = new Float64Array(tokens * listed);
  const spread = spec.values === 'wide' ? 4 : 2;
  const apart = { moderate: 0.7, infinite: 0.7, equal: 0, wide: 4 }[spec.values];

  for (let at = 0; at < tokens; at++) {
    const target = integer(0, size - 1);
    targets[at] = target;
    for (let id = 0; id < size; id++) {
      const isInfinite = spec.values === 'infinite' && id !== target && uniform() < 0.2;
      const x = isInfinite ? Number.NEGATIVE_INFINITY : Math.fround(spread * normal());
      const near = () => (isInfinite ? x : Math.fround(x + apart * normal()));
      logits[at * size + id] = x;
      teacherLogits[at * size + id] = near();
      refLogits[at * size + id] = near();
    }
    const logprobs = (of: Float64Array) => logSoftmax(of.subarray(at * size, (at + 1) * size));
    const [own, teacher] = [logprobs(logits), logprobs(teacherLogits)];
    for (let id = 0; id < size; id++) {
      probs[at * size + id] = Math.fround(Math.exp(own[id]!));
      teacherProbs[at * size + id] = Math.fround(Math.exp(teacher[id]!));
    }
    oldLogprob[at] = Math.fround(own[target]! + 0.2 * normal());
    teacherLogprob[at] = Math.fround(teacher[target]!);
    const ids = listOf(teacher, target, listed, uniform());
    ids.forEach((id, i) => {
      teacherTopkIds[at * listed + i] = id;
      teacherTopkLogprobs[at * listed + i] = id < 0 ? Number.NEGATIVE_INFINITY : Math.fround(teacher[id]!);
    });
  }
  const actionMask = maskOf(spec);
  const floats = (value: () => number) => Float64Array.from({ length: tokens }, () => Math.fround(value()));
  return {
    rows,
    columns,
    ...(spec.rowLengths && { rowLengths: [...spec.rowLengths] }),
    actionMask,
    logits,
    teacherLogits,
    refLogits,
    probs,
    teacherProbs,
    targets,
    teacherTopkIds,
    teacherTopkLogprobs,
    oldLogprob,
    teacherLogprob,
    advantages: floats(normal),
    tokenWeights: floats(() => (uniform() < 0.2 ? 0 : 2 * uniform())),
    targetProbs: floats(uniform),
    distillMask: Uint8Array.from(actionMask, (flag) => (flag && uniform() < 0.8 ? 1 : 0)),
    teacherActionMask: actionMask.slice(),
    sampleMask: Array.from({ length: rows }, () => (uniform() < 0.8 ? 1 : 0)),
    selfDistillationMask: Array.from({ length: rows }, () => (uniform() < 0.8 ? 1 : 0)),
    studentMatchedIds: everySecond(size, 0),
    teacherMatchedIds: everySecond(size, 1),
  };
}

const everySecond = (size: number, first: 0 | 1) =>
  Array.from({ length: Math.floor(size / 2) }, (_, i) => 2 * i + first);

function logSoftmax(logits: Float64Array): Float64Array {
  const most = logits.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
  const sum = logits.reduce((total, x) => total + Math.exp(x - most), 0);
  return logits.map((x) => x - most - Math.log(sum));
}

/** The likeliest ids. In half of the lists, the target replaces the last one if it is not among them. −1 is no entry. */
function listOf(teacher: Float64Array, target: number, length: number, chance: number): number[] {
  const ids = [...teacher.keys()]
    .filter((id) => teacher[id]! > Number.NEGATIVE_INFINITY)
    .sort((a, b) => teacher[b]! - teacher[a]!)
    .slice(0, length);
  if (chance < 0.5 && !ids.includes(target)) ids[ids.length - 1] = target;
  return Array.from({ length }, (_, i) => ids[i] ?? -1);
}

function maskOf({ seed, rows, columns, rowLengths, mask }: LogitsBatchSpec): Uint8Array {
  const { uniform, integer } = generator(seed + 0x3a5c);
  const out = new Uint8Array(rows * columns);
  for (let b = 0; b < rows; b++) {
    const length = rowLengths?.[b] ?? columns;
    const [prefix, isEmpty] = [integer(0, length), uniform() < 0.5];
    for (let t = 0; t < length; t++) {
      const kinds = {
        ones: true,
        prefix: t < prefix,
        random: uniform() < 0.6,
        emptyrows: !isEmpty,
        zero: false,
      };
      out[b * columns + t] = kinds[mask] ? 1 : 0;
    }
  }
  return out;
}

/** Returns the tokens at these positions in this order; at −1, zeros. `more` describes the new layout. */
function moved(
  batch: ReferenceBatch,
  places: readonly number[],
  more: Pick<ReferenceBatch, 'rows' | 'columns'>,
): ReferenceBatch {
  const { rowLengths: _, ...others } = batch;
  const tokens = batch.rows * batch.columns;
  const out: ReferenceBatch = { ...others, ...more };
  for (const [name, column] of columnsOf(batch, TOKEN_COLUMNS)) {
    if (column.length < tokens) continue; // One number per row.
    const width = column.length / tokens;
    const values = new Float64Array(places.length * width);
    places.forEach((place, i) => {
      if (place >= 0) for (let k = 0; k < width; k++) values[i * width + k] = column[place * width + k]!;
    });
    out[name] = values;
  }
  return out;
}

/** Returns padded rows of so many columns. The padding is masked and holds zeros. */
export function widened(batch: ReferenceBatch, columns: number): ReferenceBatch {
  const places = Array.from({ length: batch.rows }, (_, b) => {
    const own = rowPositions(batch, b);
    return Array.from({ length: columns }, (_, t) => own[t] ?? -1);
  });
  return moved(batch, places.flat(), { rows: batch.rows, columns });
}

/** Returns some rows of a batch. */
export function someRows(batch: ReferenceBatch, rows: readonly number[]): ReferenceBatch {
  const { columns, rowLengths } = batch;
  const places = rows.flatMap((b) => Array.from({ length: columns }, (_, t) => b * columns + t));
  const part = moved(batch, places, { rows: rows.length, columns });
  const perRow = (['sampleMask', 'selfDistillationMask', 'advantages'] as const).flatMap((name) => {
    const column = batch[name];
    return column?.length === batch.rows ? [[name, rows.map((b) => column[b]!)]] : [];
  });
  return {
    ...part,
    ...Object.fromEntries(perRow),
    ...(rowLengths && { rowLengths: rows.map((b) => rowLengths[b]!) }),
  };
}

/** Replaces everything that belongs to tokens that no mask chooses. */
export function poisonedLogits(batch: ReferenceBatch, value: number): ReferenceBatch {
  const tokens = batch.rows * batch.columns;
  const out = { ...batch };
  const unread = Array.from(batch.actionMask, (_, at) => at).filter(
    (at) => !batch.actionMask[at] && !batch.distillMask?.[at],
  );
  const change = (names: readonly TokenColumn[], by: number) => {
    for (const [name, column] of columnsOf(batch, names)) {
      if (column.length < tokens) continue;
      const width = column.length / tokens;
      const values = new Float64Array(column);
      for (const at of unread) values.fill(by, at * width, (at + 1) * width);
      out[name] = values;
    }
  };
  change([...LOGITS, ...FLOATS], value);
  change(IDS, 2 ** 31 - 1);
  return out;
}

/** The positions of the tokens of all rows. */
export const everyPosition = (batch: ReferenceBatch): number[] =>
  Array.from({ length: batch.rows }, (_, b) => rowPositions(batch, b)).flat();

/** Returns numbers with one or more per token of a packed batch in the padded layout, with 0 beyond the rows. */
export function unpacked(batch: ReferenceBatch, packed: ArrayLike<number>): Float32Array {
  const places = everyPosition(batch);
  const width = places.length === 0 ? 0 : packed.length / places.length;
  const out = new Float32Array(batch.rows * batch.columns * width);
  places.forEach((place, i) => {
    for (let k = 0; k < width; k++) out[place * width + k] = packed[i * width + k]!;
  });
  return out;
}

const inDType = (values: ArrayLike<number>, dtype: 'float32' | Half) =>
  dtype === 'float32'
    ? new Float32Array(values)
    : { data: new Uint16Array(new Float64Array(values).map((x) => toHalf(x, dtype))), dtype };

/** Returns a batch whose logits are rounded to 16 bits. */
export function roundedLogits(batch: ReferenceBatch, dtype: Half): ReferenceBatch {
  const rounded = columnsOf(batch, LOGITS).map(([name, column]) => [
    name,
    new Float64Array(column).map((x) => fromHalf(toHalf(x, dtype), dtype)),
  ]);
  return { ...batch, ...Object.fromEntries(rounded) };
}

/** Returns a batch as the library takes it: packed if it has row lengths, and padded otherwise. */
export function layLogits(batch: ReferenceBatch, dtype: 'float32' | Half = 'float32'): Batch {
  const places = everyPosition(batch);
  const { rows, columns, rowLengths } = batch;
  const laid = rowLengths ? moved(batch, places, { rows, columns }) : batch;
  const cuSeqlens = Int32Array.from({ length: rows + 1 }, (_, b) =>
    (rowLengths ?? []).slice(0, b).reduce((sum, length) => sum + length, 0),
  );
  const of = <K extends TokenColumn>(names: readonly K[], typed: (column: ArrayLike<number>) => unknown) =>
    Object.fromEntries(columnsOf(laid, names).map(([name, column]) => [name, typed(column)]));
  const flags = (['sampleMask', 'selfDistillationMask'] as const).flatMap((name) =>
    batch[name] ? [[name, Uint8Array.from(batch[name])]] : [],
  );
  const ids = (['studentMatchedIds', 'teacherMatchedIds'] as const).flatMap((name) =>
    batch[name] ? [[name, Int32Array.from(batch[name])]] : [],
  );
  return {
    ...(rowLengths ? { cuSeqlens } : { shape: [rows, columns] }),
    ...of(LOGITS, (column) => inDType(column, dtype)),
    ...of(FLOATS, (column) => new Float32Array(column)),
    ...of(IDS, (column) => new Int32Array(column)),
    ...of(MASKS, (column) => new Uint8Array(column)),
    ...Object.fromEntries([...flags, ...ids]),
  } as Batch;
}
