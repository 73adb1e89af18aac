// From logits to log-probabilities and entropies, and the gradient back.
import type { AbortSignalLike } from '../base/abortable.js';
import { checkApart } from '../base/arrays.js';
import { allocate, describeValue, guarded, LossError } from '../base/errors.js';
import { native } from '../base/native.js';
import { type Steps, takeCall, takeLater, takeNow } from '../base/steps.js';
import { readRowNumbers } from '../batch/convert.js';
import type { RowNumbers } from '../batch/values.js';
import { checkStream } from '../device/stream.js';
import {
  type DeviceLogits,
  type Logits,
  type LogitsOptions,
  readLogits,
  readOut,
  refuseDevice,
} from './inputs.js';

/** Options of {@link logprobsSync}. */
export interface LogprobsSyncOptions extends LogitsOptions {
  /** true requests the entropies. */
  entropy?: boolean | undefined;
}

/** Options of {@link logprobs}. */
export interface LogprobsOptions extends LogprobsSyncOptions {
  /**
   * A stream of the device that computes the call: a cudaStream_t as a number, such as PyTorch's `stream.cuda_stream`, or
   * 0n for the default stream. The call's work on the device waits for the work that is on the stream when it begins. So
   * the caller need not synchronize the stream that writes the logits.
   */
  stream?: bigint | undefined;
  /** A signal that ends the call early when it is aborted. The call then rejects with `ERR_ABORTED`. */
  signal?: AbortSignalLike | undefined;
}

/** The result of {@link logprobs}. All numbers of ignored rows are 0. */
export interface LogprobsResult {
  /** Shape [N]: the natural logarithm of the probability of each row's target. */
  logprob: Float32Array;
  /**
   * Shape [N]: the logarithm of the sum of e^y, where y are the row's logits after softcap and temperature. It is
   * float64, because the gradient needs more digits of it than float32 has if logits are large.
   */
  logsumexp: Float64Array;
  /** Shape [N]: the entropy of each row's distribution, in nats, if the call requested it. */
  entropy?: Float32Array;
}

/** Options of {@link logprobsBackwardSync}. */
export interface LogprobsBackwardSyncOptions extends LogitsOptions {
  /** Shape [N]: the gradient of the loss with respect to each row's log-probability. */
  gradLogprob: RowNumbers;
  /** Shape [N]: the gradient of the loss with respect to each row's entropy. The default is 0. */
  gradEntropy?: RowNumbers | undefined;
  /**
   * Shape [N]: `logsumexp` of logprobs() for the same logits and options. If it is missing, it is computed again, which
   * reads the logits once more.
   */
  logsumexp?: RowNumbers | undefined;
  /** Shape [N]: `entropy` of logprobs(), for gradEntropy. Values that are not given are computed again, as above. */
  entropy?: RowNumbers | boolean | undefined;
  /**
   * Receives the gradient: an array of N·V values, in float32 or in the logits' own dtype. Numbers of 16 bits are rounded
   * to the nearest, and to the even one of two. It may be exactly the logits' own memory, in which case row i of the
   * gradient replaces row i of the logits. The default is a new Float32Array.
   */
  out?: Logits | undefined;
}

/** Options of {@link logprobsBackward}. */
export interface LogprobsBackwardOptions extends Omit<LogprobsBackwardSyncOptions, 'out'> {
  /**
   * Receives the gradient, as in {@link LogprobsBackwardSyncOptions}. On a device, it may also be memory of the device:
   * exactly the logits' own, or other memory of the shape [N, V].
   */
  out?: Logits | DeviceLogits | undefined;
  /**
   * A stream of the device that computes the call: a cudaStream_t as a number, such as PyTorch's `stream.cuda_stream`, or
   * 0n for the default stream. The call's work on the device waits for the work that is on the stream when it begins. So
   * the caller need not synchronize the stream that writes the logits.
   */
  stream?: bigint | undefined;
  /**
   * A signal that ends the call early when it is aborted. The call then rejects with `ERR_ABORTED`, and `out` may be
   * partly written.
   */
  signal?: AbortSignalLike | undefined;
}

/**
 * Computes the log-probability of each row's target token from logits: y = softcap·tanh(x/softcap)/temperature, then
 * y[target] − logsumexp(y). The sum is over the whole row, or over the row's support. Logits of −Infinity have
 * probability 0 and add nothing to the entropy. Ignored rows are not read.
 *
 * The logits are read once. A row's results have the same bits for any number of rows and threads.
 *
 * A CUDA device reads logits in its memory in place, and copies others a few rows at a time. It rounds differently than
 * the CPU.
 *
 * @param logits shape [N, V].
 * @returns the results. The promise rejects with LossError
 * - `ERR_MISSING_INPUT` or `ERR_INVALID_INPUT` if an argument is missing or has the wrong type, an array is detached, or
 *   a target is not a token of the vocabulary, or not one of its row's support;
 * - `ERR_SHAPE_MISMATCH` if an array has the wrong length;
 * - `ERR_INVALID_OPTION` if a temperature or the softcap is not positive;
 * - `ERR_DEVICE_UNAVAILABLE` if the device does not exist or fails;
 * - `ERR_OUT_OF_MEMORY` or `ERR_ABORTED`.
 *
 * The index in an error's message is that of the row.
 */
export async function logprobs(
  logits: Logits | DeviceLogits,
  options: LogprobsOptions & { entropy: true },
): Promise<LogprobsResult & { entropy: Float32Array }>;
/** Without `entropy: true`, the result has no entropies. */
export async function logprobs(
  logits: Logits | DeviceLogits,
  options: LogprobsOptions,
): Promise<LogprobsResult>;
export async function logprobs(
  logits: Logits | DeviceLogits,
  options: LogprobsOptions,
): Promise<LogprobsResult> {
  return takeLater(forward(logits, options), options);
}

