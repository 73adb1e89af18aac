// The types of the arrays that callers pass as columns of a batch.

/** A column of 16-bit floats. JavaScript has no array type for both formats, so the bits are stored as integers. */
export interface HalfColumn {
  /** One element per float: its 16 bits. */
  data: Uint16Array;
  /** The format of the 16 bits. */
  dtype: 'float16' | 'bfloat16';
}

/**
 * One float per token, row after row, or a nested array of rows. Columns that allow it may have one value per row
 * instead, which then applies to all tokens of the row. An array with as many values as tokens is always read as one
 * value per token. A Float32Array is read in place, and 16-bit floats are widened while they are read. Other arrays are
 * converted in each call. Asynchronous calls do so in slices, so that long arrays do not block the event loop.
 */
export type FloatColumn =
  | Float32Array
  | Float64Array
  | HalfColumn
  | {
      /** The values. They are read in place, without a copy. */
      data: Float32Array;
      /** The dtype of `data`. */
      dtype: 'float32';
    }
  | readonly number[]
  | readonly (readonly number[])[];

/**
 * One flag per token, or per row for `expertMask`. 0 and false clear the flag; true and other numbers set it. A
 * Uint8Array is read in place.
 */
export type MaskColumn =
  | Uint8Array
  | readonly boolean[]
  | readonly number[]
  | readonly (readonly boolean[])[]
  | readonly (readonly number[])[];

/** One number per row. */
export type RowNumbers = Float64Array | Float32Array | readonly number[];

/** One id per row. */
export type RowIds = Int32Array | readonly (number | string)[];
