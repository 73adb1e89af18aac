// Batches: what a caller may hand over, and its way to the views that native code reads. float32 and byte masks
// go through without a copy; everything else is converted once.
import type { NativeBatch } from '../../binding.js';
import { describeValue, LossError } from './errors.js';
import type { KeyMapper } from './key-mapper.js';
import { toCamelCase } from './options.js';

/** 16-bit floats as their bits. */
export interface HalfColumn {
  /** Each element's 16 bits. */
  data: Uint16Array;
  /** Which 16-bit format they are. */
  dtype: 'float16' | 'bfloat16';
}

/**
 * One float per token (row-major), or one per row where it is the same for all of a row's tokens. (An array that
 * has as many values as there are tokens is one per token, however many rows there are.)
 * Float32Array is read in place; the 16-bit dtypes are widened as they are read; the rest is converted once.
 */
export type FloatColumn =
  | Float32Array
  | Float64Array
  | HalfColumn
  | {
      /** The values, read in place. */
      data: Float32Array;
      /** Says that they are no 16-bit floats. */
      dtype: 'float32';
    }
  | readonly number[]
  | readonly (readonly number[])[];

/** Not 0 (or true): the token counts. Uint8Array is read in place. */
export type MaskColumn =
  | Uint8Array
  | readonly boolean[]
  | readonly number[]
  | readonly (readonly boolean[])[]
  | readonly (readonly number[])[];

/** One number per row. */
export type RowNumbers = Float64Array | Float32Array | readonly number[];

/** One name per row. */
export type RowIds = Int32Array | readonly (number | string)[];

/**
 * A batch of B rows with T tokens each, or of packed rows. Every key is also taken under Trinity-RFT's name
 * (`old_logprob`) and under the backend's (`old_log_probs` for verl). Keys that a function does not read are
 * ignored. Log-probabilities and entropies are in nats.
 */
export interface Batch {
  /** [B, T], where rows are padded to one length. */
  shape?: readonly [number, number];
  /** [B + 1] offsets of packed rows: row b holds the tokens from cuSeqlens[b] up to cuSeqlens[b + 1]. */
  cuSeqlens?: Int32Array | readonly number[];
  /** [B, T] log-probability of each token under the policy now; what gradients are taken with respect to. */
  logprob?: FloatColumn;
  /** [B, T] under the policy that sampled. */
  oldLogprob?: FloatColumn;
  /** [B, T] under the reference policy. */
  refLogprob?: FloatColumn;
  /** [B, T] or [B] */
  advantages?: FloatColumn;
  /** [B, T]; a token with 0 here is not read, whatever stands there. */
  actionMask?: MaskColumn;
  /** [B, T] entropy of the policy's distribution at each token. */
  entropy?: FloatColumn;
  /** [B]; true: an expert's row (MIX). */
  expertMask?: MaskColumn;
  /** The trainer's step, one for all rows (MIX-CHORD). */
  step?: number | ArrayLike<number>;
  /** [B] reward of each row; what advantages are made of. */
  rewards?: RowNumbers;
  /** [B] the same in all rows that answer the same prompt. */
  groupIds?: RowIds;
  /** [B] the same in all rows of one run of several steps. */
  runIds?: RowIds;
  /** [B, T] reward of each token. */
  tokenLevelRewards?: FloatColumn;
  /** [B, T] a critic's values. */
  values?: FloatColumn;
  /** [B] reward of the greedy answer to each row's prompt. */
  rewardBaselines?: RowNumbers;
  /** [B, T] log-probability of each token under a teacher. */
  teacherLogprob?: FloatColumn;
  [key: string]: unknown;
}

/** The float columns of native/loss/loss.h, in its order. */
export const COLUMNS = ['logprob', 'old_logprob', 'ref_logprob', 'advantages', 'entropy'] as const;
/** A float column, by Trinity's name. */
export type ColumnName = (typeof COLUMNS)[number];

const DTYPE_CODES = { float32: 0, float16: 1, bfloat16: 2 } as const;
/** What a column's dtype code has more where it is one value per row; see NativeBatch. */
export const PER_ROW = 4;

