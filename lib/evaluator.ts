// One native function with the batch columns it reads: what compute() and computeSync() of every class run on.
import type { NativeCall, NativeFunction, NativeFunctionSpec } from '../binding.js';
import { abortable, fromNative } from './abortable.js';
import { type Batch, checkAttached, describeShape, type Layout } from './batch.js';
import type { BatchReader } from './batch-reader.js';
import type { DeviceBatch } from './device-batch.js';
import { describeValue, LossError } from './errors.js';
import { native } from './native.js';

/** Options of a synchronous call. */
export interface ComputeSyncOptions {
  /** true: give ∂loss/∂logprob in the result. An array: write it there (B×T values), and give that one. */
  grad?: boolean | Float32Array;
}

/** Options of a call. */
export interface ComputeOptions extends ComputeSyncOptions {
  /** Where to compute a host batch: 'cpu' unless said otherwise; 'cuda', 'cuda:1', …. A DeviceBatch is computed where it lies. */
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
    batch: Batch | DeviceBatch,
    options: ComputeSyncOptions | undefined,
    coefficients: (layout: Layout) => Coefficients,
  ): Result<M> {
    const input = this.#reader.read(batch);
    const call = this.#call(input.layout, options, coefficients(input.layout), this.#values);
    let present: number;
    try {
      present = native.evaluateSync(this.#fn, input.native, call);
    } catch (error) {
      throw fromNative(error);
    }
    return this.#result(call, present);
  }

  async compute<M>(
    batch: Batch | DeviceBatch,
    options: ComputeOptions | undefined,
    coefficients: (layout: Layout) => Coefficients,
  ): Promise<Result<M>> {
    const input = this.#reader.read(batch, options?.device);
    const { layout } = input;
    const call = this.#call(layout, options, coefficients(layout), new Float64Array(this.#names.length));
    const present = await abortable(options?.signal, (flag) => {
      call.abort = flag;
      return native.evaluate(this.#fn, input.native, call, input.device);
    });
    return this.#result(call, present);
  }

  #call(
    layout: Layout,
    options: ComputeSyncOptions | undefined,
    coefficients: Coefficients,
    values: Float64Array,
  ): NativeCall {
    const grad = gradArray(layout, options?.grad);
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

/** The array that a gradient goes to: a new one, the caller's, or none. */
export function gradArray(
  layout: Layout,
  wanted: boolean | Float32Array | undefined,
): Float32Array | undefined {
  if (wanted === undefined || wanted === false) return undefined;
  const { tokens } = layout;
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
      `grad: expected ${describeShape(layout)}, not ${wanted.length} values`,
    );
  return wanted;
}
