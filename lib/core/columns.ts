// Converts one column of a host batch to the array that native code reads. Columns of float32 and masks of bytes are
// passed on without a copy.
import { checkAttached, fixedLength } from './arrays.js';
import { allocate, describeValue, LossError } from './errors.js';
import { describeShape, type Layout } from './layout.js';

const DTYPE_CODES = { float32: 0, float16: 1, bfloat16: 2 } as const;
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
export function readFloats(key: string, value: unknown, layout: Layout, mayBePerRow: boolean): NativeColumn {
  const { data, dtype } = floatData(key, value, layout, mayBePerRow);
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
export function readFloat32(key: string, value: unknown, layout: Layout): Float32Array {
  const { data } = floatData(key, value, layout, false);
  checkAttached(key, data);
  if (!(data instanceof Float32Array))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'dtype float32',
      received: describeValue(value),
    });
  checkLength(key, data.length, layout, false);
  return fixedLength(data);
}

function checkLength(key: string, length: number, layout: Layout, mayBePerRow: boolean): void {
  if (length === layout.tokens || (mayBePerRow && length === layout.rows)) return;
  throw new LossError('ERR_SHAPE_MISMATCH', {
    key,
    expected: `${describeShape(layout)}${mayBePerRow ? `, or [${layout.rows}]` : ''}`,
    received: String(length),
  });
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
    checkLength(key, value.length, layout, mayBePerRow);
    return { data: newArray(key, value.length, () => new Float32Array(value)), dtype: 'float32' };
  }
  if (Array.isArray(value)) return { data: floatsOf(key, value, layout, mayBePerRow), dtype: 'float32' };
  if (value !== null && typeof value === 'object' && 'data' in value && 'dtype' in value) {
    const { data, dtype } = value;
    if (dtype === 'float32' && data instanceof Float32Array) return { data, dtype };
    if ((dtype === 'float16' || dtype === 'bfloat16') && data instanceof Uint16Array) return { data, dtype };
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'dtype float16 or bfloat16 in a Uint16Array, or float32 in a Float32Array',
      received: `dtype ${describeValue(dtype)} in ${describeValue(data)}`,
    });
  }
  throw new LossError('ERR_INVALID_INPUT', {
    key,
    expected: 'dtype float32 (Float32Array), { data, dtype }, Float64Array or numbers',
    received: describeValue(value),
  });
}

function floatsOf(
  key: string,
  value: readonly unknown[],
  layout: Layout,
  mayBePerRow: boolean,
): Float32Array {
  const flat = flatten(key, value, layout);
  // A wrong length must not make the program allocate that much memory, so it is checked first.
  checkLength(key, flat.length, layout, mayBePerRow);
  const data = newArray(key, flat.length, () => new Float32Array(flat.length));
  return copyNumbers(key, flat, data);
}

/**
 * Fills the typed array `out` with numbers from the start of `values`.
 * @throws LossError `ERR_INVALID_INPUT` for an element that is not a number.
 */
export function copyNumbers<T extends Float32Array | Float64Array>(
  key: string,
  values: ArrayLike<unknown>,
  out: T,
): T {
  for (let index = 0; index < out.length; index++) {
    const x = values[index];
    if (typeof x !== 'number')
      throw new LossError('ERR_INVALID_INPUT', {
        key,
        index,
        expected: 'a number',
        received: describeValue(x),
      });
    out[index] = x;
  }
  return out;
}

/**
 * Reads a mask with one flag per token or one per row.
 * @throws LossError `ERR_INVALID_INPUT` if the type or an element is wrong, `ERR_SHAPE_MISMATCH` if the length is
 * wrong.
 */
export function readMask(key: string, value: unknown, layout: Layout, per: 'token' | 'row'): Uint8Array {
  const length = per === 'token' ? layout.tokens : layout.rows;
  const checkMaskLength = (received: number) => {
    if (received === length) return;
    const expected = per === 'token' ? describeShape(layout) : `[${layout.rows}], one value per row`;
    throw new LossError('ERR_SHAPE_MISMATCH', { key, expected, received: String(received) });
  };
  if (value instanceof Uint8Array) {
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
  const flat = per === 'token' ? flatten(key, value, layout) : value;
  checkMaskLength(flat.length);
  const mask = newArray(key, flat.length, () => new Uint8Array(flat.length));
  for (let index = 0; index < flat.length; index++) {
    const x: unknown = flat[index];
    if (typeof x !== 'boolean' && typeof x !== 'number')
      throw new LossError('ERR_INVALID_INPUT', {
        key,
        index,
        expected: 'true, false or a number',
        received: describeValue(x),
      });
    mask[index] = x ? 1 : 0;
  }
  return mask;
}

/**
 * Reads one number per row. NaN and infinities are accepted.
 * @throws LossError `ERR_INVALID_INPUT` if the type or an element is wrong, `ERR_SHAPE_MISMATCH` if the length is
 * wrong.
 */
export function readRowNumbers(key: string, value: unknown, rows: number): Float64Array {
  if (value instanceof Float64Array || value instanceof Float32Array) {
    checkAttached(key, value);
    checkRows(key, value.length, rows);
    return value instanceof Float64Array
      ? fixedLength(value)
      : newArray(key, rows, () => new Float64Array(value));
  }
  if (!Array.isArray(value))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'a number per row (Float64Array, Float32Array or numbers)',
      received: describeValue(value),
    });
  checkRows(key, value.length, rows);
  const numbers = newArray(key, rows, () => new Float64Array(rows));
  return copyNumbers(key, value, numbers);
}

/**
 * Reads one id per row and returns one integer per row. Rows with equal ids get equal integers.
 * @throws LossError `ERR_INVALID_INPUT` if the type or an element is wrong, `ERR_SHAPE_MISMATCH` if the length is
 * wrong.
 */
export function readRowIds(key: string, value: unknown, rows: number): Int32Array {
  if (value instanceof Int32Array) {
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
  for (let index = 0; index < rows; index++) {
    const id: unknown = value[index];
    if (typeof id !== 'string' && !Number.isFinite(id))
      throw new LossError('ERR_INVALID_INPUT', {
        key,
        index,
        expected: 'a finite number or a string',
        received: describeValue(id),
      });
    const number = numbers.get(id) ?? numbers.size;
    numbers.set(id, number);
    ids[index] = number;
  }
  return ids;
}

function checkRows(key: string, length: number, rows: number): void {
  if (length !== rows)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: `[${rows}], one value per row`,
      received: String(length),
    });
}

// Joins the rows of a nested array into one array, after checking each row's length. Returns an array that is not
// nested as it is.
function flatten(key: string, value: readonly unknown[], layout: Layout): readonly unknown[] {
  if (!Array.isArray(value[0])) return value;
  if (value.length !== layout.rows)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: `${layout.rows} rows`,
      received: String(value.length),
    });
  const flat: unknown[] = [];
  for (let b = 0; b < value.length; b++) {
    const row = value[b];
    const length = layout.offsets ? layout.offsets[b + 1]! - layout.offsets[b]! : layout.rowLength;
    if (!Array.isArray(row) || row.length !== length)
      throw new LossError('ERR_SHAPE_MISMATCH', {
        key,
        index: b,
        expected: `a row of ${length}`,
        received: describeValue(row),
      });
    for (let t = 0; t < length; t++) flat.push(row[t]);
  }
  return flat;
}

function newArray<T>(key: string, length: number, make: () => T): T {
  return allocate(`${length} values of ${key}`, make);
}
