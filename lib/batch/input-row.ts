// The facts about each input in the table of columns.ts.
import type { NativeAdvantageBatch } from '../../binding.js';
import type { FloatColumn, HalfColumn, MaskColumn, RowIds, RowNumbers } from './values.js';

/** The TypeScript types of each type of input. */
export interface ValuesOfType {
  floats: FloatColumn;
  flags: MaskColumn;
  numbers: RowNumbers | HalfColumn;
  ids: RowIds;
  step: number | ArrayLike<number>;
}

/** One input. Its key in the table is its Trinity-RFT name. */
export interface InputRow {
  /** The type of its values: floats, flags (a mask), one number or id per row, or the step. */
  readonly type: keyof ValuesOfType;
  /**
   * Whether there is one value per token, one per row, or what the caller prefers. 'pair' is one value per pair of rows, or
   * one per row.
   */
  readonly per: 'token' | 'row' | 'either' | 'pair';
  /** A description of the values, which completes "expected …" in the error for a missing input. */
  readonly expected: string;
  /** A sentence about it without its shape, for the published declarations and docs/columns.md. */
  readonly help: string;
  /** What to do if a value is missing or NaN, for error messages. */
  readonly hint?: string;
  /** verl's name, if it differs. */
  readonly verl?: string;
  /** The column's name in rollout files. Undefined if files have none. */
  readonly file?: string;
  /** The short name in expressions. Without one, only the losses of this package can name the input. */
  readonly symbol?: string;
  /** The index in NativeBatch.data, if losses read the floats. */
  readonly loss?: number;
  /** The index in NativeAdvantageBatch.data, if advantage functions read the floats, which are then one per token. */
  readonly advantage?: number;
  /** The index in NativeBatch.rowData, if losses read it of rows. */
  readonly row?: number;
  /** The input whose place in NativeBatch.rowData it takes in the losses that read it. */
  readonly takesPlaceOf?: 'group_ids';
  /**
   * The value of each row in a batch without the input; of ids, 'own' for an id of its own; 'alternate' if the rows of pairs
   * alternate. Undefined if it is required.
   */
  readonly absent?: number | 'own' | 'alternate';
  /** The input that a batch may lack if it has this one. */
  readonly standsFor?: 'ref_logprob';
  /** Whether the values are those of a second set of rows, which may have another length. */
  readonly ofOtherRows?: true;
  /** The member of a native batch that has the input, if it has a member of its own. */
  readonly member?: keyof NativeAdvantageBatch;
}
