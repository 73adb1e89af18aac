// Batches as callers pass them.

/** 16-bit floats, as their bits. */
export interface HalfColumn {
  /** The 16 bits of each element. */
  data: Uint16Array;
  /** The 16-bit format. */
  dtype: 'float16' | 'bfloat16';
}

/**
 * One float per token (row-major), or one per row if it is the same for all tokens of the row. An array with as many
 * values as tokens is always read as one per token. Float32Array is read in place, the 16-bit dtypes are widened while
 * they are read, and everything else is converted once.
 */
export type FloatColumn =
  | Float32Array
  | Float64Array
  | HalfColumn
  | {
      /** The values, read in place. */
      data: Float32Array;
      /** The dtype of `data`. */
      dtype: 'float32';
    }
  | readonly number[]
  | readonly (readonly number[])[];

/** One flag per token, or per row for expertMask: 0 or false, else any number or true. Uint8Array is read in place. */
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

/**
 * A batch of B rows with T tokens each, or of packed rows. Every key may also be Trinity-RFT's (`old_logprob`) or the
 * backend's (`old_log_probs` for verl). Keys that a function does not read are ignored. Log-probabilities and entropies
 * are in nats.
 */
export interface Batch {
  /** [B, T] of rows that are padded to one length. */
  shape?: readonly [number, number];
  /** [B + 1] offsets of packed rows: row b holds the tokens from cuSeqlens[b] up to cuSeqlens[b + 1]. */
  cuSeqlens?: Int32Array | readonly number[];
  /** [B, T] log-probability of each token under the current policy; gradients are taken with respect to it. */
  logprob?: FloatColumn;
  /** [B, T] log-probability under the policy that sampled. */
  oldLogprob?: FloatColumn;
  /** [B, T] log-probability under the reference policy. */
  refLogprob?: FloatColumn;
  /** [B, T] or [B] advantages. */
  advantages?: FloatColumn;
  /**
   * [B, T]; a token with 0 is masked: it does not affect the loss or gradient, whatever its values. Some advantage
   * functions read its reward, as their details say.
   */
  actionMask?: MaskColumn;
  /** [B, T] entropy of the policy's distribution at each token. */
  entropy?: FloatColumn;
  /** [B]; true for a row that an expert wrote (MIX). */
  expertMask?: MaskColumn;
  /** The trainer's step number: one number, or [B] equal numbers (MIX-CHORD). */
  step?: number | ArrayLike<number>;
  /** [B] reward of each row; advantages are computed from it. */
  rewards?: RowNumbers;
  /** [B] ids, equal in all rows that answer the same prompt. */
  groupIds?: RowIds;
  /** [B] ids, equal in all rows of one run of several steps. */
  runIds?: RowIds;
  /** [B, T] reward of each token. */
  tokenLevelRewards?: FloatColumn;
  /** [B, T] values of a critic. */
  values?: FloatColumn;
  /** [B] reward of the greedy answer to each row's prompt. */
  rewardBaselines?: RowNumbers;
  /** [B, T] log-probability of each token under a teacher. */
  teacherLogprob?: FloatColumn;
  [key: string]: unknown;
}

/** Returns the first of the keys that the batch has, with its value. */
export function find(batch: object, keys: readonly string[]): { key: string; value: unknown } | undefined {
  for (const key of keys) {
    const value = (batch as Record<string, unknown>)[key];
    if (value !== undefined && value !== null) return { key, value };
  }
  return undefined;
}
