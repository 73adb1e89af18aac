// Runs one native function on batches. compute() and computeSync() of every class are built on it.
import type {
  NativeBatch,
  NativeCall,
  NativeFunction,
  NativeFunctionSpec,
  NativeFusedAdvantage,
} from '../../binding.js';
import { abortable, fromNative } from './abortable.js';
import { checkAttached, isResizable } from './arrays.js';
import type { Batch } from './batch.js';
import { type BatchReader, COLUMNS, type Conversions, type Input } from './batch-reader.js';
import { PER_ROW } from './columns.js';
import { type Counts, fromNativeCounts, type Normalizer, toNativeCounts } from './counts.js';
import type { DeviceBatch } from './device-batch.js';
import { allocate, describeValue, guarded, guardedAsync, LossError } from './errors.js';
import { describeShape, type Layout } from './layout.js';
import { native } from './native.js';

/** Options of a synchronous call. */
export interface ComputeSyncOptions {
  /** true returns ∂loss/∂logprob in a new array. An array of B×T values receives it instead. */
  grad?: boolean | Float32Array;
  /**
   * The counts of the whole batch if this one is a part of it (micro-batches). Losses, gradients and metrics of the
   * parts then add up to the whole's, except kl_coef and mu, which are not sums.
   */
  normalizer?: Normalizer;
}

/** Options of a call. */
export interface ComputeOptions extends ComputeSyncOptions {
  /**
   * Where to compute a host batch: 'cpu' (default), 'cuda', 'cuda:1', …. A DeviceBatch is computed on its own device.
   */
  device?: string;
  /** Ends the call early: it rejects with `ERR_ABORTED`, and the array for grad may be half written. */
  signal?: AbortSignal;
}

/** Metrics by Trinity-RFT's names. */
export type Metrics = Record<string, number>;

/** The result of a loss. */
export interface Result<M = Metrics> {
  /** In the unit of the loss (nats for log-likelihoods). */
  loss: number;
  /** Under Trinity-RFT's names; each class documents the units. */
  metrics: M;
  /** [B, T] ∂loss/∂logprob, if asked for; exactly 0 at masked tokens. */
  grad?: Float32Array;
}

/** Numbers that may change from one call to the next; see NativeCall. */
export interface Coefficients {
  mu?: number | undefined;
  klCoef?: number | undefined;
  entropyCoef?: number | undefined;
}

/** The arrays that receive the gradients with respect to logprob and to entropy. */
export interface Gradients {
  grad?: Float32Array | undefined;
  gradEntropy?: Float32Array | undefined;
}

/** Advantages that were computed for a batch instead of being a column of it. */
export interface ComputedAdvantages {
  /** One per token, or one per row. */
  column: Float32Array;
  perRow: boolean;
  /** [B] how often each row counts; undefined if every row counts once. */
  repeats: Uint32Array | undefined;
}

/** Advantages that a device computes as part of a loss's call; see NativeCall.advantage. */
export interface FusedAdvantage {
  advantage: NativeFusedAdvantage;
  /** Makes the error for a non-finite input from native code's number for that input. */
  notFinite: (input: number) => LossError;
}

// If an input of the advantages is not finite, native code returns −1 − (its number) instead of the bit mask of values.
function checkFinite(present: number, fused: FusedAdvantage | undefined): void {
  if (fused && present < -1) throw fused.notFinite(-1 - present);
}

// A batch for evaluateHost(): on the host, with a mask, and every row counts once.
type PlainHostBatch = NativeBatch & { mask: Uint8Array };

function isPlainHostBatch(batch: Input['native']): batch is PlainHostBatch {
  const { mask, repeats } = batch as NativeBatch;
  return mask !== undefined && repeats === undefined;
}

/** Runs one native function on batches. */
export class Evaluator {
  readonly #fn: NativeFunction;
  readonly #names: readonly string[];
  readonly #reader: BatchReader;
  readonly #gradKey: 'grad' | 'gradEntropy';
  // Reused by synchronous calls, which cannot overlap.
  readonly #values: Float64Array;

  /** @param gradKey the gradient that the option `grad` requests: with respect to logprob (grad) or to entropy. */
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

  /**
   * Reads a host or device batch.
   * @param computed replaces the column `advantages`; the reader must not read that column itself.
   */
  read(
    batch: Batch | DeviceBatch,
    device?: string,
    computed?: ComputedAdvantages,
    conversions?: Conversions,
  ): Input {
    const input = this.#reader.read(batch, device, conversions);
    if (computed) {
      const view = input.native as NativeBatch;
      const index = COLUMNS.indexOf('advantages');
      view.data[index] = computed.column;
      view.dtypes[index] = computed.perRow ? PER_ROW : 0;
      view.repeats = computed.repeats;
    }
    return input;
  }

