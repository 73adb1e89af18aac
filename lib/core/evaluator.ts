// Calls native code to compute one function on batches. compute() and computeSync() of every loss are built on this.
import { types } from 'node:util';
import type {
  NativeBatch,
  NativeCall,
  NativeFunction,
  NativeFunctionSpec,
  NativeFusedAdvantage,
} from '../../binding.js';
import { type AbortSignalLike, abortable, fromNative } from './abortable.js';
import { checkAttached, isResizable } from './arrays.js';
import type { Batch } from './batch.js';
import { type BatchReader, COLUMNS, type ColumnName, type Conversions, type Input } from './batch-reader.js';
import { PER_ROW } from './columns.js';
import { addCorrection, type Correction, withColumns } from './correction.js';
import { checkPart, type Normalizer, toNativeCounts } from './counts.js';
import type { DeviceBatch } from './device-batch.js';
import { allocate, describeValue, guarded, guardedAsync, LossError } from './errors.js';
import { describeShape, type Layout } from './layout.js';
import { native } from './native.js';
import { checkParts, markForm, takeForm } from './part-sums.js';
import { finish, finishInTurns, type Sliced } from './slices.js';

/** Options of a call that computes a loss synchronously. */
export interface ComputeSyncOptions {
  /**
   * true requests the gradient, ∂loss/∂logprob, in a new array. To receive it in an existing array, pass a Float32Array
   * with B×T elements.
   */
  grad?: boolean | Float32Array;
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

/** Options of a call that computes a loss asynchronously. */
export interface ComputeOptions extends ComputeSyncOptions {
  /**
   * The device that computes a host batch: 'cpu' (the default), 'cuda', 'cuda:1', …. A DeviceBatch is always computed
   * on its own device.
   */
  device?: string;
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
   * entropies.
   */
  gradEntropy?: boolean | Float32Array;
  /** Requests ∂loss/∂log_z in the same way: B values, which are 0 if the loss does not depend on log_z. */
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
  /** Shape [B]: the gradient ∂loss/∂log_z, if the call requested it. */
  gradLogZ?: Float32Array;
}

/** The coefficients that native code takes with each call, because they may change from call to call. */
export interface Coefficients {
  mu?: number | undefined;
  klCoef?: number | undefined;
  entropyCoef?: number | undefined;
}

/** Returns the coefficients for a batch. */
export type CoefficientsOf = (input: Input, normalizer: Normalizer | undefined) => Coefficients;

/** The arrays to which native code writes the gradients with respect to logprob, to entropy and to log_z. */
export interface Gradients {
  grad?: Float32Array | undefined;
  gradEntropy?: Float32Array | undefined;
  gradLogZ?: Float32Array | undefined;
}

/** Advantages that were computed from other inputs of a batch, and that replace the column `advantages`. */
export interface ComputedAdvantages {
  /** The advantages: one per row if `perRow` is true, otherwise one per token. */
  column: Float32Array;
  perRow: boolean;
  /** Shape [B]: how often each row counts, 0 if it is dropped. Undefined if every row counts once. */
  repeats: Uint32Array | undefined;
}

/**
 * An advantage function that native code runs on the device as part of a loss's call; see NativeCall.advantage in
 * binding.d.ts.
 */
export interface FusedAdvantage {
  advantage: NativeFusedAdvantage;
  /** Whether the loss gets one advantage per row. */
  perRow: boolean;
  /**
   * Returns the error for an input that is not finite.
   * @param input the number by which native code refers to the input; see NativeBinding.advantagesSync in binding.d.ts.
   */
  notFinite: (input: number) => LossError;
}

// Throws if native code found an input that is not finite while it computed the advantages. In that case it returned
// −1 − k, where k is the number of the input, instead of the bit mask of the values that are present.
export function checkFinite(present: number, fused: FusedAdvantage | undefined): void {
  if (fused && present < -1) throw fused.notFinite(-1 - present);
}

// A batch that evaluateHost(), the fastest native call, accepts: it is in host memory, has a mask, neither numbers per row
// nor weights of tokens, and counts every row once.
type PlainHostBatch = NativeBatch & { mask: Uint8Array };

function isPlainHostBatch(batch: Input['native']): batch is PlainHostBatch {
  const { data, mask, repeats, rowData } = batch as NativeBatch;
  const isPlain = mask !== undefined && repeats === undefined && rowData === undefined;
  return isPlain && data.length <= COLUMNS.length;
}

/** The options of a call that request gradients; see LossComputeSyncOptions. */
type WantedGradients = Partial<Record<keyof Gradients, boolean | Float32Array | undefined>>;

/** The options of a call that concern a part of a batch; see ComputeSyncOptions. */
export interface CallOptions {
  normalizer?: Normalizer | undefined;
  part?: boolean | undefined;
}

/**
 * The properties of a batch on which the form of a function depends: bit i of a form's number is set if the batch has
 * optional column i, and the next bits are set for columns with one value per row.
 */
export interface FormColumns {
  /** Columns that the batch may lack. */
  readonly optional: readonly ColumnName[];
  /** Columns for which it matters whether they have one value per row. */
  readonly perRow: readonly ColumnName[];
}

/** A function with several forms. The columns of a batch choose one of them. */
export interface Forms extends FormColumns {
  /** Returns the specification of a form. The evaluator calls it once for each form that it needs. */
  spec(form: number): NativeFunctionSpec;
}

// A function in native code.
class NativeForm {
  readonly fn: NativeFunction;
  readonly names: readonly string[];
  // The metrics of the whole batch. A result lacks those whose value is NaN; they have no bit in `present`.
  readonly batchMetrics: ReadonlySet<string>;
  readonly readsWholeBatch: boolean;
  // Receives the results of synchronous calls. One array is enough, because these calls cannot overlap.
  readonly values: Float64Array;
  readonly number: number;

