// Converts one column of a host batch to the array that native code reads. Columns of float32 and masks of bytes are
// passed on without a copy. Other arrays are converted in slices. Between two slices of an asynchronous call, the caller
// may change them, so each slice checks what it reads.
import { checkAttached, fixedLength } from '../base/arrays.js';
import { allocate, describeValue, LossError } from '../base/errors.js';
import { isFloat32Array, isFloat64Array, isInt32Array, isUint8Array, isUint16Array } from '../base/kinds.js';
import { inSlices, SLICE, type Steps } from '../base/steps.js';
import { type FoundInput, find } from './batch.js';
import { describeShape, type Layout } from './layout.js';

/** The codes of the dtypes; see NativeBatch.dtypes in binding.d.ts. */
export const DTYPE_CODES = { float32: 0, float16: 1, bfloat16: 2 } as const;
/** Added to a column's dtype code if the column has one value per row; see NativeBatch.dtypes in binding.d.ts. */
export const PER_ROW = 4;

/** A float column in the form that native code reads. */
export interface NativeColumn {
  data: Float32Array | Uint16Array;
  /** The dtype code, as described at NativeBatch.dtypes in binding.d.ts. */
  dtype: number;
}

/**
 * Checks a float column and converts it for native code.
 * @param mayBePerRow whether a column with one value per row is accepted.
 * @throws LossError if the column is invalid. The message names the key, what was expected and what was given.
 */
export function* readFloats(
  key: string,
  value: unknown,
  layout: Layout,
  mayBePerRow: boolean,
): Steps<NativeColumn> {
  const { data, dtype } = yield* floatData(key, value, layout, mayBePerRow);
  checkAttached(key, data);
  checkLength(key, data.length, layout, mayBePerRow);
  return {
    data: fixedLength(data),
    dtype: DTYPE_CODES[dtype] + (data.length === layout.tokens ? 0 : PER_ROW),
  };
}

/**
 * Reads a column with one float32 per token. Rejects 16-bit columns.
 * @throws LossError `ERR_INVALID_INPUT` if the type or an element is wrong, `ERR_SHAPE_MISMATCH` if the length is
 * wrong.
 */
export function* readFloat32(key: string, value: unknown, layout: Layout): Steps<Float32Array> {
  const { data } = yield* floatData(key, value, layout, false);
  checkAttached(key, data);
  if (!isFloat32Array(data))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'dtype float32',
      received: describeValue(value),
    });
  checkLength(key, data.length, layout, false);
  return fixedLength(data);
}

/**
 * Reads floats of 32 or 16 bits, one per token or per row, as float32.
 * @throws LossError as {@link readFloats} does.
 */
export function* readWideFloats(key: string, value: unknown, layout: Layout): Steps<Float32Array> {
  const { data, dtype } = yield* floatData(key, value, layout, true);
  checkAttached(key, data);
  checkLength(key, data.length, layout, true);
  if (dtype === 'float32') return fixedLength(data as Float32Array);
  const wide = newArray(key, data.length, () => new Float32Array(data.length));
  yield* inSlices(data.length, (begin, end) => {
    for (let i = begin; i < end; i++) wide[i] = fromHalf(data[i]!, dtype);
  });
  return wide;
}

function checkLength(key: string, length: number, layout: Layout, mayBePerRow: boolean): void {
  if (length === layout.tokens || (mayBePerRow && length === layout.rows)) return;
  throw new LossError('ERR_SHAPE_MISMATCH', {
    key,
    expected: `${describeShape(layout)}${mayBePerRow ? `, or [${layout.rows}]` : ''}`,
    received: String(length),
  });
}

function* floatData(key: string, value: unknown, layout: Layout, mayBePerRow: boolean): Steps<TaggedFloats> {
  if (isFloat32Array(value)) return { data: value, dtype: 'float32' };
  if (isFloat64Array(value) || Array.isArray(value))
    return { data: yield* toFloat32(key, value, layout, mayBePerRow), dtype: 'float32' };
  const tagged = taggedFloats(key, value);
  if (tagged) return tagged;
  const isOnDevice = value !== null && typeof value === 'object' && ('pointer' in value || 'ipc' in value);
  throw new LossError('ERR_INVALID_INPUT', {
    key,
    expected: 'dtype float32 (Float32Array), { data, dtype }, Float64Array or numbers',
    received: isOnDevice ? 'memory of a device' : describeValue(value),
    hint: isOnDevice ? 'upload() and update() accept it' : undefined,
  });
}

