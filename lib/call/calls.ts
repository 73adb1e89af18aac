// The options and the results of calls that compute a loss.
import type { AbortSignalLike } from '../base/abortable.js';
import type { Float16ArrayLike } from '../base/arrays.js';
import type { Normalizer } from '../batch/counts.js';
import type { HalfColumn } from '../batch/values.js';
import type { DeviceGradient } from '../device/device-gradient.js';

/** Requests a gradient in 16 bits: each float32 value, rounded to the nearest number of the dtype. */
export interface HalfGradientRequest extends Pick<HalfColumn, 'dtype'> {
  /** The array that receives the gradient, B×T elements. Without it, the gradient gets an array of its own. */
  data?: Uint16Array | undefined;
}

/** Where a call is to write a gradient; see {@link ComputeSyncOptions.grad}. */
export type GradientRequest = boolean | Float32Array | HalfGradientRequest | Float16ArrayLike | DeviceRequest;

/** Options of a call that computes a loss synchronously. */
export interface ComputeSyncOptions {
  /**
   * true requests the gradient in an array of its own: ∂loss/∂logprob, or the one by values or by rewards of a loss of
   * these. To receive it in an existing array, pass a
   * Float32Array with B×T elements. `{ dtype: 'bfloat16' }` or `{ dtype: 'float16' }` requests 16 bits per value, which
   * are returned as `halfGrad`; `data`, or a Float16Array instead of the object, receives them in an existing array.
   * `'device'` leaves it on the CUDA device that computes the call, and returns it as `deviceGrad`. `'shareable'` does so
   * in memory that other processes can open, which takes at least 2 MiB. To overwrite the `deviceGrad` of an earlier call,
   * pass it.
   */
  grad?: GradientRequest;
  /**
   * If this batch is one part of a larger batch (a micro-batch): the counts of the larger batch, from {@link
   * sumCounts}. The losses, gradients and metrics of all parts then add up to those of the larger batch. The metrics
   * kl_coef and mu are exceptions, because they are coefficients and not sums.
   */
  normalizer?: Normalizer;
  /**
   * true requests the sums of this part of a batch, as `part` of the result. merge() computes the loss and the metrics
   * of the whole batch from the sums of all parts. Adding up the results of the parts gives the same, but rounded.
   */
  part?: boolean;
}

/** Options of an asynchronous call that may run on a CUDA device. */
export interface DeviceCallOptions {
  /**
   * The device that computes a host batch: 'cpu' (the default), 'cuda', 'cuda:1', …. A DeviceBatch is always computed
   * on its own device.
   */
  device?: string;
  /**
   * A stream of the device that computes the call: a cudaStream_t as a number, such as PyTorch's `stream.cuda_stream`, or
   * 0n for the default stream. The call's work on the device waits for the work that is on the stream when it begins. So
   * the caller need not synchronize the stream before the call, for example before a gradient on the device is
   * overwritten.
   */
  stream?: bigint;
}

/** Options of a call that computes a loss asynchronously. */
export interface ComputeOptions extends ComputeSyncOptions, DeviceCallOptions {
  /**
   * A signal that ends the call early when it is aborted. The call then rejects with `ERR_ABORTED`, and an array that
   * was passed as `grad` may be partly written.
   */
  signal?: AbortSignalLike;
}

/** Options of a synchronous call that computes a policy loss. */
export interface LossComputeSyncOptions extends ComputeSyncOptions {
  /**
   * Requests ∂loss/∂entropy as `grad` requests ∂loss/∂logprob: B×T values, which are 0 if the loss does not depend on
   * entropies. In 16 bits, it is returned as `halfGradEntropy`, and on a device as `deviceGradEntropy`.
   */
  gradEntropy?: GradientRequest;
  /** Requests ∂loss/∂log_z, in float32 on the host: B values, which are 0 if the loss does not depend on log_z. */
  gradLogZ?: boolean | Float32Array;
}

/** Options of an asynchronous call that computes a policy loss. */
export interface LossComputeOptions extends ComputeOptions, LossComputeSyncOptions {}

/** Metrics under their Trinity-RFT names. */
export type Metrics = Record<string, number>;

