// Corrections: which tokens a loss keeps and how it weights them. They are computed before the loss, in the same call.
import { types } from 'node:util';
import type { NativeBatch } from '../../binding.js';
import { inSlices, type Steps } from '../base/steps.js';
import { WEIGHTS_COLUMN } from '../batch/columns.js';
import type { Input, ReplacedColumns } from '../device/input.js';
import type { CallOptions, Metrics, Result } from './calls.js';

/** Computes which tokens of a batch a loss keeps and how it weights them. It runs before the loss, in the same call. */
export interface Correction {
  /** Whether the correction reduces over all rows of a batch, so that the batch cannot be computed in parts. */
  readonly readsWholeBatch: boolean;
  apply(input: Input, stream: bigint | undefined): Steps<Corrected>;
  /** Returns only the mask of the tokens that are kept, or undefined if all are. */
  mask(input: Input): Steps<Uint8Array | undefined>;
}

/** What a correction computes. */
export interface Corrected {
  readonly columns: ReplacedColumns;
  /** 0 for tokens whose gradient is 0, and 1 for others. Undefined if there are none of the former. */
  readonly passing?: Float32Array | undefined;
  readonly metrics: Metrics;
}

/** Returns a batch with the columns that a correction computed. */
export function withColumns(input: Input, columns: ReplacedColumns): Input {
  if (types.isExternal(input.native)) return { ...input, replaced: columns };
  const native = input.native as NativeBatch;
  const { mask, weights, logprob } = columns;
  const data = [...native.data];
  const dtypes = [...native.dtypes];
  if (logprob) [data[0], dtypes[0]] = [logprob, 0];
  if (weights) [data[WEIGHTS_COLUMN], dtypes[WEIGHTS_COLUMN]] = [weights, 0];
  return { ...input, native: { ...native, data, dtypes, mask: mask ?? native.mask } };
}

/**
 * Adds to the result of a corrected loss what its correction computed. A part of a batch has no metrics of the correction,
 * because they are means over other tokens than those that the loss keeps.
 */
export function* addCorrection(
  result: Result<Metrics>,
  { passing, metrics }: Corrected,
  { normalizer, part }: CallOptions,
): Steps<void> {
  if (normalizer === undefined && !part) Object.assign(result.metrics, metrics);
  const grad = result.grad ?? result.halfGrad?.data;
  if (!passing || !grad) return;
  yield* inSlices(grad.length, (begin, end) => {
    for (let i = begin; i < end; i++) if (passing[i] === 0) grad[i] = 0;
  });
}