/** Floats and their dtype. */
export interface TaggedFloats {
  data: Float32Array | Uint16Array;
  dtype: keyof typeof DTYPE_CODES;
}

/**
 * Reads a column of the form { data, dtype }. Returns undefined if the value is not an object with these keys.
 * @throws LossError `ERR_INVALID_INPUT` if the array does not have the type for the dtype.
 */
export function taggedFloats(key: string, value: unknown): TaggedFloats | undefined {
  if (value === null || typeof value !== 'object' || !('data' in value && 'dtype' in value)) return undefined;
  const { data, dtype } = value;
  if (dtype === 'float32' && isFloat32Array(data)) return { data, dtype };
  if ((dtype === 'float16' || dtype === 'bfloat16') && isUint16Array(data)) return { data, dtype };
  throw new LossError('ERR_INVALID_INPUT', {
    key,
    expected: 'dtype float16 or bfloat16 in a Uint16Array, or float32 in a Float32Array',
    received: `dtype ${describeValue(dtype)} in ${describeValue(data)}`,
  });
}

/**
 * Returns a copy of a column of the form { data, dtype }, which stays as it is when the caller changes the object. The
 * copy has the same array. Returns any other value itself.
 */
export function heldColumn(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value) || Array.isArray(value))
    return value;
  if (!('data' in value && 'dtype' in value) || 'pointer' in value || 'ipc' in value) return value;
  const { data, dtype } = value;
  return { data, dtype };
}

/** Does the same as find(), and holds the value if it is a column of the form { data, dtype }. */
export function findHeld(batch: object, keys: readonly string[]): FoundInput | undefined {
  const found = find(batch, keys);
  if (found) found.value = heldColumn(found.value);
  return found;
}

function* toFloat32(
  key: string,
  value: Float64Array | readonly unknown[],
  layout: Layout,
  mayBePerRow: boolean,
): Steps<Float32Array> {
  if (Array.isArray(value) && Array.isArray(value[0])) {
    yield* checkRowLengths(key, value, layout);
    const data = newArray(key, layout.tokens, () => new Float32Array(layout.tokens));
    yield* copyRows(key, value, layout, data, copyNumbers);
    return data;
  }
  const isTyped = isFloat64Array(value);
  if (isTyped) checkAttached(key, value);
  const { length } = value;
  // A wrong length must not make the program allocate that much memory, so it is checked first.
  checkLength(key, length, layout, mayBePerRow);
  const data = newArray(key, length, () => new Float32Array(length));
  yield* isTyped ? copyList(key, value, data, copyFloats) : copyList(key, value, data, copyNumbers);
  return data;
}

// Copies `count` elements of a list, from the index `from` on, to `out` at the index `at`.
type Copy<S, T> = (key: string, values: S, from: number, out: T, at: number, count: number) => void;

/**
 * Copies numbers into a typed array, from one index of each list on.
 * @param hint what to do about an element that is missing, for the error.
 * @throws LossError `ERR_INVALID_INPUT` for an element that is not a number.
 */
export function copyNumbers(
  key: string,
  values: ArrayLike<unknown>,
  from: number,
  out: Float32Array | Float64Array,
  at: number,
  count: number,
  hint?: string,
): void {
  for (let i = 0; i < count; i++) {
    const x = values[from + i];
    if (typeof x !== 'number')
      throw new LossError('ERR_INVALID_INPUT', {
        key,
        index: at + i,
        expected: 'a number',
        received: describeValue(x),
        hint: x === null || x === undefined ? hint : undefined,
      });
    out[at + i] = x;
  }
}

function copyFlags(
  key: string,
  values: readonly unknown[],
  from: number,
  out: Uint8Array,
  at: number,
  count: number,
): void {
  for (let i = 0; i < count; i++) {
    const x = values[from + i];
    if (typeof x !== 'boolean' && typeof x !== 'number')
      throw new LossError('ERR_INVALID_INPUT', {
        key,
        index: at + i,
        expected: 'true, false or a number',
        received: describeValue(x),
      });
    out[at + i] = x ? 1 : 0;
  }
}

