// The batches, the options and the results of losses that are computed from logits.

import type { SnakeCase } from '../base/options.js';
import type { Batch } from '../batch/batch.js';
import type { ComputeOptions, Metrics, Result } from '../call/calls.js';
import type { DeviceLogits, Logits } from '../logits/inputs.js';
import type { LogitsInputs } from '../logits/loss-inputs.js';

/** Options that every loss accepts. */
export interface LogitsLossOptions {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's; 'verl' by default. */
  backend?: string | undefined;
}

type SnakeCaseInputs<Source> = {
  [K in keyof LogitsInputs<Source> as SnakeCase<K>]?: LogitsInputs<Source>[K];
};

/** A batch with logits for computeSync(). Each key may be written in camelCase or in snake_case. */
export interface LogitsLossBatchSync extends Batch, LogitsInputs<Logits>, SnakeCaseInputs<Logits> {}

/**
 * A batch with logits for compute(). The logits and the probabilities, also those of the teacher, may be in memory of the
 * device that computes the call.
 */
export interface LogitsLossBatch
  extends Batch,
    LogitsInputs<Logits | DeviceLogits>,
    SnakeCaseInputs<Logits | DeviceLogits> {}

/** Options of a synchronous call that computes a loss from logits. */
export interface LogitsLossComputeSyncOptions extends Pick<ComputeOptions, 'normalizer' | 'part'> {
  /** true requests the gradient with respect to the logits in a new Float32Array, as gradLogits does. */
  grad?: boolean | undefined;
  /**
   * Requests the gradient with respect to the logits: true for a new Float32Array of shape [B, T, V], or an array that
   * receives it, in float32 or in the dtype of the logits. It may be the logits' own memory.
   */
  gradLogits?: boolean | Logits | undefined;
}

/** Options of an asynchronous call that computes a loss from logits. */
export interface LogitsLossComputeOptions
  extends Omit<LogitsLossComputeSyncOptions, 'gradLogits'>,
    Pick<ComputeOptions, 'device' | 'stream' | 'signal'> {
  /** As in {@link LogitsLossComputeSyncOptions}. On a device, it may also be memory of the device, such as that of the logits. */
  gradLogits?: LogitsLossComputeSyncOptions['gradLogits'] | DeviceLogits;
}

/** The result of a loss that is computed from logits. */
export interface LogitsLossResult<M = Metrics> extends Pick<Result<M>, 'loss' | 'metrics' | 'part'> {
  /**
   * Shape [B, T, V]: the gradient with respect to the logits, if the call requested it in an array of the host. It is 0 at
   * masked tokens.
   */
  gradLogits?: Logits;
  /** The gradient with respect to the probabilities, of a loss of these. */
  gradProbs?: Logits;
}