  constructor(spec: NativeFunctionSpec, number: number) {
    this.fn = guarded(() => native.createFunction(spec), 'ERR_INVALID_OPTION');
    this.names = native.valueNames(this.fn);
    const { policyLoss } = spec;
    const program = policyLoss !== undefined && 'program' in policyLoss ? policyLoss : undefined;
    this.readsWholeBatch = program?.program.readsWholeBatch === true;
    const metrics = program?.metrics.filter(({ per }) => per === 'batch') ?? [];
    this.batchMetrics = new Set(metrics.map(({ name }) => name));
    this.values = new Float64Array(this.names.length);
    this.number = number;
  }
}

/** Computes one native function on batches. */
export class Evaluator {
  readonly #forms: Forms | undefined;
  // The forms that were needed so far, by number. A function without forms is number 0.
  readonly #made: NativeForm[];
  readonly #reader: BatchReader;
  readonly #gradKey: 'grad' | 'gradEntropy';
  readonly #correction: Correction | undefined;
  /** Whether the function reduces over all rows of a batch, so that the batch cannot be computed in parts. */
  readonly readsWholeBatch: boolean;

  /**
   * @param gradKey the gradient that the option `grad` requests: `grad` is with respect to logprob, `gradEntropy` with
   * respect to entropy.
   * @param correction computes the mask and the weights with which compute() and computeSync() compute the function.
   */
  constructor(
    spec: NativeFunctionSpec | Forms,
    reader: BatchReader,
    gradKey: 'grad' | 'gradEntropy' = 'grad',
    correction?: Correction,
  ) {
    this.#forms = 'spec' in spec ? spec : undefined;
    this.#made = [new NativeForm('spec' in spec ? spec.spec(0) : spec, 0)];
    this.#reader = reader;
    this.#gradKey = gradKey;
    this.#correction = correction;
    this.readsWholeBatch = this.#made[0]!.readsWholeBatch || correction?.readsWholeBatch === true;
  }

