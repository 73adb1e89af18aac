// One native function with the batch columns it reads: what compute() and computeSync() of every class run on.
import type { NativeBatch, NativeCall, NativeFunction, NativeFunctionSpec } from '../binding.js';
import { type Batch, type BatchReader, checkAttached, describeShape } from './batch.js';
import { checkHostDevice } from './device.js';
import { describeValue, LossError } from './errors.js';
import { native } from './native.js';

/** Options of a synchronous call. */
export interface ComputeSyncOptions {
  /** true: give ∂loss/∂logprob in the result. An array: write it there (B×T values), and give that one. */
  grad?: boolean | Float32Array;
}

/** Options of a call. */
export interface ComputeOptions extends ComputeSyncOptions {
  /** Where to compute a host batch: 'cpu' unless said otherwise. */
  device?: string;
  /** Ends the call early: it rejects with `ERR_ABORTED`, and an array for grad may be half written. */
  signal?: AbortSignal;
}

/** Metrics by their names in Trinity-RFT. */
export type Metrics = Record<string, number>;

/** What a loss gives. */
export interface Result<M = Metrics> {
  /** In the unit of the loss (nats for log-likelihoods). */
  loss: number;
  /** Under Trinity-RFT's names; each class says in which unit. */
  metrics: M;
  /** [B, T] ∂loss/∂logprob, where asked for; exactly 0 under the mask. */
  grad?: Float32Array;
}

/** What may change from one call to the next; see NativeCall. */
export interface Coefficients {
  mu?: number | undefined;
  klCoef?: number | undefined;
  entropyCoef?: number | undefined;
}

/** Runs one native function on batches. */
export class Evaluator {
  readonly #fn: NativeFunction;
  readonly #names: readonly string[];
  readonly #reader: BatchReader;
  readonly #gradKey: 'grad' | 'gradEntropy';
  // Of synchronous calls, which cannot overlap.
  readonly #values: Float64Array;

  /** @param gradKey what the gradient is taken with respect to: logprob (grad) or entropy. */
  constructor(spec: NativeFunctionSpec, reader: BatchReader, gradKey: 'grad' | 'gradEntropy' = 'grad') {
    this.#fn = native.createFunction(spec);
    this.#names = native.valueNames(this.#fn);
    this.#reader = reader;
    this.#gradKey = gradKey;
    this.#values = new Float64Array(this.#names.length);
  }

  computeSync<M>(
    batch: Batch,
    options: ComputeSyncOptions | undefined,
    coefficients: (batch: NativeBatch) => Coefficients,
  ): Result<M> {
    const input = this.#reader.read(batch);
    const call = this.#call(input, options, coefficients(input), this.#values);
    let present: number;
    try {
      present = native.evaluateSync(this.#fn, input, call);
    } catch (error) {
      throw fromNative(error);
    }
    return this.#result(call, present);
  }

  async compute<M>(
    batch: Batch,
    options: ComputeOptions | undefined,
    coefficients: (batch: NativeBatch) => Coefficients,
  ): Promise<Result<M>> {
    checkHostDevice(options?.device);
    const input = this.#reader.read(batch);
    const call = this.#call(input, options, coefficients(input), new Float64Array(this.#names.length));
    const present = await abortable(options?.signal, (flag) => {
      call.abort = flag;
      return native.evaluate(this.#fn, input, call);
    });
    return this.#result(call, present);
  }

  #call(
    input: NativeBatch,
    options: ComputeSyncOptions | undefined,
    coefficients: Coefficients,
    values: Float64Array,
  ): NativeCall {
    const grad = gradArray(input, options?.grad);
    return {
      values,
      grad: this.#gradKey === 'grad' ? grad : undefined,
      gradEntropy: this.#gradKey === 'gradEntropy' ? grad : undefined,
      mu: coefficients.mu,
      klCoef: coefficients.klCoef,
      entropyCoef: coefficients.entropyCoef,
      abort: undefined,
    };
  }

  #result<M>(call: NativeCall, present: number): Result<M> {
    const metrics: Metrics = {};
    for (let i = 1; i < this.#names.length; i++) {
      if (present & (1 << i)) metrics[this.#names[i]!] = call.values[i]!;
    }
    const result: Result<M> = { loss: call.values[0]!, metrics: metrics as M };
    const grad = call[this.#gradKey];
    if (grad) result.grad = grad;
    return result;
  }
}

/** The number of values that a per-token array of the batch has. */
export function tokensOf(batch: NativeBatch): number {
  return batch.offsets ? batch.offsets.at(-1)! : batch.rows * batch.columns;
}

/** The array that a gradient goes to: a new one, the caller's, or none. */
export function gradArray(
  batch: NativeBatch,
  wanted: boolean | Float32Array | undefined,
): Float32Array | undefined {
  if (wanted === undefined || wanted === false) return undefined;
  const tokens = tokensOf(batch);
  if (wanted === true) {
    try {
      return new Float32Array(tokens);
    } catch (error) {
      throw new LossError('ERR_OUT_OF_MEMORY', `no memory for a gradient of ${tokens} values`, {
        cause: error,
      });
    }
  }
  if (!(wanted instanceof Float32Array))
    throw new LossError(
      'ERR_INVALID_INPUT',
      `grad: expected true, false or a Float32Array, not ${describeValue(wanted)}`,
    );
  checkAttached('grad', wanted);
  if (wanted.length !== tokens)
    throw new LossError(
      'ERR_SHAPE_MISMATCH',
      `grad: expected ${describeShape({ ...batch, tokens })}, not ${wanted.length} values`,
    );
  return wanted;
}

/** Starts native work that an AbortSignal can end; it gives -1 where it was. */
export async function abortable(
  signal: AbortSignal | undefined,
  start: (flag: Int32Array | undefined) => Promise<number>,
): Promise<number> {
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new LossError('ERR_INVALID_INPUT', `signal: expected an AbortSignal, not ${describeValue(signal)}`);
  const aborted = () => new LossError('ERR_ABORTED', 'the call was aborted', { cause: signal?.reason });
  if (signal?.aborted) throw aborted();
  const flag = signal && new Int32Array(1);
  const abort = () => {
    if (flag) Atomics.store(flag, 0, 1);
  };
  signal?.addEventListener('abort', abort, { once: true });
  try {
    const present = await start(flag);
    if (present < 0) throw aborted();
    return present;
  } catch (error) {
    throw fromNative(error);
  } finally {
    signal?.removeEventListener('abort', abort);
  }
}

/** An error of the native module as a LossError, where it is one for the caller. */
export function fromNative(error: unknown): unknown {
  if (error instanceof Error && (error as NodeJS.ErrnoException).code === 'ERR_OUT_OF_MEMORY')
    return new LossError('ERR_OUT_OF_MEMORY', 'the memory ran out', { cause: error });
  return error;
}
