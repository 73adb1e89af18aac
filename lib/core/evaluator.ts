// One native function with the batch columns it reads: what compute() and computeSync() of every class run on.
import type {
  NativeAdvantageOnTheWay,
  NativeBatch,
  NativeCall,
  NativeFunction,
  NativeFunctionSpec,
} from '../../binding.js';
import { abortable, fromNative } from './abortable.js';
import {
  type Batch,
  COLUMNS,
  checkAttached,
  describeShape,
  isResizable,
  type Layout,
  PER_ROW,
} from './batch.js';
import type { BatchReader, Input } from './batch-reader.js';
import { type Counts, fromNativeCounts, type Normalizer, toNativeCounts } from './counts.js';
import type { DeviceBatch } from './device-batch.js';
import { describeValue, guarded, guardedAsync, LossError } from './errors.js';
import { native } from './native.js';

/** Options of a synchronous call. */
export interface ComputeSyncOptions {
  /** true: give ∂loss/∂logprob in the result. An array: write it there (B×T values), and give that one. */
  grad?: boolean | Float32Array;
  /**
   * The counts of the whole batch of which this one is a part (micro-batches): losses, gradients and metrics of the
   * parts then add up to the whole's, but for kl_coef and mu, which are no sums.
   */
  normalizer?: Normalizer;
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

/** Where gradients go: with respect to logprob, to entropy, or both. */
export interface Gradients {
  grad?: Float32Array | undefined;
  gradEntropy?: Float32Array | undefined;
}

/** Advantages that were computed for a batch and do not stand in it. */
export interface ComputedAdvantages {
  /** One per token, or one per row. */
  column: Float32Array;
  perRow: boolean;
  /** [B] how often each row counts; undefined: each once. */
  copies: Uint32Array | undefined;
}

/** Advantages that a device computes on the way to a loss; see NativeCall.advantage. */
export interface OnTheWay {
  advantage: NativeAdvantageOnTheWay;
  /** The complaint about an input that is not finite, by native code's word for it. */
  notFinite: (culprit: number) => LossError;
}

// What native code gives in the place of values where an input of the advantages was not finite: -1 - culprit.
function checkFinite(present: number, onTheWay: OnTheWay | undefined): void {
  if (onTheWay && present < -1) throw onTheWay.notFinite(-1 - present);
}

// What evaluateHost() takes: a batch of the host with a mask, every row of which counts once.
type PlainHostBatch = NativeBatch & { mask: Uint8Array };

function isPlainHostBatch(batch: Input['native']): batch is PlainHostBatch {
  const { mask, copies } = batch as NativeBatch;
  return mask !== undefined && copies === undefined;
}

/** Runs one native function on batches. */
export class Evaluator {
  readonly #fn: NativeFunction;
  readonly #names: readonly string[];
  readonly #reader: BatchReader;
  readonly #gradKey: 'grad' | 'gradEntropy';
  // Of synchronous calls, which cannot overlap.
  readonly #values: Float64Array;

  /** @param gradKey what the option `grad` asks the gradient with respect to: logprob (grad) or entropy. */
  constructor(spec: NativeFunctionSpec, reader: BatchReader, gradKey: 'grad' | 'gradEntropy' = 'grad') {
    this.#fn = guarded(() => native.createFunction(spec), 'ERR_INVALID_OPTION');
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
    return guarded(() => {
      const input = this.#reader.read(batch);
      const gradients = this.#gradients(input.layout, options);
      return this.evaluateSync(input, gradients, options?.normalizer, coefficients(input.layout));
    });
  }

  compute<M>(
    batch: Batch | DeviceBatch,
    options: ComputeOptions | undefined,
    coefficients: (layout: Layout) => Coefficients,
  ): Promise<Result<M>> {
    return guardedAsync(async () => {
      const input = this.#reader.read(batch, options?.device);
      const gradients = this.#gradients(input.layout, options);
      return this.evaluate(
        input,
        gradients,
        options?.normalizer,
        coefficients(input.layout),
        options?.signal,
      );
    });
  }

  /** Reads a batch of the host or a device; with `computed`, those are its advantages, and the reader is not to ask for any. */
  read(batch: Batch | DeviceBatch, device?: string, computed?: ComputedAdvantages): Input {
    const input = this.#reader.read(batch, device);
    if (computed) {
      const view = input.native as NativeBatch;
      const index = COLUMNS.indexOf('advantages');
      view.data[index] = computed.column;
      view.dtypes[index] = computed.perRow ? PER_ROW : 0;
      view.copies = computed.copies;
    }
    return input;
  }