/** The result of computing a loss. */
export interface Result<M = Metrics> {
  /** The loss, in the function's own unit (nats for log-likelihoods). */
  loss: number;
  /** The metrics under their Trinity-RFT names. Each class documents the units of its metrics. */
  metrics: M;
  /** Shape [B, T]: the gradient ∂loss/∂logprob, if the call requested it. It is exactly 0 at masked tokens. */
  grad?: Float32Array;
  /** The same in 16 bits, if the call requested it so. It can be used as a column. */
  halfGrad?: HalfColumn;
  /** The same on the device, if the call requested it there. */
  deviceGrad?: DeviceGradient;
  /**
   * The sums that merge() needs of this part of a batch, if the call requested them. They are exact, and can be stored
   * or sent elsewhere as a list of numbers.
   */
  part?: Float64Array;
}

/** The result of computing a policy loss. */
export interface LossResult<M = Metrics> extends Result<M> {
  /** Shape [B, T]: the gradient ∂loss/∂entropy, if the call requested it. It is exactly 0 at masked tokens. */
  gradEntropy?: Float32Array;
  /** The same in 16 bits, if the call requested it so. */
  halfGradEntropy?: HalfColumn;
  /** The same on the device, if the call requested it there. */
  deviceGradEntropy?: DeviceGradient;
  /** Shape [B]: the gradient ∂loss/∂log_z, if the call requested it. */
  gradLogZ?: Float32Array;
  /**
   * The options for the next call of a loss that has a state, such as the running mean of `trl/bco`: `new
   * TRLBCOLossFn({ ...options, ...state })`.
   */
  state?: Record<string, number>;
}

/** The result of a loss whose gradient is that by another column than logprob. K is the gradient's key. */
export type ResultOf<K extends string, M = Metrics> = Pick<Result<M>, 'loss' | 'metrics' | 'part'> & {
  /** The gradient by the loss's column, if the call requested it with `grad`. */
  [P in K]?: Float32Array;
} & {
  /** The same in 16 bits, if the call requested it so. */
  [P in K as `half${Capitalize<P>}`]?: HalfColumn;
} & {
  /** The same on the device, if the call requested it there. */
  [P in K as `device${Capitalize<P>}`]?: DeviceGradient;
};

/** What a result with the gradient K certainly has, because its call requested it with `grad`. */
export type RequestedOf<K extends string, R> = GradientOf<K, RequestOf<R, 'grad'>> & RequestedPart<R>;

/** The options of a call that request something. The type of those that were given tells what the result has. */
export interface Requests
  extends Pick<LossComputeSyncOptions, 'grad' | 'gradEntropy' | 'gradLogZ' | 'part'> {}

/**
 * The options O of a call, from which TypeScript infers R, the type of what the caller gave. It is O itself, so an editor
 * shows what each option does, and reports unknown ones.
 */
export type Requesting<R, O> = [R] extends [never] ? R : O;

/**
 * What a result certainly has, because its call requested it: `grad` with `grad: true`, for example. It may or may not have
 * what the type R leaves open, such as a boolean.
 */
export type Requested<R> = GradientOf<'grad', RequestOf<R, 'grad'>> &
  GradientOf<'gradEntropy', RequestOf<R, 'gradEntropy'>> &
  GradientOf<'gradLogZ', RequestOf<R, 'gradLogZ'>> &
  RequestedPart<R>;

type RequestedPart<R> = RequestOf<R, 'part'> extends true ? { part: Float64Array } : unknown;

/** The type of an option that R certainly has; false for another one. */
export type RequestOf<R, Key extends string> = [R] extends [Record<Key, infer G>] ? G : false;

/** The property of a result that a request for a gradient certainly gives. */
export type GradientOf<Key extends string, G> = [G] extends [true | Float32Array]
  ? { [K in Key]: Float32Array }
  : [G] extends [DeviceRequest]
    ? { [K in `device${Capitalize<Key>}`]: DeviceGradient }
    : [G] extends [HalfGradientRequest | Float16ArrayLike]
      ? { [K in `half${Capitalize<Key>}`]: HalfColumn }
      : unknown;

/** A request for a gradient that stays on the device. */
export type DeviceRequest = 'device' | 'shareable' | DeviceGradient;

/** The options of a call after its batch was read. */
export interface CallOptions {
  normalizer?: Normalizer | undefined;
  part?: boolean | undefined;
  stream?: bigint | undefined;
}
