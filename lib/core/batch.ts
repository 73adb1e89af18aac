// The types of the batches that callers pass.
import type { SnakeCase } from './options.js';

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

/** The inputs of a batch of B rows with T tokens each, under this package's own names. */
export interface BatchColumns {
  /** The shape [B, T], for B rows that are padded to T tokens each. */
  shape?: readonly [number, number];
  /**
   * Offsets of packed rows, B + 1 numbers: row b holds the tokens from cuSeqlens[b] up to, but not including,
   * cuSeqlens[b + 1].
   */
  cuSeqlens?: Int32Array | readonly number[];
  /** Shape [B, T]: each token's log-probability under the current policy. Gradients are taken with respect to it. */
  logprob?: FloatColumn;
  /** Shape [B, T]: each token's log-probability under the policy that sampled it. */
  oldLogprob?: FloatColumn;
  /** Shape [B, T]: each token's log-probability under the reference policy. */
  refLogprob?: FloatColumn;
  /** Shape [B, T]: each token's log-probability as the inference engine reported it when it sampled the token. */
  rolloutLogprob?: FloatColumn;
  /** Shape [B, T]: each token's log-probability under the proximal policy, the policy at the start of the update. */
  proxLogprob?: FloatColumn;
  /** The advantages: shape [B, T], or [B] for one advantage per row. */
  advantages?: FloatColumn;
  /**
   * Shape [B, T]: 0 masks a token. Losses and gradients do not depend on the values of masked tokens. Some advantage
   * functions do read their rewards; the details of those functions say so.
   */
  actionMask?: MaskColumn;
  /** Shape [B, T]: the entropy of the policy's distribution at each token. */
  entropy?: FloatColumn;
  /**
   * Shape [B]: true for each row that an expert wrote. Read by MIX and the other losses that treat these rows
   * differently.
   */
  expertMask?: MaskColumn;
  /** The trainer's step number, given once or as B equal numbers. Read by MIX-CHORD. */
  step?: number | ArrayLike<number>;
  /** Shape [B]: the reward of each row, for advantage functions. */
  rewards?: RowNumbers;
  /** Shape [B]: an id for each row. Rows that answer the same prompt have the same id and form a group. */
  groupIds?: RowIds;
  /** Shape [B]: an id for each row. Rows of a group with the same id are the steps of one run. */
  runIds?: RowIds;
  /** Shape [B, T]: the reward of each token. */
  tokenLevelRewards?: FloatColumn;
  /** Shape [B, T]: the score of each token, from which the KL penalty is subtracted to get its reward. */
  tokenLevelScores?: FloatColumn;
  /** Shape [B, T]: a critic's estimate of the value at each token. */
  values?: FloatColumn;
  /** Shape [B]: the reward of the greedy answer to each row's prompt. */
  rewardBaselines?: RowNumbers;
  /** Shape [B, T]: each token's log-probability under a teacher. */
  teacherLogprob?: FloatColumn;
  /** Shape [B, T]: for each token, the sum of the squared probabilities of all words of the vocabulary. */
  sumPiSquared?: FloatColumn;
  /** Shape [B, T]: the importance weight of each token from a rollout correction. */
  rolloutIsWeights?: FloatColumn;
}

/** The inputs of a batch under Trinity-RFT's names (snake_case). */
export type TrinityColumns = { [K in keyof BatchColumns as SnakeCase<K>]?: BatchColumns[K] };

/** The inputs for which verl has other names than Trinity-RFT, under verl's names. */
export interface VerlColumns {
  /** Verl's name of `logprob`. */
  log_prob?: FloatColumn;
  /** Verl's name of `oldLogprob`. */
  old_log_probs?: FloatColumn;
  /** Verl's name of `refLogprob`. */
  ref_log_prob?: FloatColumn;
  /** Verl's name of `rolloutLogprob`. */
  rollout_log_probs?: FloatColumn;
  /** Verl's name of `actionMask`. */
  response_mask?: MaskColumn;
}

/**
 * A batch of B rows. The rows either have T tokens each or are packed, which means stored one after another without
 * padding. Each key may be written as here, as in Trinity-RFT (`old_logprob`) or as in verl (`old_log_probs`).
 * Log-probabilities and entropies are in nats.
 *
 * Functions ignore keys that they do not read. The type has only the keys that a function may read, so that TypeScript
 * reports a misspelt one. For a batch with other keys, such as prompts or the names of a backend that you registered, use
 * {@link BatchWith}.
 */
export interface Batch extends BatchColumns, TrinityColumns, VerlColumns {}

/**
 * A batch that also has keys of the caller, which are either names of columns in a backend that the caller registered
 * or are ignored. `BatchWith<'prompt' | 'lp'>` has these two keys. `BatchWith<string>` may have any keys, so TypeScript
 * does not report a misspelt one.
 */
export type BatchWith<K extends string> = Batch & { [key in K]?: unknown };

/** An input of a batch, and the key under which the batch has it. */
export interface FoundInput {
  key: string;
  value: unknown;
}

/**
 * Returns the first of the given keys for which the batch has a value, and this value. Returns undefined if it has
 * none.
 */
export function find(batch: object, keys: readonly string[]): FoundInput | undefined {
  for (const key of keys) {
    const value = (batch as Record<string, unknown>)[key];
    if (value !== undefined && value !== null) return { key, value };
  }
  return undefined;
}
