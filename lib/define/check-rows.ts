// The batches on which checkLoss() computes a loss: rows with padding, and the same rows in other layouts.
import type { Batch } from '../batch/batch.js';
import { COLUMNS, type ColumnName, inputRow, ROW_DATA, type RowDataName } from '../batch/columns.js';

/** Numbers or flags of rows, or the ids of their groups. */
export type RowData = Float64Array | Uint8Array | Int32Array;

/** Padded rows of float32 columns. */
export interface Rows {
  readonly rows: number;
  /** The length of each row. */
  readonly columns: number;
  /** One value per token. */
  readonly floats: ReadonlyMap<ColumnName, Float32Array>;
  /** One value per row. */
  readonly numbers: ReadonlyMap<RowDataName, RowData>;
  readonly mask: Uint8Array;
  /** One flag per row: whether an expert wrote it. */
  readonly expert: Uint8Array | undefined;
  /** The trainer's step. */
  readonly step: number | undefined;
}

// Rows may belong together in pairs or in threes.
const DRAWN_ROWS = 12;
const DRAWN_COLUMNS = 13;

/**
 * Draws rows that have all columns, of different lengths, with masked tokens between unmasked ones.
 * @param reads the columns that the loss reads. Without token_weights among them, the rows have none.
 */
export function drawRows(reads: readonly ColumnName[]): Rows {
  const random = generator(20_240_901);
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  const size = DRAWN_ROWS * DRAWN_COLUMNS;
  const logprob = Float32Array.from({ length: size }, () => -0.05 - 3 * random());
  const floats = (name: ColumnName) => {
    if (name === 'logprob') return logprob;
    if (name.endsWith('_logprob')) return logprob.map((x) => x + 0.3 * normal());
    return logprob.map(name === 'advantages' ? normal : () => 2 * random());
  };
  const drawn = COLUMNS.filter((name) => name !== 'token_weights' || reads.includes(name));
  const numbers = (name: RowDataName): RowData => {
    if (name === 'group_ids') return Int32Array.from({ length: DRAWN_ROWS }, (_, b) => b % 3);
    if (inputRow(name).type === 'flags')
      return Uint8Array.from({ length: DRAWN_ROWS }, (_, b) => Number(b % 4 !== 3));
    return Float64Array.from({ length: DRAWN_ROWS }, name === 'probability' ? random : normal);
  };
  return {
    rows: DRAWN_ROWS,
    columns: DRAWN_COLUMNS,
    floats: new Map(drawn.map((name) => [name, floats(name)])),
    // Pairs of rows alternate.
    numbers: new Map(ROW_DATA.filter((name) => name !== 'pair_ids').map((name) => [name, numbers(name)])),
    mask: Uint8Array.from({ length: size }, (_, i) => Number(isDrawnUnmasked(i, random()))),
    expert: Uint8Array.from({ length: DRAWN_ROWS }, (_, b) => Number(b % 4 >= 2)),
    step: 10,
  };
}

// Row 0 is full, and each other row is shorter than the one before. One in six tokens within a row is masked.
function isDrawnUnmasked(index: number, draw: number): boolean {
  const row = Math.floor(index / DRAWN_COLUMNS);
  return row === 0 || (index % DRAWN_COLUMNS < DRAWN_COLUMNS - row && draw > 1 / 6);
}

// Returns a generator of numbers from 0 up to, but not including, 1 (mulberry32).
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Returns rows as a padded batch. Columns beyond the rows' own are masked. */
export function padded(rows: Rows, columns = rows.columns): Batch {
  const widen = <T extends Float32Array | Uint8Array>(values: T, out: T): T => {
    for (let b = 0; b < rows.rows; b++)
      out.set(values.subarray(b * rows.columns, (b + 1) * rows.columns), b * columns);
    return out;
  };
  const size = rows.rows * columns;
  const floats = [...rows.floats].map(([name, values]) => [
    name,
    columns === rows.columns ? values : widen(values, new Float32Array(size)),
  ]);
  return {
    shape: [rows.rows, columns],
    ...others(rows, widen(rows.mask, new Uint8Array(size))),
    ...Object.fromEntries(floats),
  };
}

/**
 * Returns rows as a packed batch, and the position in the padded rows of each of its tokens. Masked tokens at the end of
 * a row are left out, except in the first row, so that the longest row keeps its length.
 */
export function packed(rows: Rows): { batch: Batch; positions: readonly number[] } {
  const positions: number[] = [];
  const offsets = [0];
  for (let b = 0; b < rows.rows; b++) {
    const first = b * rows.columns;
    const last = rows.mask.subarray(first, first + rows.columns).findLastIndex((x) => x !== 0);
    const length = b === 0 ? rows.columns : last + 1;
    for (let t = 0; t < length; t++) positions.push(first + t);
    offsets.push(positions.length);
  }
  const floats = [...rows.floats].map(([name, values]) => [
    name,
    Float32Array.from(positions, (i) => values[i]!),
  ]);
  const mask = Uint8Array.from(positions, (i) => rows.mask[i]!);
  const batch = { cuSeqlens: offsets, ...others(rows, mask), ...Object.fromEntries(floats) };
  return { batch, positions };
}

function others({ numbers, expert, step }: Rows, mask: Uint8Array): Batch {
  return {
    ...Object.fromEntries(numbers),
    actionMask: mask,
    ...(expert && { expertMask: expert }),
    ...(step !== undefined && { step }),
  };
}

/** Returns the rows from `begin` up to, but not including, `end`. */
export function slice(rows: Rows, begin: number, end: number): Rows {
  const { columns } = rows;
  const cut = <T extends Float32Array | Uint8Array>(values: T) =>
    values.slice(begin * columns, end * columns) as T;
  return {
    ...rows,
    rows: end - begin,
    floats: new Map([...rows.floats].map(([name, values]) => [name, cut(values)])),
    numbers: new Map([...rows.numbers].map(([name, values]) => [name, values.slice(begin, end)])),
    mask: cut(rows.mask),
    expert: rows.expert?.slice(begin, end),
  };
}

/** Returns the rows with one value at all masked tokens of the named columns. */
export function withPoison(rows: Rows, names: readonly ColumnName[], value: number): Rows {
  const poisoned = (values: Float32Array) => values.map((x, i) => (rows.mask[i] === 0 ? value : x));
  return {
    ...rows,
    floats: new Map(
      [...rows.floats].map(([name, values]) => [name, names.includes(name) ? poisoned(values) : values]),
    ),
  };
}