  computeSync<M>(
    batch: Batch | DeviceBatch,
    options: LossComputeSyncOptions | undefined,
    coefficients: CoefficientsOf,
  ): LossResult<M> {
    return guarded(() => {
      const input = finish(this.#reader.read(batch));
      const gradients = this.#gradients(input.layout, options);
      return this.evaluateSync(input, gradients, options ?? {}, coefficients(input, options?.normalizer));
    });
  }

  compute<M>(
    batch: Batch | DeviceBatch,
    options: LossComputeOptions | undefined,
    coefficients: CoefficientsOf,
  ): Promise<LossResult<M>> {
    return guardedAsync(async () => {
      // Reads the options before the first wait, because the caller may change them afterwards.
      const { grad, gradEntropy, gradLogZ, normalizer, part, device, signal } = options ?? {};
      return finishInTurns(this.#reader.read(batch, device), signal, (input) => {
        const gradients = this.#gradients(input.layout, { grad, gradEntropy, gradLogZ });
        const wanted = { normalizer, part, signal };
        return this.evaluate<M>(input, gradients, wanted, coefficients(input, normalizer));
      });
    });
  }

  /**
   * Reads a batch, which may be in host memory or on a device, in slices.
   * @param device the device that is to compute a host batch.
   * @param computed advantages to use instead of the column `advantages`. The evaluator's reader must be one that does
   * not read this column.
   * @param conversions a cache of converted inputs that is shared with other readers of the same batch.
   */
  *read(
    batch: Batch | DeviceBatch,
    device?: string,
    computed?: ComputedAdvantages,
    conversions?: Conversions,
  ): Sliced<Input> {
    const input = yield* this.#reader.read(batch, device, conversions);
    if (computed) {
      const view = input.native as NativeBatch;
      const index = COLUMNS.indexOf('advantages');
      view.data[index] = computed.column;
      view.dtypes[index] = computed.perRow ? PER_ROW : 0;
      view.repeats = computed.repeats;
    }
    return input;
  }

  /** Evaluates the function on a batch, under its correction if it has one. */
  evaluateSync<M>(
    input: Input,
    gradients: Gradients,
    options: CallOptions,
    coefficients: Coefficients,
    fused?: FusedAdvantage,
  ): LossResult<M> {
    this.#checkWhole(options);
    const corrected = this.#correction?.applySync(input);
    if (!corrected) return this.#evaluateSync(input, gradients, options, coefficients, fused);
    const replaced = withColumns(input, corrected.columns);
    const result = this.#evaluateSync<M>(replaced, gradients, options, coefficients, fused);
    addCorrection(result as Result<Metrics>, corrected, options);
    return result;
  }

  #evaluateSync<M>(
    input: Input,
    gradients: Gradients,
    options: CallOptions,
    coefficients: Coefficients,
    fused?: FusedAdvantage,
  ): LossResult<M> {
    const form = this.#formFor(input, fused);
    const part = partArray(options);
    const isPlain = options.normalizer === undefined && !part && gradients.gradLogZ === undefined;
    let present: number;
    let call: NativeCall | undefined;
    try {
      if (isPlain && isPlainHostBatch(input.native)) {
        present = this.#evaluateHost(form, input.native, gradients, coefficients);
      } else {
        call = this.#call(input, gradients, options.normalizer, coefficients, form.values);
        call.part = part;
        call.advantage = fused?.advantage;
        present = native.evaluateSync(form.fn, input.native, call);
      }
    } catch (error) {
      throw fromNative(error);
    }
    checkFinite(present, fused);
    this.#checkNormalizer(call);
    return this.#result(form, form.values, gradients, present, part);
  }

  /** Asynchronous version of {@link evaluateSync}. */
  async evaluate<M>(
    input: Input,
    gradients: Gradients,
    options: CallOptions & { signal?: AbortSignalLike | undefined },
    coefficients: Coefficients,
    fused?: FusedAdvantage,
  ): Promise<LossResult<M>> {
    this.#checkWhole(options);
    if (!this.#correction) return this.#evaluate(input, gradients, options, coefficients, fused);
    const corrected = await this.#correction.apply(input, options.signal);
    const replaced = withColumns(input, corrected.columns);
    const result = await this.#evaluate<M>(replaced, gradients, options, coefficients, fused);
    addCorrection(result as Result<Metrics>, corrected, options);
    return result;
  }

  async #evaluate<M>(
    input: Input,
    gradients: Gradients,
    options: CallOptions & { signal?: AbortSignalLike | undefined },
    coefficients: Coefficients,
    fused?: FusedAdvantage,
  ): Promise<LossResult<M>> {
    const form = this.#formFor(input, fused);
    const values = new Float64Array(form.names.length);
    const part = partArray(options);
    const call = this.#call(input, gradients, options.normalizer, coefficients, values);
    call.part = part;
    call.advantage = fused?.advantage;
    const present = await abortable(options.signal, (flag) => {
      call.abort = flag;
      return native.evaluate(form.fn, input.native, call, input.device);
    });
    checkFinite(present, fused);
    this.#checkNormalizer(call);
    return this.#result(form, values, gradients, present, part);
  }