// Rows without tokens need no arrays, so that nothing else bounds the time and memory that they take.
const MOST_EMPTY_ROWS = 2 ** 24;

/** Which columns a function reads of a batch, under Trinity's names. */
export interface Reads {
  /** Those that must be there. */
  columns: readonly ColumnName[];
  /** Those that are read where they are there. */
  optional?: readonly ColumnName[];
  /** Whether action_mask is read; true by default. */
  mask?: boolean;
  /** Whether expert_mask is read; false by default. */
  expertMask?: boolean;
  /** Columns that must have all B×T values, as gradients are taken with respect to them; logprob by default. */
  perToken?: readonly ColumnName[];
}

/** Reads host batches: finds each column under one of its names, checks it and makes the native view of it. */
export class HostReader {
  readonly #columns: { index: number; optional: boolean; perToken: boolean; keys: readonly string[] }[];
  readonly #maskKeys: readonly string[] | undefined;
  readonly #expertKeys: readonly string[] | undefined;

  constructor(
    mapper: KeyMapper,
    { columns, optional = [], mask = true, expertMask = false, perToken }: Reads,
  ) {
    this.#columns = [...columns, ...optional].map((name) => ({
      index: COLUMNS.indexOf(name),
      optional: optional.includes(name),
      perToken: (perToken ?? ['logprob']).includes(name),
      keys: keysOf(mapper, name),
    }));
    this.#maskKeys = mask ? keysOf(mapper, 'action_mask') : undefined;
    this.#expertKeys = expertMask ? keysOf(mapper, 'expert_mask') : undefined;
  }

  /** @throws LossError naming the key, what was expected and what came. */
  read(batch: Batch): { native: NativeBatch; layout: Layout } {
    if (batch === null || typeof batch !== 'object')
      throw new LossError('ERR_INVALID_INPUT', `batch must be an object, not ${describeValue(batch)}`);
    const nested = this.#columns[0]?.keys ?? this.#maskKeys;
    const layout = readLayout(batch, nested && find(batch, nested)?.value);
    const native: NativeBatch = {
      rows: layout.rows,
      columns: layout.columns,
      offsets: layout.offsets,
      data: [undefined, undefined, undefined, undefined, undefined],
      dtypes: [0, 0, 0, 0, 0],
      mask: undefined,
      expert: undefined,
    };
    for (const { index, optional, perToken, keys } of this.#columns) {
      const found = find(batch, keys);
      if (found) readFloats(found.key, found.value, layout, !perToken, index, native);
      else if (!optional) throw missing(keys, 'floats per token');
    }
    if (this.#maskKeys) {
      const found = find(batch, this.#maskKeys);
      if (!found) throw missing(this.#maskKeys, 'a mask per token');
      native.mask = readMask(found.key, found.value, layout, 'token');
    }
    if (this.#expertKeys) {
      const found = find(batch, this.#expertKeys);
      if (!found) throw missing(this.#expertKeys, 'a mask per row');
      native.expert = readMask(found.key, found.value, layout, 'row');
    }
    return { native, layout };
  }
}

/** A batch's rows: how many, how long, and where they lie. */
export interface Layout {
  rows: number;
  columns: number;
  tokens: number;
  offsets: Int32Array | undefined;
}

/** The keys under which a column may stand in a batch: camelCase, Trinity's, the backend's. */
export function keysOf(mapper: KeyMapper, name: string): readonly string[] {
  return [...new Set([toCamelCase(name), name, mapper.fromTrinity(name)])];
}

/** The first of the keys that the batch has. */
export function find(batch: object, keys: readonly string[]): { key: string; value: unknown } | undefined {
  for (const key of keys) {
    const value = (batch as Record<string, unknown>)[key];
    if (value !== undefined && value !== null) return { key, value };
  }
  return undefined;
}

/** @throws LossError `ERR_MISSING_INPUT` */
export function missing(keys: readonly string[], what: string): LossError {
  const [first, ...others] = keys;
  return new LossError(
    'ERR_MISSING_INPUT',
    `the batch has no ${first}${others.length > 0 ? ` (or ${others.join(', ')})` : ''}: expected ${what}`,
  );
}

/**
 * The rows of a batch, from `shape`, from `cuSeqlens`, or from a first column that is nested arrays.
 * @throws LossError
 */
export function readLayout(batch: Batch, nested?: unknown): Layout {
  const shape = batch.shape ?? undefined;
  const cuSeqlens = find(batch, ['cuSeqlens', 'cu_seqlens'])?.value;
  if (shape !== undefined && cuSeqlens !== undefined)
    throw new LossError('ERR_INVALID_INPUT', 'expected either shape or cuSeqlens, and both came');
  if (cuSeqlens !== undefined) return packedLayout(cuSeqlens);
  if (shape !== undefined) {
    const valid =
      Array.isArray(shape) && shape.length === 2 && shape.every((n) => Number.isSafeInteger(n) && n >= 0);
    if (!valid)
      throw new LossError(
        'ERR_INVALID_INPUT',
        `shape must be [B, T], two whole numbers, not ${describeList(shape)}`,
      );
    const [rows, columns] = shape as readonly [number, number];
    if (columns === 0 && rows > MOST_EMPTY_ROWS)
      throw new LossError(
        'ERR_INVALID_INPUT',
        `shape: expected at most ${MOST_EMPTY_ROWS} rows where they have no tokens, not ${rows}`,
      );
    return { rows, columns, tokens: rows * columns, offsets: undefined };
  }
  if (Array.isArray(nested) && nested.length > 0 && Array.isArray(nested[0])) {
    const columns = nested[0].length;
    return { rows: nested.length, columns, tokens: nested.length * columns, offsets: undefined };
  }
  throw new LossError(
    'ERR_MISSING_INPUT',
    'the batch has no shape: expected [B, T], or cuSeqlens for packed rows',
  );
}

// A short list as it is written, so that one sees which of its members is wrong.
function describeList(value: unknown): string {
  if (!Array.isArray(value) || value.length > 8) return describeValue(value);
  return `[${Array.from(value, (n: unknown) => (typeof n === 'number' ? n : describeValue(n))).join(', ')}]`;
}

function packedLayout(value: unknown): Layout {
  let offsets: Int32Array;
  if (value instanceof Int32Array) {
    checkAttached('cuSeqlens', value);
    // A copy: memory is addressed by these, so they must stay as they have been checked.
    offsets = new Int32Array(value);
  } else if (Array.isArray(value) && isOffsets(value)) {
    offsets = Int32Array.from(value);
  } else {
    throw new LossError('ERR_INVALID_INPUT', `cuSeqlens must be an Int32Array, not ${describeValue(value)}`);
  }
  if (offsets.length === 0 || offsets[0] !== 0)
    throw new LossError(
      'ERR_SHAPE_MISMATCH',
      `cuSeqlens must hold B + 1 offsets that begin with 0, not ${offsets[0]}`,
    );
  let longest = 0;
  for (let row = 1; row < offsets.length; row++) {
    const length = offsets[row]! - offsets[row - 1]!;
    if (length < 0)
      throw new LossError(
        'ERR_SHAPE_MISMATCH',
        `cuSeqlens must not decrease: expected at least ${offsets[row - 1]} at ${row}, ${offsets[row]} came`,
      );
    if (length > longest) longest = length;
  }
  return { rows: offsets.length - 1, columns: longest, tokens: offsets.at(-1)!, offsets };
}

// Not every(): it knows nothing of what is not there, and is long in finding out.
function isOffsets(value: readonly unknown[]): value is number[] {
  for (let i = 0; i < value.length; i++) {
    const n = value[i];
    if (!Number.isInteger(n) || (n as number) < 0 || (n as number) >= 2 ** 31) return false;
  }
  return true;
}

/** What a per-token array must be, for error messages. */
export function describeShape(layout: Layout): string {
  return layout.offsets
    ? `[${layout.tokens}], as cuSeqlens ends with`
    : `[${layout.rows}, ${layout.columns}], ${layout.tokens} values`;
}

/** @throws LossError `ERR_INVALID_INPUT` where the array's memory has been transferred away. */
export function checkAttached(key: string, array: ArrayBufferView): void {
  if (array.byteLength > 0) return;
  try {
    new Uint8Array(array.buffer);
  } catch {
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${key}: expected an array with memory, and one came whose ArrayBuffer is detached (transferred)`,
    );
  }
}

/**
 * A float column's view in a native batch.
 * @throws LossError
 */
export function readFloats(
  key: string,
  value: unknown,
  layout: Layout,
  mayBePerRow: boolean,
  index: number,
  result: NativeBatch,
): void {
  const { data, dtype } = floatData(key, value, layout, mayBePerRow);
  checkAttached(key, data);
  checkLength(key, data.length, layout, mayBePerRow);
  result.data[index] = steady(data);
  result.dtypes[index] = DTYPE_CODES[dtype] + (data.length === layout.tokens ? 0 : PER_ROW);
}

function checkLength(key: string, length: number, layout: Layout, mayBePerRow: boolean): void {
  if (length === layout.tokens || (mayBePerRow && length === layout.rows)) return;
  throw new LossError(
    'ERR_SHAPE_MISMATCH',
    `${key}: expected ${describeShape(layout)}${mayBePerRow ? `, or [${layout.rows}]` : ''}, not ${length} values`,
  );
}

/** The array itself, or a copy where its memory may shrink while native code reads it. */
export function steady<T extends Float32Array | Float64Array | Uint8Array | Uint16Array>(array: T): T {
  if (!isResizable(array)) return array;
  const Type = [Float32Array, Float64Array, Uint8Array, Uint16Array].find((type) => array instanceof type)!;
  return new Type(array) as T;
}

/** Whether an array's memory may shrink. (What is shared can only grow.) */
export function isResizable({ buffer }: ArrayBufferView): boolean {
  return (buffer as ArrayBuffer & { resizable?: boolean }).resizable === true;
}

/**
 * A float32 value per token, for what is neither a loss's column nor kept in 16 bits.
 * @throws LossError
 */
export function readFloat32(key: string, value: unknown, layout: Layout): Float32Array {
  const { data } = floatData(key, value, layout, false);
  checkAttached(key, data);
  if (!(data instanceof Float32Array))
    throw new LossError('ERR_INVALID_INPUT', `${key}: expected dtype float32, not ${describeValue(value)}`);
  checkLength(key, data.length, layout, false);
  return steady(data);
}

function floatData(
  key: string,
  value: unknown,
  layout: Layout,
  mayBePerRow: boolean,
): { data: Float32Array | Uint16Array; dtype: keyof typeof DTYPE_CODES } {
  if (value instanceof Float32Array) return { data: value, dtype: 'float32' };
  if (value instanceof Float64Array) {
    checkAttached(key, value);
    return { data: new Float32Array(value), dtype: 'float32' };
  }
  if (Array.isArray(value)) {
    const flat = flatten(key, value, layout);
    // Before as much memory is asked for.
    checkLength(key, flat.length, layout, mayBePerRow);
    const data = new Float32Array(flat.length);
    for (let i = 0; i < flat.length; i++) {
      const x: unknown = flat[i];
      if (typeof x !== 'number')
        throw new LossError('ERR_INVALID_INPUT', `${key}[${i}]: expected a number, not ${describeValue(x)}`);
      data[i] = x;
    }
    return { data, dtype: 'float32' };
  }
  if (value !== null && typeof value === 'object' && 'data' in value && 'dtype' in value) {
    const { data, dtype } = value;
    if (dtype === 'float32' && data instanceof Float32Array) return { data, dtype };
    if ((dtype === 'float16' || dtype === 'bfloat16') && data instanceof Uint16Array) return { data, dtype };
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${key}: expected dtype float16 or bfloat16 in a Uint16Array (or float32 in a Float32Array), not dtype ` +
        `${describeValue(dtype)} in ${describeValue(data)}`,
    );
  }
  throw new LossError(
    'ERR_INVALID_INPUT',
    `${key}: expected dtype float32 (Float32Array), { data, dtype }, Float64Array or numbers, not ${describeValue(value)}`,
  );
}

/**
 * A mask of one value per token, or per row.
 * @throws LossError
 */
export function readMask(key: string, value: unknown, layout: Layout, per: 'token' | 'row'): Uint8Array {
  const length = per === 'token' ? layout.tokens : layout.rows;
  const wrong = (found: number) =>
    wrongLength(key, per === 'token' ? describeShape(layout) : `[${layout.rows}], one per row`, found);
  let mask: Uint8Array;
  if (value instanceof Uint8Array) {
    checkAttached(key, value);
    mask = steady(value);
  } else if (Array.isArray(value)) {
    const flat = per === 'token' ? flatten(key, value, layout) : value;
    if (flat.length !== length) throw wrong(flat.length);
    mask = new Uint8Array(flat.length);
    for (let i = 0; i < flat.length; i++) {
      const x: unknown = flat[i];
      if (typeof x !== 'boolean' && typeof x !== 'number')
        throw new LossError(
          'ERR_INVALID_INPUT',
          `${key}[${i}]: expected true, false or a number, not ${describeValue(x)}`,
        );
      mask[i] = x ? 1 : 0;
    }
  } else {
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${key}: expected a mask (Uint8Array, booleans or 0 and 1), not ${describeValue(value)}`,
    );
  }
  if (mask.length !== length) throw wrong(mask.length);
  return mask;
}

// Rows of a nested array one after another, after a look at their lengths.
function flatten(key: string, value: readonly unknown[], layout: Layout): readonly unknown[] {
  if (!Array.isArray(value[0])) return value;
  if (value.length !== layout.rows)
    throw new LossError('ERR_SHAPE_MISMATCH', `${key}: expected ${layout.rows} rows, not ${value.length}`);
  const flat: unknown[] = [];
  for (let b = 0; b < value.length; b++) {
    const row = value[b];
    const length = layout.offsets ? layout.offsets[b + 1]! - layout.offsets[b]! : layout.columns;
    if (!Array.isArray(row) || row.length !== length)
      throw new LossError(
        'ERR_SHAPE_MISMATCH',
        `${key}[${b}]: expected a row of ${length}, not ${describeValue(row)}`,
      );
    for (let t = 0; t < length; t++) flat.push(row[t]);
  }
  return flat;
}

function wrongLength(key: string, expected: string, length: number): LossError {
  return new LossError('ERR_SHAPE_MISMATCH', `${key}: expected ${expected}, not ${length} values`);
}

/**
 * The one step that all rows are at.
 * @throws LossError `ERR_INVALID_INPUT` where they differ.
 */
export function readStep(batch: object, keys: readonly string[], rows: number): number {
  const found = find(batch, keys);
  if (!found) throw missing(keys, "the trainer's step, one number or one per row");
  const { key, value } = found;
  if (typeof value === 'number') return checkStep(key, value);
  if (!Array.isArray(value) && !ArrayBuffer.isView(value))
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${key}: expected a number or one per row, not ${describeValue(value)}`,
    );
  const steps = value as unknown as ArrayLike<number>;
  if (steps.length !== rows)
    throw new LossError(
      'ERR_SHAPE_MISMATCH',
      `${key}: expected [${rows}], one per row, not ${steps.length} values`,
    );
  for (let row = 1; row < rows; row++)
    if (steps[row] !== steps[0])
      throw new LossError(
        'ERR_INVALID_INPUT',
        `${key}: expected the same step in all rows, not ${steps[0]} in row 0 and ${steps[row]} in row ${row}`,
      );
  return rows === 0 ? 0 : checkStep(key, steps[0]);
}

function checkStep(key: string, step: unknown): number {
  if (typeof step !== 'number' || !Number.isFinite(step))
    throw new LossError('ERR_INVALID_INPUT', `${key}: expected a finite number, not ${describeValue(step)}`);
  return step;
}
