// Calls native code to compute one function on batches. compute() and computeSync() of every loss are built on this.
import type { NativeBatch, NativeCall, NativeFunctionSpec, NativeLogitsOfTokens } from '../../binding.js';
import { type AbortSignalLike, abortable, callNative, checkSignal, fromNative } from './abortable.js';
import type { Batch } from './batch.js';
import { type BatchReader, type Conversions, type Input, whileKept } from './batch-reader.js';
import type {
  AsyncOptions,
  CallOptions,
  LossComputeOptions,
  LossComputeSyncOptions,
  LossResult,
  Metrics,
  Result,
} from './calls.js';
import { PER_ROW } from './columns.js';
import { type ComputedAdvantages, checkFinite, type FusedAdvantage } from './computed-advantages.js';
import { addCorrection, type Corrected, type Correction, withColumns } from './correction.js';
import { checkPart, type Normalizer, toNativeCounts } from './counts.js';
import type { DeviceBatch } from './device-batch.js';
import { DeviceGradient } from './device-gradient.js';
import { guarded, LossError, unreadable } from './errors.js';
import { type Forms, type NativeForm, NativeForms } from './forms.js';
import {
  addGradient,
  type Gradients,
  gradientArray,
  gradientsOf,
  nativeArray,
  nativeDtypes,
  type WantedGradients,
  withHeldRequests,
} from './gradients.js';
import { hostArguments, plainHostBatch } from './host-call.js';
import type { Layout } from './layout.js';
import { native } from './native.js';
import { COLUMNS } from './native-batch.js';
import { checkParts, markForm, takeForm } from './part-sums.js';
import { finish, finishInLaterTurns, type Sliced } from './slices.js';
import { checkStream } from './stream.js';
import { checkTogether } from './together.js';
import { handedOver } from './turn-budget.js';

/** The coefficients that native code takes with each call, because they may change from call to call. */
export interface Coefficients {
  mu?: number | undefined;
  klCoef?: number | undefined;
  entropyCoef?: number | undefined;
}

/** Returns the coefficients for a batch. */
export type CoefficientsOf = (input: Input, normalizer: Normalizer | undefined) => Coefficients;

/**
 * Computes the log-probabilities of some consecutive tokens from their logits, the gradients of a loss with respect to
 * them, and the gradient with respect to the logits, while these are in the cache.
 */
export interface LogitsGradients {
  writeSync(logits: NativeLogitsOfTokens): void;
  write(logits: NativeLogitsOfTokens, signal: AbortSignalLike | undefined): Promise<void>;
}

/** The computation of a batch that was read. */
export interface ReadLoss<R> {
  readonly gradients: Gradients;
  /** Returns undefined if the gradient of a token depends on other tokens. */
  logitsGradients(): LogitsGradients | undefined;
  compute(): Promise<R>;
  computeSync(): R;
}