  evaluateSync<M>(
    input: Input,
    gradients: Gradients,
    normalizer: Normalizer | undefined,
    coefficients: Coefficients,
    onTheWay?: OnTheWay,
  ): Result<M> {
    let present: number;
    try {
      if (normalizer === undefined && isPlainHostBatch(input.native)) {
        present = this.#evaluateHost(input.native, gradients, coefficients);
      } else {
        const call = this.#call(input, gradients, normalizer, coefficients, this.#values);
        call.advantage = onTheWay?.advantage;
        present = native.evaluateSync(this.#fn, input.native, call);
      }
    } catch (error) {
      throw fromNative(error);
    }
    checkFinite(present, onTheWay);
    return this.#result(this.#values, gradients, present);
  }

  async evaluate<M>(
    input: Input,
    gradients: Gradients,
    normalizer: Normalizer | undefined,
    coefficients: Coefficients,
    signal: AbortSignal | undefined,
    onTheWay?: OnTheWay,
  ): Promise<Result<M>> {
    const values = new Float64Array(this.#names.length);
    const call = this.#call(input, gradients, normalizer, coefficients, values);
    call.advantage = onTheWay?.advantage;
    const present = await abortable(signal, (flag) => {
      call.abort = flag;
      return native.evaluate(this.#fn, input.native, call, input.device);
    });
    checkFinite(present, onTheWay);
    return this.#result(values, gradients, present);
  }

  #evaluateHost(batch: PlainHostBatch, { grad, gradEntropy }: Gradients, coefficients: Coefficients): number {
    const { data, dtypes } = batch;
    let codes = 0;
    for (let i = 0; i < dtypes.length; i++) codes |= dtypes[i]! << (3 * i);
    return native.evaluateHost(
      this.#fn,
      batch.rows,
      batch.columns,
      batch.offsets,
      codes,
      data[0],
      data[1],
      data[2],
      data[3],
      data[4],
      batch.mask,
      batch.expert,
      this.#values,
      grad,
      gradEntropy,
      coefficients.mu,
      coefficients.klCoef,
      coefficients.entropyCoef,
    );
  }

  #gradients(layout: Layout, options: ComputeSyncOptions | undefined): Gradients {
    return { [this.#gradKey]: gradArray(layout, options?.grad) };
  }

  #call(
    { layout }: Input,
    gradients: Gradients,
    normalizer: Normalizer | undefined,
    coefficients: Coefficients,
    values: Float64Array,
  ): NativeCall {
    return {
      values,
      grad: gradients.grad,
      gradEntropy: gradients.gradEntropy,
      mu: coefficients.mu,
      klCoef: coefficients.klCoef,
      entropyCoef: coefficients.entropyCoef,
      normalizer:
        normalizer === undefined ? undefined : toNativeCounts(normalizer, layout, this.#reader.tellsExperts),
      abort: undefined,
    };
  }

  #result<M>(values: Float64Array, gradients: Gradients, present: number): Result<M> {
    const metrics: Metrics = {};
    for (let i = 1; i < this.#names.length; i++) {
      if (present & (1 << i)) metrics[this.#names[i]!] = values[i]!;
    }
    const result: Result<M> = { loss: values[0]!, metrics: metrics as M };
    const grad = gradients[this.#gradKey];
    if (grad) result.grad = grad;
    return result;
  }
}

// Computes nothing but a batch's counts.
const counter: NativeFunction = native.createFunction({});

/** What decides over how often the rows of a batch count. */
export interface RowsThatCount {
  /** [B] of a host batch; undefined: each once. */
  copies?: Uint32Array | undefined;
  /** Of a batch on a device: the function that may drop some. */
  onTheWay?: OnTheWay | undefined;
}

/** A batch's counts, as compute() with a normalizer of a whole batch takes them. */
export async function countBatch(
  reader: BatchReader,
  batch: Batch | DeviceBatch,
  rows: RowsThatCount = {},
): Promise<Counts> {
  const { input, call } = guarded(() => counting(reader, batch, rows));
  let present: number;
  try {
    present = await native.evaluate(counter, input.native, call, input.device);
  } catch (error) {
    throw fromNative(error);
  }
  checkFinite(present, rows.onTheWay);
  return fromNativeCounts(call.counts, reader.tellsExperts);
}

/** The same at once. */
export function countBatchSync(
  reader: BatchReader,
  batch: Batch | DeviceBatch,
  rows: RowsThatCount = {},
): Counts {
  const { input, call } = guarded(() => counting(reader, batch, rows));
  let present: number;
  try {
    present = native.evaluateSync(counter, input.native, call, input.device);
  } catch (error) {
    throw fromNative(error);
  }
  checkFinite(present, rows.onTheWay);
  return fromNativeCounts(call.counts, reader.tellsExperts);
}

function counting(reader: BatchReader, batch: Batch | DeviceBatch, { copies, onTheWay }: RowsThatCount) {
  const input = reader.read(batch);
  if (copies) (input.native as NativeBatch).copies = copies;
  const call = {
    values: new Float64Array(1),
    grad: undefined,
    gradEntropy: undefined,
    mu: undefined,
    klCoef: undefined,
    entropyCoef: undefined,
    counts: new Float64Array(5),
    advantage: onTheWay?.advantage,
    abort: undefined,
  } satisfies NativeCall;
  return { input, call };
}

/** The array that a gradient goes to: a new one, the caller's, or none. */
export function gradArray(
  layout: Layout,
  wanted: boolean | Float32Array | undefined,
  name = 'grad',
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
      `${name}: expected true, false or a Float32Array, not ${describeValue(wanted)}`,
    );
  checkAttached(name, wanted);
  if (isResizable(wanted))
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${name}: expected an array whose ArrayBuffer has a fixed length, and one came that is resizable`,
    );
  if (wanted.length !== tokens)
    throw new LossError(
      'ERR_SHAPE_MISMATCH',
      `${name}: expected ${describeShape(layout)}, not ${wanted.length} values`,
    );
  return wanted;
}