/**
 * Synchronous version of {@link logprobs}.
 * @throws LossError as logprobs() rejects.
 */
export function logprobsSync(
  logits: Logits,
  options: LogprobsSyncOptions & { entropy: true },
): LogprobsResult & { entropy: Float32Array };
/** Without `entropy: true`, the result has no entropies. */
export function logprobsSync(logits: Logits, options: LogprobsSyncOptions): LogprobsResult;
export function logprobsSync(logits: Logits, options: LogprobsSyncOptions): LogprobsResult {
  return guarded(() => takeNow(forward(logits, checkSyncOptions(options))));
}

/**
 * Computes the gradient of a loss with respect to the logits from its gradients with respect to the results of
 * {@link logprobs}. The logits are read once and the gradient is written once. The gradient is exactly 0 in ignored rows
 * and outside a row's support.
 *
 * @param logits the logits that were passed to logprobs(), shape [N, V].
 * @returns the gradient: `out` if it is given, otherwise a new Float32Array of shape [N, V]. The promise rejects with the
 * LossErrors of logprobs(), and with `ERR_INVALID_INPUT` if `out` overlaps with an input but is not exactly the logits'
 * own memory.
 */
export async function logprobsBackward(
  logits: Logits | DeviceLogits,
  options: LogprobsBackwardOptions & { out?: undefined },
): Promise<Float32Array>;
/** Writes the gradient to `out`, and returns it. */
export async function logprobsBackward<Out extends Logits | DeviceLogits>(
  logits: Logits | DeviceLogits,
  options: LogprobsBackwardOptions & { out: Out },
): Promise<Out>;
/** Returns `out` if it is given, otherwise a new Float32Array. */
export async function logprobsBackward(
  logits: Logits | DeviceLogits,
  options: LogprobsBackwardOptions & { out?: Logits | undefined },
): Promise<Logits>;
/** Returns `out` if it is given, otherwise a new Float32Array. */
export async function logprobsBackward(
  logits: Logits | DeviceLogits,
  options: LogprobsBackwardOptions,
): Promise<Logits | DeviceLogits>;
export async function logprobsBackward(
  logits: Logits | DeviceLogits,
  options: LogprobsBackwardOptions,
): Promise<Logits | DeviceLogits> {
  return takeLater(backward(logits, options), options);
}

/**
 * Synchronous version of {@link logprobsBackward}.
 * @throws LossError as logprobsBackward() rejects.
 */
export function logprobsBackwardSync(
  logits: Logits,
  options: LogprobsBackwardSyncOptions & { out?: undefined },
): Float32Array;
/** Writes the gradient to `out`, and returns it. */
export function logprobsBackwardSync<Out extends Logits>(
  logits: Logits,
  options: LogprobsBackwardSyncOptions & { out: Out },
): Out;
/** Returns `out` if it is given, otherwise a new Float32Array. */
export function logprobsBackwardSync(logits: Logits, options: LogprobsBackwardSyncOptions): Logits;
export function logprobsBackwardSync(logits: Logits, options: LogprobsBackwardSyncOptions): Logits {
  return guarded(() => takeNow(backward(logits, checkSyncOptions(options)))) as Logits;
}

function checkOptions<Options extends object>(options: Options): Options {
  if (typeof options === 'object' && options !== null) return options;
  throw new LossError('ERR_MISSING_INPUT', {
    key: 'options',
    expected: 'an object with shape and targets',
    received: describeValue(options),
  });
}

function checkSyncOptions<Options extends LogitsOptions>(options: Options): Options {
  refuseDevice(checkOptions(options).device);
  return options;
}

// These two read all options before they first yield, because the caller may change them afterwards.
function* forward(logits: Logits | DeviceLogits, options: LogprobsOptions): Steps<LogprobsResult> {
  const { entropy, stream } = checkOptions(options);
  const input = yield* readLogits(logits, options);
  checkStream(stream, input.device);
  const { rows } = input;
  const result = allocate(`the results of ${rows} rows`, () => ({
    logprob: new Float32Array(rows),
    logsumexp: new Float64Array(rows),
    ...(entropy === true && { entropy: new Float32Array(rows) }),
  }));
  yield* takeCall(native.logits, { ...input, ...result, stream });
  return result;
}

function* backward(
  logits: Logits | DeviceLogits,
  options: LogprobsBackwardOptions,
): Steps<Logits | DeviceLogits> {
  const { gradLogprob, gradEntropy, logsumexp, entropy, out, stream } = checkOptions(options);
  const input = yield* readLogits(logits, options);
  const perRow = (key: string, value: RowNumbers) => readRowNumbers(key, value, input.rows);
  const grads = {
    gradLogprob: yield* perRow('gradLogprob', gradLogprob),
    gradEntropy: gradEntropy == null ? undefined : yield* perRow('gradEntropy', gradEntropy),
    logsumexp: logsumexp == null ? undefined : yield* perRow('logsumexp', logsumexp),
  };
  const hasEntropy = gradEntropy != null && entropy != null && typeof entropy !== 'boolean';
  const entropies = hasEntropy ? new Float32Array(yield* perRow('entropy', entropy)) : undefined;
  const { temperatures: temperature, tokenIds } = input;
  const grad = readOut(out, input);
  checkApart('out', grad.out, { ...grads, temperature, 'support.tokenIds': tokenIds });
  checkStream(stream, input.device);
  yield* takeCall(native.logits, { ...input, ...grads, entropy: entropies, ...grad, stream });
  return (out ?? grad.out) as Logits | DeviceLogits;
}