  /**
   * Computes the loss and the metrics of a batch from the sums of its parts.
   * @throws LossError `ERR_INVALID_INPUT` if there is no part, or if a part is not one of this function or was computed
   * with other coefficients; `ERR_INVALID_OPTION` for an invalid normalizer, and for a function that reads the whole
   * batch.
   */
  merge<M>(parts: readonly ArrayLike<number>[], normalizer: Normalizer): Result<M> {
    return guarded(() => {
      this.#checkWhole({ part: true });
      const counts = toNativeCounts(normalizer, NO_LAYOUT, this.#reader.separatesExperts);
      const checked = checkParts(parts);
      const number = takeForm(
        checked,
        this.#forms ? this.#forms.optional.length + this.#forms.perRow.length : 0,
      );
      const form = this.#form(number ?? 0);
      const present = number === undefined ? -1 : native.merge(form.fn, checked, counts, form.values);
      if (present < 0)
        throw new LossError('ERR_INVALID_INPUT', {
          key: 'parts',
          expected:
            'parts that were computed by this function with the same coefficients and the same columns',
          received: 'others',
        });
      return this.#result(form, form.values, {}, present, undefined);
    });
  }

  // Returns the form of the function for a batch.
  #formFor(input: Input, fused: FusedAdvantage | undefined): NativeForm {
    return this.#form(this.#forms ? formNumber(this.#forms, input, fused) : 0);
  }

  #form(number: number): NativeForm {
    const made = this.#made[number];
    if (made) return made;
    const form = new NativeForm(this.#forms!.spec(number), number);
    this.#made[number] = form;
    return form;
  }

  // Throws if the call computes a part of a batch although the function reads the whole batch.
  #checkWhole({ normalizer, part }: CallOptions): void {
    if (!this.readsWholeBatch || (normalizer === undefined && !part)) return;
    throw new LossError('ERR_INVALID_OPTION', {
      option: normalizer === undefined ? 'part' : 'normalizer',
      expected: 'the whole batch in one call, because the loss reduces over all rows (batch_mean, …)',
      received: 'a part of a batch',
    });
  }

  // Native code counts the tokens of the batch while it computes the loss, so this check comes afterwards.
  #checkNormalizer(call: NativeCall | undefined): void {
    if (call?.normalizer && call.counts)
      checkPart(call.normalizer, call.counts, this.#reader.separatesExperts);
  }

  #evaluateHost(
    { fn, values }: NativeForm,
    batch: PlainHostBatch,
    { grad, gradEntropy }: Gradients,
    coefficients: Coefficients,
  ): number {
    const { data, dtypes } = batch;
    let codes = 0;
    for (let i = 0; i < dtypes.length; i++) codes |= dtypes[i]! << (3 * i);
    return native.evaluateHost(
      fn,
      batch.rows,
      batch.rowLength,
      batch.offsets,
      codes,
      data[0],
      data[1],
      data[2],
      data[3],
      data[4],
      data[5],
      data[6],
      data[7],
      data[8],
      data[9],
      batch.mask,
      batch.expert,
      values,
      grad,
      gradEntropy,
      coefficients.mu,
      coefficients.klCoef,
      coefficients.entropyCoef,
    );
  }

  #gradients(layout: Layout, options: WantedGradients | undefined): Gradients {
    if (this.#gradKey === 'gradEntropy') return { gradEntropy: gradArray(layout, options?.grad) };
    return {
      grad: gradArray(layout, options?.grad),
      gradEntropy: gradArray(layout, options?.gradEntropy, 'gradEntropy'),
      gradLogZ: gradArray(layout, options?.gradLogZ, 'gradLogZ', 'row'),
    };
  }

  #call(
    { layout, replaced }: Input,
    gradients: Gradients,
    normalizer: Normalizer | undefined,
    coefficients: Coefficients,
    values: Float64Array,
  ): NativeCall {
    return {
      values,
      grad: gradients.grad,
      gradEntropy: gradients.gradEntropy,
      gradLogZ: gradients.gradLogZ,
      mu: coefficients.mu,
      klCoef: coefficients.klCoef,
      entropyCoef: coefficients.entropyCoef,
      normalizer:
        normalizer === undefined
          ? undefined
          : toNativeCounts(normalizer, layout, this.#reader.separatesExperts),
      counts: normalizer === undefined ? undefined : new Float64Array(5),
      abort: undefined,
      ...replaced,
    };
  }

  #result<M>(
    { names, batchMetrics, number }: NativeForm,
    values: Float64Array,
    gradients: Gradients,
    present: number,
    part: Float64Array | undefined,
  ): LossResult<M> {
    const metrics: Metrics = {};
    for (let i = 1; i < names.length; i++) {
      const name = names[i]!;
      const exists = batchMetrics.has(name) ? !Number.isNaN(values[i]) : hasBit(present, i);
      if (exists) metrics[name] = values[i]!;
    }
    const result: LossResult<M> = { loss: values[0]!, metrics: metrics as M };
    const { grad, gradEntropy, gradLogZ } = gradients;
    if (this.#gradKey === 'gradEntropy') {
      if (gradEntropy) result.grad = gradEntropy;
    } else {
      if (grad) result.grad = grad;
      if (gradEntropy) result.gradEntropy = gradEntropy;
      if (gradLogZ) result.gradLogZ = gradLogZ;
    }
    if (part) result.part = markForm(part, number);
    return result;
  }
}

