// The types of the batches that callers pass.
import type { CamelCase, SnakeCase } from '../base/options.js';
import type { InputName, InputWith, ValuesOf, VerlName } from './columns.js';

/** The inputs of a batch of B rows with T tokens each, besides the shape, under this package's own names. */
export type BatchInputs = { [N in InputName as CamelCase<N>]?: ValuesOf<N> };

/** The inputs of a batch of B rows with T tokens each, under this package's own names. */
export interface BatchColumns extends BatchInputs {
  /** The shape [B, T], for B rows that are padded to T tokens each. At most 2^20 rows may have no tokens. */
  shape?: readonly [number, number];
  /**
   * Offsets of packed rows, B + 1 numbers: row b holds the tokens from cuSeqlens[b] up to, but not including,
   * cuSeqlens[b + 1].
   */
  cuSeqlens?: Int32Array | readonly number[];
}

/** The inputs of a batch under Trinity-RFT's names (snake_case). */
export type TrinityColumns = { [K in keyof BatchColumns as SnakeCase<K>]?: BatchColumns[K] };

/** The inputs for which verl has other names than Trinity-RFT, under verl's names. */
export type VerlColumns = { [N in InputWith<'verl'> as VerlName<N>]?: ValuesOf<N> };

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