// Copies the elements of a typed array. If its memory was transferred or shrunk since the last slice, it lacks elements.
function copyFloats(
  key: string,
  values: Float32Array | Float64Array,
  from: number,
  out: Float32Array | Float64Array,
  at: number,
  count: number,
): void {
  checkAttached(key, values);
  if (values[from + count - 1] === undefined)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: `${out.length} values during the whole call`,
      received: String(values.length),
    });
  for (let i = 0; i < count; i++) out[at + i] = values[from + i]!;
}

function copyList<S, T extends ArrayLike<unknown>>(
  key: string,
  values: S,
  out: T,
  copy: Copy<S, T>,
): Steps<void> {
  return inSlices(out.length, (begin, end) => copy(key, values, begin, out, begin, end - begin));
}

// Copies the rows of a nested array into one array. checkRowLengths() checked the rows, but they may have changed since.
function* copyRows<T>(
  key: string,
  value: readonly unknown[],
  layout: Layout,
  out: T,
  copy: Copy<readonly unknown[], T>,
): Steps<void> {
  let at = 0;
  let inSlice = 0;
  for (let b = 0; b < layout.rows; b++) {
    const row = checkRow(key, value, b, layout);
    const { length } = row;
    for (let t = 0; t < length; ) {
      const count = Math.min(length - t, SLICE - inSlice);
      copy(key, t === 0 ? row : checkRow(key, value, b, layout), t, out, at, count);
      t += count;
      at += count;
      inSlice += count;
      if (inSlice < SLICE) continue;
      yield;
      inSlice = 0;
    }
    // A row counts as one element more, so that many empty rows are divided too.
    if (++inSlice < SLICE) continue;
    yield;
    inSlice = 0;
  }
}

// Checks the lengths of a nested array's rows. This comes before an array for all rows is allocated, because the layout
// can claim any number of tokens.
function* checkRowLengths(key: string, value: readonly unknown[], layout: Layout): Steps<void> {
  if (value.length !== layout.rows)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: `${layout.rows} rows`,
      received: String(value.length),
    });
  yield* inSlices(layout.rows, (begin, end) => {
    for (let b = begin; b < end; b++) checkRow(key, value, b, layout);
  });
}

// Returns row b of a nested array after checking its length.
function checkRow(key: string, value: readonly unknown[], b: number, layout: Layout): readonly unknown[] {
  const row = value[b];
  const length = layout.offsets ? layout.offsets[b + 1]! - layout.offsets[b]! : layout.rowLength;
  if (Array.isArray(row) && row.length === length) return row;
  throw new LossError('ERR_SHAPE_MISMATCH', {
    key,
    index: b,
    expected: `a row of ${length}`,
    received: describeValue(row),
  });
}

/**
 * Reads a mask with one flag per token or one per row.
 * @throws LossError `ERR_INVALID_INPUT` if the type or an element is wrong, `ERR_SHAPE_MISMATCH` if the length is
 * wrong.
 */
export function* readMask(
  key: string,
  value: unknown,
  layout: Layout,
  per: 'token' | 'row',
): Steps<Uint8Array> {
  const length = per === 'token' ? layout.tokens : layout.rows;
  const checkMaskLength = (received: number) => {
    if (received === length) return;
    const expected = per === 'token' ? describeShape(layout) : `[${layout.rows}], one value per row`;
    throw new LossError('ERR_SHAPE_MISMATCH', { key, expected, received: String(received) });
  };
  if (isUint8Array(value)) {
    checkAttached(key, value);
    checkMaskLength(value.length);
    return fixedLength(value);
  }
  if (!Array.isArray(value))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'a mask (Uint8Array, booleans, or 0 and 1)',
      received: describeValue(value),
    });
  const nested = per === 'token' && Array.isArray(value[0]);
  if (nested) yield* checkRowLengths(key, value, layout);
  else checkMaskLength(value.length);
  const mask = newArray(key, length, () => new Uint8Array(length));
  yield* nested ? copyRows(key, value, layout, mask, copyFlags) : copyList(key, value, mask, copyFlags);
  return mask;
}

/**
 * Reads one number per row. NaN and infinities are accepted.
 * @param hint what to do about a number that is missing, for the error.
 * @throws LossError `ERR_INVALID_INPUT` if the type or an element is wrong, `ERR_SHAPE_MISMATCH` if the length is
 * wrong.
 */
