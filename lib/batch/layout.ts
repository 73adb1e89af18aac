// Reads the layout of a batch: how many rows it has, how long they are, and where each one begins.

import { describeValue, LossError } from '../base/errors.js';
import { inSlices, type Steps } from '../base/steps.js';
import { type Batch, find } from './batch.js';
import { copyIntegers, decreasingOffset } from './integers.js';

/** The layout of a batch's rows, which are padded to one length or packed without padding. */
export interface Layout {
  /** B, the number of rows. */
  rows: number;
  /** T, the number of tokens in each padded row; for packed rows, the length of the longest row. */
  rowLength: number;
  /** The number of tokens, including padding: the length of an array with one value per token. */
  tokens: number;
  /**
   * Packed rows only: the B + 1 offsets from `cuSeqlens`. Row b holds the tokens from offsets[b] up to, but not
   * including, offsets[b + 1].
   */
  offsets: Int32Array | undefined;
}

/** The keys under which a batch may have the offsets of packed rows. */
export const CU_SEQLENS = ['cuSeqlens', 'cu_seqlens'] as const;

// The maximum number of rows in addition to one per token. Rows without tokens need no columns, so without this limit a
// batch could claim any number of rows.
const MAX_EMPTY_ROWS = 2 ** 20;

const MAX_NESTED_TOKENS = 2 ** 31 - 1;

/**
 * Reads a batch's layout from `shape` or `cuSeqlens`. If the batch has neither, the layout is that of `nested`.
 * @param nested one of the batch's columns. It determines the layout only if it is a nested array (an array of rows).
 * @throws LossError `ERR_MISSING_INPUT`, `ERR_INVALID_INPUT` or `ERR_SHAPE_MISMATCH`
 */
export function* readLayout(batch: Batch, nested?: unknown): Steps<Layout> {
  const shape = batch.shape ?? undefined;
  const cuSeqlens = find(batch, CU_SEQLENS);
  if (shape !== undefined && cuSeqlens !== undefined)
    throw new LossError('ERR_INVALID_INPUT', {
      at: 'batch',
      expected: 'either shape or cuSeqlens',
      received: 'both',
    });
  if (cuSeqlens !== undefined) return yield* packedLayout(cuSeqlens.key, cuSeqlens.value);
  if (shape !== undefined) return paddedLayout(shape);
  if (Array.isArray(nested) && nested.length > 0 && Array.isArray(nested[0])) {
    const [rows, rowLength] = [nested.length, nested[0].length];
    // An array can claim any length.
    if (rows * rowLength > MAX_NESTED_TOKENS)
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'batch',
        expected: `nested arrays of at most ${MAX_NESTED_TOKENS} numbers`,
        received: `${rows} rows of ${rowLength}`,
      });
    return paddedLayout([rows, rowLength]);
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
  checkEmptyRows('shape', rows, rows * rowLength);
  return { rows, rowLength, tokens: rows * rowLength, offsets: undefined };
}

function checkEmptyRows(key: string, rows: number, tokens: number): void {
  if (rows - tokens > MAX_EMPTY_ROWS)
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: `at most ${MAX_EMPTY_ROWS} rows without tokens`,
      received: `${rows} rows of ${tokens} tokens`,
    });
}

// Describes a short list with all its elements, so that the error message shows which one is wrong.
function describeList(value: unknown): string {
  if (!Array.isArray(value) || value.length > 8) return describeValue(value);
  return `[${Array.from(value, (n: unknown) => (typeof n === 'number' ? n : describeValue(n))).join(', ')}]`;
}

function* packedLayout(key: string, value: unknown): Steps<Layout> {
  // A copy, because native code computes memory addresses from the offsets.
  const offsets = yield* copyIntegers(key, value, 0, (length) => {
    const last = (value as ArrayLike<unknown>)[length - 1];
    checkEmptyRows(key, length - 1, isOffset(last) ? last : 0);
  });
  if (offsets.length === 0 || offsets[0] !== 0)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: 'B + 1 offsets that begin with 0',
      received: offsets.length === 0 ? 'none' : `${offsets[0]} as the first one`,
    });
  const rows = offsets.length - 1;
  let longest = 0;
  yield* inSlices(rows, (begin, end) => {
    longest = Math.max(longest, longestRow(key, offsets, begin, end));
  });
  return { rows, rowLength: longest, tokens: offsets[rows]!, offsets };
}

function isOffset(value: unknown): value is number {
  return typeof value === 'number' && value >= 0 && value < 2 ** 31;
}

function longestRow(key: string, offsets: Int32Array, begin: number, end: number): number {
  let longest = 0;
  for (let row = begin; row < end; row++) {
    const length = offsets[row + 1]! - offsets[row]!;
    if (length < 0) throw decreasingOffset(key, offsets, row + 1);
    if (length > longest) longest = length;
  }
  return longest;
}

/** Describes the required length of an array with one value per token, for error messages. */
export function describeShape(layout: Layout): string {
  return layout.offsets
    ? `${layout.tokens} values, the last offset of cuSeqlens`
    : `[${layout.rows}, ${layout.rowLength}] = ${layout.tokens} values`;
}
