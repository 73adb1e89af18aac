// Calls native code to compute one function on batches. compute() and computeSync() of every loss are built on this.
import type { NativeBatch, NativeCall, NativeFunctionSpec, NativeLogitsOfTokens } from '../../binding.js';
import { guarded, LossError } from '../base/errors.js';
import { native } from '../base/native.js';
import { toCamelCase } from '../base/options.js';
import { type Steps, takeCall } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import { COLUMNS } from '../batch/columns.js';
import { PER_ROW } from '../batch/convert.js';
import { checkPart, type Normalizer, toNativeCounts } from '../batch/counts.js';
import type { Layout } from '../batch/layout.js';
import type { BatchReader, Conversions } from '../batch/reader.js';
import type { DeviceBatch } from '../device/device-batch.js';
import { DeviceGradient } from '../device/device-gradient.js';
import { type Input, readInput, whileResident } from '../device/input.js';
import { checkStream } from '../device/stream.js';
import type { CallOptions, LossComputeOptions, LossResult, Metrics, Result } from './calls.js';
import { type ComputedAdvantages, checkFinite, type FusedAdvantage } from './computed-advantages.js';
import { addCorrection, type Corrected, type Correction, withColumns } from './correction.js';
import { type Forms, type NativeForm, NativeForms } from './forms.js';
import {
  addGradient,
  type Gradients,
  gradArray,
  gradientArray,
  gradientsOf,
  nativeArray,
  nativeDtypes,
  type WantedGradients,
  withHeldRequests,
} from './gradients.js';
import { checkParts, markForm, takeForm } from './part-sums.js';

/**
 * The size of a batch up to which the JavaScript thread computes an asynchronous call itself, because waking another
 * thread and being woken by it takes longer.
 */
const SMALL = { tokens: 8192, rows: 32 };

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
export type LogitsGradients = (logits: NativeLogitsOfTokens) => Steps<unknown>;

/** A call whose batch and options were read. */
export interface ReadCall {
  readonly input: Input;
  readonly gradients: Gradients;
  readonly options: CallOptions;
  readonly coefficients: Coefficients;
  readonly fused?: FusedAdvantage | undefined;
  /** Memory of the device that receives `grad`, instead of an array in `gradients`. */
  readonly there?: Pick<NativeCall, 'grad' | 'gradDtypes' | 'gradHandle'> | undefined;
}

/** The computation of a batch that was read. */
export interface ReadLoss<R> {
  readonly gradients: Gradients;
  /** Returns undefined if the gradient of a token depends on other tokens. */
  logitsGradients(): LogitsGradients | undefined;
  compute(): Steps<R>;
}

/**
 * What the option `grad` requests of a function: where native code writes it, and the key of the result. `grad` is by
 * logprob; the options gradEntropy and gradLogZ then request further gradients. The others are by entropy, values and
 * rewards.
 */
const GRADIENTS = {
  grad: { array: 'grad', key: 'grad' },
  gradEntropy: { array: 'gradEntropy', key: 'grad' },
  gradValues: { array: 'grad', key: 'gradValues' },
  gradRewards: { array: 'gradLogZ', key: 'gradRewards' },
} as const;
export type GradientKey = keyof typeof GRADIENTS;

/** Computes one native function on batches. */
export class Evaluator {
  readonly #forms: NativeForms;
  readonly #reader: BatchReader;
  readonly #gradKey: GradientKey;
  readonly #correction: Correction | undefined;
  /** Whether the function reduces over all rows of a batch, so that the batch cannot be computed in parts. */
  readonly readsWholeBatch: boolean;

  /**
   * @param gradKey the gradient that the option `grad` requests.
   * @param correction computes the mask and the weights with which compute() computes the function.
   */
  constructor(
    spec: NativeFunctionSpec | Forms,
    reader: BatchReader,
    gradKey: GradientKey = 'grad',
    correction?: Correction,
  ) {
    this.#forms = new NativeForms(spec);
    this.#reader = reader;
    this.#gradKey = gradKey;
    this.#correction = correction;
    this.readsWholeBatch = this.#forms.first.readsWholeBatch || correction?.readsWholeBatch === true;
  }