/** Computes one native function on batches. */
export class Evaluator {
  readonly #forms: NativeForms;
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
    this.#forms = new NativeForms(spec);
    this.#reader = reader;
    this.#gradKey = gradKey;
    this.#correction = correction;
    this.readsWholeBatch = this.#forms.first.readsWholeBatch || correction?.readsWholeBatch === true;
  }

  computeSync<M>(
    batch: Batch | DeviceBatch,
    options: LossComputeSyncOptions | undefined,
    coefficients: CoefficientsOf,
  ): LossResult<M> {
    return guarded(() => {
      const input = finish(this.#reader.read(batch));
      const gradients = this.#gradients(input, options ?? {});
      return this.evaluateSync(input, gradients, options ?? {}, coefficients(input, options?.normalizer));
    });
  }

  // A small batch is computed in less time than several promises take, so there are few asynchronous functions here.
  async compute<M>(
    batch: Batch | DeviceBatch,
    options: LossComputeOptions | undefined,
    coefficients: CoefficientsOf,
  ): Promise<LossResult<M>> {
    try {
      // Holds the options before the first wait, because the caller may change them afterwards.
      const held = withHeldRequests(options ?? {});
      const reading = this.#reader.read(batch, held.device);
      const first = reading.next();
      const input = first.done ? first.value : await finishInLaterTurns(reading, held.signal);
      const gradients = this.#gradients(input, held);
      return await this.evaluate<M>(input, gradients, held, coefficients(input, held.normalizer));
    } catch (error) {
      throw unreadable(error);
    }
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
    checkChanged(corrected, gradients);
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
    const form = this.#forms.of(input, fused);
    const part = partArray(options);
    let present: number;
    let call: NativeCall | undefined;
    try {
      const plain = plainHostBatch(input, options, gradients);
      if (plain) {
        present = native.evaluateHost(...hostArguments(form.fn, plain, form.values, gradients, coefficients));
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
  evaluate<M>(
    input: Input,
    gradients: Gradients,
    options: CallOptions & AsyncOptions,
    coefficients: Coefficients,
    fused?: FusedAdvantage,
  ): Promise<LossResult<M>> {
    const correction = this.#correction;
    if (!correction) return this.#evaluate(input, gradients, options, coefficients, fused);
    return whileKept(input, async () => {
      this.#checkOptions(input, options);
      const corrected = await correction.apply(input, options);
      checkChanged(corrected, gradients);
      const replaced = withColumns(input, corrected.columns);
      const result = await this.#evaluate<M>(replaced, gradients, options, coefficients, fused);
      addCorrection(result as Result<Metrics>, corrected, options);
      return result;
    });
  }

  async #evaluate<M>(
    input: Input,
    gradients: Gradients,
    options: CallOptions & AsyncOptions,
    coefficients: Coefficients,
    fused?: FusedAdvantage,
  ): Promise<LossResult<M>> {
    this.#checkOptions(input, options);
    const form = this.#forms.of(input, fused);
    const { tokens } = input.layout;
    const isOnDevice = input.resident !== undefined || input.device !== undefined;
    const fits = !isOnDevice && form.cost.fits(tokens);
    if (isOnDevice || fits) options.together?.leave();
    if (fits) {
      checkSignal(options.signal);
      return form.cost.run(tokens, () =>
        this.#evaluateSync<M>(input, gradients, options, coefficients, fused),
      );
    }
    const values = form.takeValues();
    const part = partArray(options);
    const together = isOnDevice ? undefined : options.together;
    const plain = together ? undefined : plainHostBatch(input, options, gradients);
    const isQuick = plain !== undefined && form.cost.isSmall(tokens);
    if (isQuick) handedOver();
    let call: NativeCall | undefined;
    const present = await abortable(options.signal, (flag) => {
      if (plain) {
        const given = hostArguments(form.fn, plain, values, gradients, coefficients);
        return native.evaluateHostLater(...given, flag, isQuick);
      }
      call = this.#call(input, gradients, options.normalizer, coefficients, values);
      call.part = part;
      call.stream = options.stream;
      call.advantage = fused?.advantage;
      call.abort = flag;
      if (together) return together.evaluate([form.fn, input.native as NativeBatch, call], options.signal);
      return native.evaluate(form.fn, input.native, call, input.device);
    });
    checkFinite(present, fused);
    this.#checkNormalizer(call);
    const result = this.#result<M>(form, values, gradients, present, part);
    form.returnValues(values);
    return result;
  }

  /**
   * Returns the computation of a batch that was read.
   * @param use makes the caller's result of the evaluator's.
   */
  prepare<R>(
    input: Input,
    gradients: Gradients,
    options: CallOptions & AsyncOptions,
    coefficients: Coefficients,
    use: (result: LossResult<Metrics>) => R,
    fused?: FusedAdvantage,
  ): ReadLoss<R> {
    return {
      gradients,
      logitsGradients: () => this.#logitsGradients(input, gradients, options, coefficients),
      compute: async () => use(await this.evaluate(input, gradients, options, coefficients, fused)),
      computeSync: () => use(this.evaluateSync(input, gradients, options, coefficients, fused)),
    };
  }

  #logitsGradients(
    input: Input,
    gradients: Gradients,
    { normalizer }: CallOptions,
    coefficients: Coefficients,
  ): LogitsGradients | undefined {
    const form = this.#forms.of(input, undefined);
    if (this.#correction || gradients.grad === undefined || !form.gradientIsPerToken) return undefined;
    const call = this.#call(input, gradients, normalizer, coefficients, form.values);
    return {
      writeSync: (logits) => {
        callNative(() => native.evaluateSync(form.fn, input.native, { ...call, logits }));
      },
      write: async (logits, signal) => {
        await abortable(signal, (abort) =>
          native.evaluate(form.fn, input.native, { ...call, logits, abort }, undefined),
        );
      },
    };
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
      const number = takeForm(checked, this.#forms.bits);
      const form = this.#forms.numbered(number ?? 0);
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

  #checkOptions(input: Input, options: CallOptions & AsyncOptions): void {
    this.#checkWhole(options);
    checkStream(options.stream, input.resident?.device ?? input.device);
    checkTogether(options.together);
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

  #gradients(input: Input, options: WantedGradients): Gradients {
    if (this.#gradKey === 'grad') return gradientsOf(input, options);
    return { gradEntropy: gradientArray(input, options.grad, 'grad') };
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
      grad: nativeArray(gradients.grad),
      gradEntropy: nativeArray(gradients.gradEntropy),
      gradDtypes: nativeDtypes(gradients),
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
    { names, isOfBatch, number }: NativeForm,
    values: Float64Array,
    gradients: Gradients,
    present: number,
    part: Float64Array | undefined,
  ): LossResult<M> {
    const metrics: Metrics = {};
    // The number has more bits than JavaScript's bitwise operators use.
    const upper = Math.floor(present / 2 ** 32);
    for (let i = 1; i < names.length; i++) {
      const bit = i < 32 ? present >>> i : upper >>> (i - 32);
      const exists = isOfBatch[i] ? !Number.isNaN(values[i]) : (bit & 1) === 1;
      if (exists) metrics[names[i]!] = values[i]!;
    }
    const result: LossResult<M> = { loss: values[0]!, metrics: metrics as M };
    const { grad, gradEntropy, gradLogZ } = gradients;
    if (this.#gradKey === 'gradEntropy') {
      addGradient(result, 'grad', gradEntropy);
    } else {
      addGradient(result, 'grad', grad);
      addGradient(result, 'gradEntropy', gradEntropy);
      if (gradLogZ) result.gradLogZ = gradLogZ;
    }
    if (part) result.part = markForm(part, number);
    return result;
  }
}

// Throws if a correction changes a gradient that stays on a device, because it does so on the host.
function checkChanged({ passing }: Corrected, { grad }: Gradients): void {
  if (passing && grad instanceof DeviceGradient)
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'grad',
      expected:
        'true, false, a Float32Array or { dtype }, because a limit of the ratio changes the gradient on the host',
      received: 'a gradient on a device',
    });
}

// The layout of a batch that only its counts describe.
const NO_LAYOUT: Layout = { rows: 0, rowLength: 0, tokens: 0, offsets: undefined };

function partArray({ part }: CallOptions): Float64Array | undefined {
  return part ? new Float64Array(native.partLength) : undefined;
}
