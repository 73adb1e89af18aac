// The layout of a batch: the number of rows, their lengths, and where each begins.
import { checkAttached } from './arrays.js';
import { type Batch, find } from './batch.js';
import { allocate, describeValue, LossError } from './errors.js';

/** Rows of a batch, padded or packed. */
export interface Layout {
  /** B, the number of rows. */
  rows: number;
  /** T; the length of the longest row if rows are packed. */
  rowLength: number;
  /** The number of values in a per-token array. */
  tokens: number;
  /** cuSeqlens of packed rows. */
  offsets: Int32Array | undefined;
}

// The most rows without tokens. They need no arrays, so no array's length limits their number.
const MAX_EMPTY_ROWS = 2 ** 24;

/**
 * Reads a batch's layout from `shape`, from `cuSeqlens`, or from a column of nested arrays.
 * @throws LossError
 */
export function readLayout(batch: Batch, nested?: unknown): Layout {
  const shape = batch.shape ?? undefined;
  const cuSeqlens = find(batch, ['cuSeqlens', 'cu_seqlens'])?.value;
  if (shape !== undefined && cuSeqlens !== undefined)
    throw new LossError('ERR_INVALID_INPUT', {
      at: 'batch',
      expected: 'either shape or cuSeqlens',
      received: 'both',
    });
  if (cuSeqlens !== undefined) return packedLayout(cuSeqlens);
  if (shape !== undefined) return paddedLayout(shape);
  if (Array.isArray(nested) && nested.length > 0 && Array.isArray(nested[0])) {
    const rowLength = nested[0].length;
    return { rows: nested.length, rowLength, tokens: nested.length * rowLength, offsets: undefined };
  }
  throw new LossError('ERR_MISSING_INPUT', {
    key: 'shape',
    expected: '[B, T], or cuSeqlens for packed rows',
    received: 'neither',
  });
}

function paddedLayout(shape: unknown): Layout {
  const isShape =
    Array.isArray(shape) && shape.length === 2 && shape.every((n) => Number.isSafeInteger(n) && n >= 0);
  if (!isShape)
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'shape',
      expected: '[B, T], two whole numbers',
      received: describeList(shape),
    });
  const [rows, rowLength] = shape as [number, number];
  if (rowLength === 0 && rows > MAX_EMPTY_ROWS)
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'shape',
      expected: `at most ${MAX_EMPTY_ROWS} rows without tokens`,
      received: String(rows),
    });
  return { rows, rowLength, tokens: rows * rowLength, offsets: undefined };
}

// Shows a short list in full, so that the wrong element is visible.
function describeList(value: unknown): string {
  if (!Array.isArray(value) || value.length > 8) return describeValue(value);
  return `[${Array.from(value, (n: unknown) => (typeof n === 'number' ? n : describeValue(n))).join(', ')}]`;
}

function packedLayout(value: unknown): Layout {
  const offsets = copyOffsets(value);
  if (offsets.length === 0 || offsets[0] !== 0)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key: 'cuSeqlens',
      expected: 'B + 1 offsets that begin with 0',
      received: offsets.length === 0 ? 'none' : `${offsets[0]} at first`,
    });
  let longest = 0;
  for (let row = 1; row < offsets.length; row++) {
    const length = offsets[row]! - offsets[row - 1]!;
    if (length < 0)
      throw new LossError('ERR_SHAPE_MISMATCH', {
        key: 'cuSeqlens',
        index: row,
        expected: `at least ${offsets[row - 1]}, as offsets must not decrease`,
        received: String(offsets[row]),
      });
    if (length > longest) longest = length;
  }
  return { rows: offsets.length - 1, rowLength: longest, tokens: offsets.at(-1)!, offsets };
}

// Copies the offsets, because native code addresses memory with them: they must not change after the check.
function copyOffsets(value: unknown): Int32Array {
  if (value instanceof Int32Array) {
    checkAttached('cuSeqlens', value);
    return allocate('cuSeqlens', () => new Int32Array(value));
  }
  if (Array.isArray(value) && isOffsets(value)) return allocate('cuSeqlens', () => Int32Array.from(value));
  throw new LossError('ERR_INVALID_INPUT', {
    key: 'cuSeqlens',
    expected: 'an Int32Array or whole numbers',
    received: describeValue(value),
  });
}

// A loop, because every() skips the holes of a sparse array and is slow on them.
function isOffsets(value: readonly unknown[]): value is number[] {
  for (let i = 0; i < value.length; i++) {
    const n = value[i];
    if (!Number.isInteger(n) || (n as number) < 0 || (n as number) >= 2 ** 31) return false;
  }
  return true;
}

/** Returns the shape that a per-token array must have, for error messages. */
export function describeShape(layout: Layout): string {
  return layout.offsets
    ? `${layout.tokens} values, the last offset of cuSeqlens`
    : `[${layout.rows}, ${layout.rowLength}] = ${layout.tokens} values`;
}