// Returns the number of the form for a batch; see FormColumns.
function formNumber(
  { optional, perRow }: FormColumns,
  input: Input,
  fused: FusedAdvantage | undefined,
): number {
  let number = 0;
  for (let i = 0; i < optional.length; i++) if (hasColumn(input, optional[i]!)) number |= 1 << i;
  for (let i = 0; i < perRow.length; i++)
    if (isPerRow(input, perRow[i]!, fused)) number |= 1 << (optional.length + i);
  return number;
}

function hasColumn({ native, resident }: Input, name: ColumnName): boolean {
  if (resident) return resident.has(name);
  return (native as NativeBatch).data[COLUMNS.indexOf(name)] !== undefined;
}

function isPerRow({ native, resident }: Input, name: ColumnName, fused: FusedAdvantage | undefined): boolean {
  if (fused && name === 'advantages') return fused.perRow;
  if (resident) return resident.isPerRow(name);
  return ((native as NativeBatch).dtypes[COLUMNS.indexOf(name)]! & PER_ROW) !== 0;
}

// Returns bit i of a whole number, which may have more bits than JavaScript's bitwise operators use.
function hasBit(number: number, i: number): boolean {
  return Math.floor(number / 2 ** i) % 2 === 1;
}

// The layout of a batch that only its counts describe.
const NO_LAYOUT: Layout = { rows: 0, rowLength: 0, tokens: 0, offsets: undefined };

function partArray({ part }: CallOptions): Float64Array | undefined {
  return part ? new Float64Array(native.partLength) : undefined;
}

/**
 * Returns the array to which a gradient is written: a new one, the caller's own, or undefined if no gradient is wanted.
 */
export function gradArray(
  layout: Layout,
  wanted: boolean | Float32Array | undefined,
  name = 'grad',
  per: 'token' | 'row' = 'token',
): Float32Array | undefined {
  if (wanted === undefined || wanted === false) return undefined;
  const size = per === 'row' ? layout.rows : layout.tokens;
  if (wanted === true) return allocate(`a gradient of ${size} values`, () => new Float32Array(size));
  if (!types.isFloat32Array(wanted))
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
  if (wanted.length !== size)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key: name,
      expected: per === 'row' ? `[${size}], one value per row` : describeShape(layout),
      received: String(wanted.length),
    });
  return wanted;
}