export function* readRowNumbers(
  key: string,
  value: unknown,
  rows: number,
  hint?: string,
): Steps<Float64Array> {
  const tagged = Array.isArray(value) ? undefined : taggedFloats(key, value);
  if (tagged) return yield* widened(key, tagged, rows);
  const isFloat64 = isFloat64Array(value);
  const isTyped = isFloat64 || isFloat32Array(value);
  if (isTyped) checkAttached(key, value);
  else if (!Array.isArray(value))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'a number per row (Float64Array, Float32Array, { data, dtype } or numbers)',
      received: describeValue(value),
    });
  checkRows(key, value.length, rows);
  if (isFloat64) return fixedLength(value);
  const numbers = newArray(key, rows, () => new Float64Array(rows));
  const copy: Copy<readonly unknown[], Float64Array> = (...given) => copyNumbers(...given, hint);
  yield* isTyped ? copyList(key, value, numbers, copyFloats) : copyList(key, value, numbers, copy);
  return numbers;
}

// Widens one float per row to float64.
function* widened(key: string, { data, dtype }: TaggedFloats, rows: number): Steps<Float64Array> {
  checkAttached(key, data);
  checkRows(key, data.length, rows);
  const numbers = newArray(key, rows, () => new Float64Array(rows));
  yield* inSlices(rows, (begin, end) => {
    for (let row = begin; row < end; row++)
      numbers[row] = dtype === 'float32' ? data[row]! : fromHalf(data[row]!, dtype);
  });
  return numbers;
}

/** Returns some numbers of a column as float32. */
export function float32Of({ data, dtype }: NativeColumn, begin: number, end: number): Float32Array {
  const some = data.subarray(begin, end);
  if (dtype === DTYPE_CODES.float32) return some as Float32Array;
  const name = dtype === DTYPE_CODES.float16 ? 'float16' : 'bfloat16';
  return Float32Array.from(some, (bits) => fromHalf(bits, name));
}

// The numbers of bits of the fractions of 16-bit floats, and what their exponents are biased by.
const HALVES = { float16: { fraction: 10, bias: 15 }, bfloat16: { fraction: 7, bias: 127 } };

function fromHalf(bits: number, dtype: keyof typeof HALVES): number {
  const { fraction, bias } = HALVES[dtype];
  const sign = bits >> 15 ? -1 : 1;
  const exponent = (bits & 0x7fff) >> fraction;
  const mantissa = (bits & ((1 << fraction) - 1)) / 2 ** fraction;
  if (exponent === 2 * bias + 1) return mantissa === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return sign * (exponent === 0 ? mantissa * 2 ** (1 - bias) : (1 + mantissa) * 2 ** (exponent - bias));
}

/**
 * Reads one id per row and returns one integer per row. Rows with equal ids get equal integers.
 * @throws LossError `ERR_INVALID_INPUT` if the type or an element is wrong, `ERR_SHAPE_MISMATCH` if the length is
 * wrong.
 */
export function* readRowIds(key: string, value: unknown, rows: number): Steps<Int32Array> {
  if (isInt32Array(value)) {
    checkAttached(key, value);
    checkRows(key, value.length, rows);
    // Makes a copy, because native code reads the ids twice and they must not change between the two reads.
    return newArray(key, rows, () => new Int32Array(value));
  }
  if (!Array.isArray(value))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'an id per row (Int32Array, numbers or strings)',
      received: describeValue(value),
    });
  checkRows(key, value.length, rows);
  const numbers = new Map<unknown, number>();
  const ids = newArray(key, rows, () => new Int32Array(rows));
  yield* inSlices(rows, (begin, end) => {
    for (let index = begin; index < end; index++) ids[index] = numberOf(key, index, value[index], numbers);
  });
  return ids;
}

// Returns the integer of an id. A new id gets the next integer.
function numberOf(key: string, index: number, id: unknown, numbers: Map<unknown, number>): number {
  if (typeof id !== 'string' && !Number.isFinite(id))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      index,
      expected: 'a finite number or a string',
      received: describeValue(id),
    });
  const known = numbers.get(id);
  if (known !== undefined) return known;
  numbers.set(id, numbers.size);
  return numbers.size - 1;
}

function checkRows(key: string, length: number, rows: number): void {
  if (length !== rows)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: `[${rows}], one value per row`,
      received: String(length),
    });
}

function newArray<T>(key: string, length: number, make: () => T): T {
  return allocate(`${length} values of ${key}`, make);
}
