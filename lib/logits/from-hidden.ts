// From hidden states to a loss and, if wanted, back to the gradients with respect to the hidden states and to the output
// head, in one call.
import { type Steps, takeLater } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import type {
  LossComputeOptions,
  LossComputeSyncOptions,
  LossResult,
  Requested,
  RequestOf,
  Requests,
} from '../call/calls.js';
import {
  checkBatch,
  evaluate,
  type LogitsColumns,
  type LogitsResult,
  type LossOfLogits,
} from './from-logits.js';
import { readHead, readHeadGradients, resultOf } from './head.js';
import { HeadSource } from './head-source.js';
import { type Logits, takeNowOnCpu } from './inputs.js';

/** Numbers of a model, as float32, float16 or bfloat16. They are read in place. */
export type ModelNumbers = Logits;

/**
 * A batch for fromHidden() and fromHiddenSync(): hidden states and the output head of the model take the place of
 * log-probabilities and entropies. The logits are hidden·weightᵀ + bias. Only the batch's own properties are read.
 */
export interface HiddenBatch
  extends Omit<Batch, 'logprob' | 'log_prob' | 'entropy'>,
    Pick<LogitsColumns<unknown>, 'targets' | 'temperature' | 'softcap' | 'support'> {
  /** Shape [B, T, D]: the last hidden states, from which the head computes the logits. Those of masked tokens are not read. */
  hidden: ModelNumbers;
  /** Shape [V, D]: the weight of the head, with one row for each token of the vocabulary. */
  weight: ModelNumbers;
  /** Shape [V]: the bias of the head. The default is none. */
  bias?: ModelNumbers | undefined;
}

/** Options of fromHiddenSync(). */
export interface FromHiddenSyncOptions extends LossComputeSyncOptions {
  /** true returns the entropies, and passes them to an objective that could do without them. */
  entropy?: boolean | undefined;
  /**
   * Requests the gradient of the loss with respect to the hidden states: true for a new Float32Array of shape [B, T, D], or
   * an array that receives it, in float32 or in the dtype of the hidden states. Like `gradLogits` of fromLogits(), it needs
   * `grad` and `gradEntropy` in float32 in host memory.
   */
  gradHidden?: boolean | ModelNumbers | undefined;
  /** Requests the gradient with respect to the weight, in the same way. It is float32, because it is a sum over tokens. */
  gradWeight?: boolean | Float32Array | undefined;
  /** Requests the gradient with respect to the bias, likewise in float32. */
  gradBias?: boolean | Float32Array | undefined;
}

/** Options of fromHidden(). */
export interface FromHiddenOptions
  extends FromHiddenSyncOptions,
    Pick<LossComputeOptions, 'device' | 'stream' | 'signal'> {}

/** What fromHidden() returns in addition to the result of the loss. */
export interface HiddenResult extends Omit<LogitsResult, 'gradLogits'> {
  /** Shape [B, T, D]: the gradient with respect to the hidden states, if the call requested it; 0 if the token is masked. */
  gradHidden?: ModelNumbers;
  /** Shape [V, D]: the gradient with respect to the weight, if the call requested it. */
  gradWeight?: Float32Array;
  /** Shape [V]: the gradient with respect to the bias, if the call requested it. */
  gradBias?: Float32Array;
}

/** The options of fromHidden() that request something; see {@link Requests}. */
export interface HiddenRequests
  extends Requests,
    Pick<FromHiddenOptions, 'gradHidden' | 'gradWeight' | 'gradBias' | 'entropy'> {}

/** What fromHidden() certainly returns for the requests R; see {@link Requested}. */
export type RequestedHidden<R> = Requested<R> &
  RequestedArray<R, 'gradHidden'> &
  RequestedArray<R, 'gradWeight'> &
  RequestedArray<R, 'gradBias'> &
  (RequestOf<R, 'entropy'> extends true ? { entropy: Float32Array } : unknown);

type RequestedArray<R, Key extends string> =
  RequestOf<R, Key> extends true
    ? { [K in Key]: Float32Array }
    : RequestOf<R, Key> extends ModelNumbers
      ? { [K in Key]: RequestOf<R, Key> }
      : unknown;

/** @internal Implements fromHidden() of losses and objectives. */
export function fromHidden<R extends LossResult<unknown>>(
  loss: LossOfLogits<R>,
  batch: HiddenBatch,
  options: FromHiddenOptions | undefined,
): Promise<R & HiddenResult> {
  return takeLater(compute(loss, batch, options), options);
}

/** @internal Implements fromHiddenSync() of losses and objectives. */
export function fromHiddenSync<R extends LossResult<unknown>>(
  loss: LossOfLogits<R>,
  batch: HiddenBatch,
  options: FromHiddenSyncOptions | undefined,
): R & HiddenResult {
  return takeNowOnCpu(options, () => compute(loss, batch, options));
}

function* compute<R extends LossResult<unknown>>(
  loss: LossOfLogits<R>,
  given: HiddenBatch,
  options: FromHiddenOptions | undefined,
): Steps<R & HiddenResult> {
  const { hidden, weight, bias, ...batch } = checkBatch(given, 'hidden states');
  const { gradHidden, gradWeight, gradBias, ...others } = options ?? {};
  const wanted = { gradHidden, gradWeight, gradBias };
  let source: HeadSource | undefined;
  try {
    const result = yield* evaluate(loss, batch, others, (tokens, device) => {
      const head = readHead({ hidden, weight, bias }, tokens);
      const gradients = readHeadGradients(wanted, head);
      source = new HeadSource(head, tokens, gradients, { device, stream: others.stream });
      return { source, out: source.out(resultOf(gradients, wanted)) };
    });
    yield* source!.finish();
    return result as R & HiddenResult;
  } finally {
    source?.release();
  }
}