  /** Reads a batch and computes the function on it. */
  *compute<M>(
    batch: Batch | DeviceBatch,
    given: LossComputeOptions | undefined,
    coefficients: CoefficientsOf,
  ): Steps<LossResult<M>> {
    // Holds the options before the first wait, because the caller may change them afterwards.
    const options = withHeldRequests(given ?? {});
    const input = yield* readInput(this.#reader, batch, options.device);
    return yield* this.evaluate({
      input,
      gradients: this.#gradients(input, options),
      options,
      coefficients: coefficients(input, options.normalizer),
    });
  }

  /**
   * Reads a batch, which may be in host memory or on a device.
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
  ): Steps<Input> {
    const input = yield* readInput(this.#reader, batch, device, conversions);
    if (computed) {
      const view = input.native as NativeBatch;
      const index = COLUMNS.indexOf('advantages');
      view.data[index] = computed.column;
      view.dtypes[index] = computed.perRow ? PER_ROW : 0;
      view.repeats = computed.repeats;
    }
    return input;
  }

  /** Computes the function on a batch that was read, under its correction if it has one. */
  *evaluate<M>(call: ReadCall): Steps<LossResult<M>> {
    const { input, options } = call;
    this.#checkWhole(options);
    checkStream(options.stream, input.resident?.device ?? input.device);
    const correction = this.#correction;
    return yield* correction
      ? whileResident(input, this.#corrected<M>(correction, call))
      : this.#evaluate<M>(call);
  }

  *#corrected<M>(correction: Correction, call: ReadCall): Steps<LossResult<M>> {
    const corrected = yield* correction.apply(call.input, call.options.stream);
    checkChanged(corrected, call.gradients);
    const input = withColumns(call.input, corrected.columns);
    const result = yield* this.#evaluate<M>({ ...call, input });
    yield* addCorrection(result as Result<Metrics>, corrected, call.options);
    return result;
  }

  *#evaluate<M>(call: ReadCall): Steps<LossResult<M>> {
    const { input, gradients, fused } = call;
    const form = this.#forms.of(input, fused);
    const made = this.#call(form, call);
    const present = yield* takeCall(native.evaluate, made, isSmall(input));
    checkFinite(present, fused);
    // Native code counts the tokens of the batch while it computes the loss, so this check comes afterwards.
    if (made.normalizer && made.counts) checkPart(made.normalizer, made.counts, this.#reader);
    const result = this.#result<M>(form, made.values, gradients, present, made.part);
    form.unused.push(made.values);
    return result;
  }

  /**
   * Returns the computation of a batch that was read.
   * @param use makes the caller's result of the evaluator's.
   */
  prepare<R>(call: ReadCall, use: (result: LossResult<Metrics>) => R): ReadLoss<R> {
    const evaluate = () => this.evaluate<Metrics>(call);
    return {
      gradients: call.gradients,
      logitsGradients: () => this.#logitsGradients(call),
      *compute() {
        return use(yield* evaluate());
      },
    };
  }

  #logitsGradients(call: ReadCall): LogitsGradients | undefined {
    const form = this.#forms.of(call.input, undefined);
    const hasGradient = call.gradients.grad !== undefined;
    if (this.#correction || !hasGradient || !form.gradientIsPerToken) return undefined;
    const options = { ...call.options, part: false };
    const made = this.#call(form, { ...call, options });
    return (logits) => takeCall(native.evaluate, { ...made, logits });
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
      const values = new Float64Array(form.names.length);
      const present = number === undefined ? -1 : native.merge(form.fn, checked, counts, values);
      if (present < 0)
        throw new LossError('ERR_INVALID_INPUT', {
          key: 'parts',
          expected:
            'parts that were computed by this function with the same coefficients and the same columns',
          received: 'others',
        });
      return this.#result(form, values, {}, present, undefined);
    });
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

  #gradients(input: Input, options: WantedGradients): Gradients {
    const { array } = GRADIENTS[this.#gradKey];
    if (this.#gradKey === 'grad') return gradientsOf(input, options);
    if (array !== 'gradLogZ') return { [array]: gradientArray(input, options.grad, 'grad') };
    const wanted = options.grad as boolean | Float32Array | undefined;
    return { gradLogZ: gradArray(input.layout, wanted, 'grad', 'row') };
  }

  #call(form: NativeForm, { input, gradients, options, coefficients, fused, there }: ReadCall): NativeCall {
    const { normalizer, part, stream } = options;
    const { mu, klCoef, entropyCoef } = coefficients;
    const isPart = normalizer !== undefined;
    return {
      fn: form.fn,
      batch: input.native,
      device: input.device,
      stream,
      values: form.unused.pop() ?? new Float64Array(form.names.length),
      grad: nativeArray(gradients.grad),
      gradEntropy: nativeArray(gradients.gradEntropy),
      gradDtypes: nativeDtypes(gradients),
      ...there,
      gradLogZ: gradients.gradLogZ,
      mu,
      klCoef,
      entropyCoef,
      normalizer: isPart
        ? toNativeCounts(normalizer, input.layout, this.#reader.separatesExperts)
        : undefined,
      counts: isPart ? new Float64Array(5) : undefined,
      part: part ? new Float64Array(native.partLength) : undefined,
      advantage: fused?.advantage,
      ...input.replaced,
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
    const state: Record<string, number> = {};
    // The number has more bits than JavaScript's bitwise operators use.
    const upper = Math.floor(present / 2 ** 32);
    for (let i = 1; i < names.length; i++) {
      const bit = i < 32 ? present >>> i : upper >>> (i - 32);
      const exists = isOfBatch[i] ? !Number.isNaN(values[i]) : (bit & 1) === 1;
      if (!exists) continue;
      if (names[i]!.startsWith(STATE)) state[toCamelCase(names[i]!.slice(STATE.length))] = values[i]!;
      else metrics[names[i]!] = values[i]!;
    }
    const result: LossResult<M> = { loss: values[0]!, metrics: metrics as M };
    if (Object.keys(state).length > 0) result.state = state;
    const { array, key } = GRADIENTS[this.#gradKey];
    addGradient(result, key, gradients[array]);
    if (this.#gradKey === 'grad') {
      addGradient(result, 'gradEntropy', gradients.gradEntropy);
      addGradient(result, 'gradLogZ', gradients.gradLogZ);
    }
    if (part) result.part = markForm(part, number);
    return result;
  }
}

// What the names of the metrics that are a loss's state begin with.
const STATE = 'state/';

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

function isSmall({ layout, device, resident }: Input): boolean {
  const isOnHost = device === undefined && resident === undefined;
  return isOnHost && layout.tokens <= SMALL.tokens && layout.rows <= SMALL.rows;
}