  evaluateSync<M>(
    input: Input,
    gradients: Gradients,
    normalizer: Normalizer | undefined,
    coefficients: Coefficients,
    fused?: FusedAdvantage,
  ): Result<M> {
    let present: number;
    try {
      if (normalizer === undefined && isPlainHostBatch(input.native)) {
        present = this.#evaluateHost(input.native, gradients, coefficients);
      } else {
        const call = this.#call(input, gradients, normalizer, coefficients, this.#values);
        call.advantage = fused?.advantage;
        present = native.evaluateSync(this.#fn, input.native, call);
      }
    } catch (error) {
      throw fromNative(error);
    }
    checkFinite(present, fused);
    return this.#result(this.#values, gradients, present);
  }

  async evaluate<M>(
    input: Input,
    gradients: Gradients,
    normalizer: Normalizer | undefined,
    coefficients: Coefficients,
    signal: AbortSignal | undefined,
    fused?: FusedAdvantage,
  ): Promise<Result<M>> {
    const values = new Float64Array(this.#names.length);
    const call = this.#call(input, gradients, normalizer, coefficients, values);
    call.advantage = fused?.advantage;
    const present = await abortable(signal, (flag) => {
      call.abort = flag;
      return native.evaluate(this.#fn, input.native, call, input.device);
    });
    checkFinite(present, fused);
    return this.#result(values, gradients, present);
  }

  #evaluateHost(batch: PlainHostBatch, { grad, gradEntropy }: Gradients, coefficients: Coefficients): number {
    const { data, dtypes } = batch;
    let codes = 0;
    for (let i = 0; i < dtypes.length; i++) codes |= dtypes[i]! << (3 * i);
    return native.evaluateHost(
      this.#fn,
      batch.rows,
      batch.rowLength,
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
        normalizer === undefined
          ? undefined
          : toNativeCounts(normalizer, layout, this.#reader.separatesExperts),
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

// A function without a loss: it only counts a batch's tokens and rows.
const counter: NativeFunction = native.createFunction({});

/** The number of times that each row of a batch counts. */
export interface RowsThatCount {
  /** [B] for a host batch: how often each row counts; undefined if every row counts once. */
  repeats?: Uint32Array | undefined;
  /** For a batch on a device: the call of the advantage function that may drop rows. */
  fused?: FusedAdvantage | undefined;
}

/** Counts a batch's tokens and rows; compute() accepts their sum over micro-batches as `normalizer`. */
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
  checkFinite(present, rows.fused);
  return fromNativeCounts(call.counts, reader.separatesExperts);
}

/** Synchronous version of {@link countBatch}. */
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
  checkFinite(present, rows.fused);
  return fromNativeCounts(call.counts, reader.separatesExperts);
}

function counting(reader: BatchReader, batch: Batch | DeviceBatch, { repeats, fused }: RowsThatCount) {
  const input = reader.read(batch);
  if (repeats) (input.native as NativeBatch).repeats = repeats;
  const call = {
    values: new Float64Array(1),
    grad: undefined,
    gradEntropy: undefined,
    mu: undefined,
    klCoef: undefined,
    entropyCoef: undefined,
    counts: new Float64Array(5),
    advantage: fused?.advantage,
    abort: undefined,
  } satisfies NativeCall;
  return { input, call };
}

/** Returns the array that receives a gradient: a new one, the caller's, or undefined. */
export function gradArray(
  layout: Layout,
  wanted: boolean | Float32Array | undefined,
  name = 'grad',
): Float32Array | undefined {
  if (wanted === undefined || wanted === false) return undefined;
  const { tokens } = layout;
  if (wanted === true) return allocate(`a gradient of ${tokens} values`, () => new Float32Array(tokens));
  if (!(wanted instanceof Float32Array))
    throw new LossError('ERR_INVALID_INPUT', {
      key: name,
      expected: 'true, false or a Float32Array',
      received: describeValue(wanted),
    });
  checkAttached(name, wanted);
  if (isResizable(wanted))
    throw new LossError('ERR_INVALID_INPUT', {
      key: name,
      expected: 'an array whose ArrayBuffer has a fixed length',
      received: 'a resizable one',
    });
  if (wanted.length !== tokens)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key: name,
      expected: describeShape(layout),
      received: String(wanted.length),
    });
  return wanted;
}
