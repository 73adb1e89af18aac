// The base of all advantage functions, the function that makes a class from a declaration, and the registry.
import type {
  NativeAdvantage,
  NativeAdvantageBatch,
  NativeAdvantageCall,
  NativeAdvantageSpec,
  NativeFusedAdvantage,
} from '../../../binding.js';
import { abortable, fromNative } from '../../core/abortable.js';
import type { Batch } from '../../core/batch.js';
import { type AdvantageInput, BatchReader, type Conversions, type Input } from '../../core/batch-reader.js';
import type { FunctionDeclaration } from '../../core/declaration.js';
import { DeviceBatch } from '../../core/device-batch.js';
import { allocate, describeValue, guarded, guardedAsync, LossError } from '../../core/errors.js';
import type { ComputedAdvantages, Metrics } from '../../core/evaluator.js';
import { KeyMapper } from '../../core/key-mapper.js';
import type { Layout } from '../../core/layout.js';
import { native } from '../../core/native.js';
import {
  backendOf,
  type CheckedOptions,
  defaultArgsOf,
  nativeOptions,
  type OptionsOf,
  readOptions,
  type TrinityArgs,
} from '../../core/options.js';
import { Registry } from '../../core/registry.js';
import { nonFiniteError } from './non-finite.js';

/** Options that every advantage function accepts. */
export interface AdvantageOptions {
  /** The framework whose key names batches may use, in addition to Trinity's; 'verl' by default. */
  backend?: string | undefined;
}

/** Options of a synchronous call. */
export interface AdvantageComputeSyncOptions {
  /** Seed of random draws, instead of the object's own: a whole number of at least 0. */
  seed?: number;
}

/** Options of a call. */
export interface AdvantageComputeOptions extends AdvantageComputeSyncOptions {
  /**
   * Where to compute a host batch: 'cpu' (default), 'cuda', 'cuda:1', …. A DeviceBatch is computed on its own device.
   */
  device?: string;
  /** Ends the call early: it rejects with `ERR_ABORTED`. */
  signal?: AbortSignal;
}

/** The result of an advantage function. */
export interface AdvantageResult {
  /** [B, T], in the batch's layout. */
  advantages: Float32Array;
  /** [B, T]; the same array as advantages if the function does not distinguish them. */
  returns: Float32Array;
  /** [B] 1 for a kept row, 0 for a dropped one. A dropped row has advantages 0. */
  keptRows: Uint8Array;
  /** [B] how often each row counts; 0 if it is dropped. Present if kept rows may replace dropped ones (grpo). */
  copies?: Uint32Array;
  /** Under Trinity-RFT's names. */
  metrics: Metrics;
}

/** The declaration of an advantage function. */
export interface AdvantageDeclaration extends FunctionDeclaration {
  /** Whether all unmasked tokens of a row have the same advantage. */
  readonly perRow: boolean;
  /** Whether returns differ from advantages. */
  readonly returns?: true;
  /** Whether rewards and values of masked tokens are read, as in the source. */
  readonly readsMasked?: true;
  /** Whether advantages are whitened over all tokens of the batch, so that parts cannot be computed separately. */
  readonly whitens?: true;
}

/** The properties of an advantage function that depend on its options, and so cannot be declared. */
export interface AdvantageVariant {
  /** Native options; by default all options, under their snake_case names. */
  readonly options?: NativeAdvantageSpec['options'];
  /** Inputs in addition to the mask; by default the declaration's. */
  readonly inputs?: readonly AdvantageInput[];
  /** Whether rows may be dropped. */
  readonly drops?: boolean;
  /** Whether kept rows may count more than once. */
  readonly duplicates?: boolean;
  /** Seed of random draws. */
  readonly seed?: number;
}

/** An advantage function with its options applied. Two functions with equal definitions compute the same. */
export interface AdvantageDefinition extends Omit<AdvantageVariant, 'options'> {
  readonly native: NativeAdvantageSpec;
  readonly perRow: boolean;
  readonly returns: boolean | undefined;
  readonly readsMasked: boolean | undefined;
  readonly whitens: boolean | undefined;
  readonly inputs: readonly AdvantageInput[];
}

interface AdvantageSource extends Input {
  /** The host batch; undefined if the batch is on a device. */
  host: object | undefined;
}

/**
 * An advantage function: computes from rewards how much better each token was than expected. Abstract; each function is
 * a subclass named as in Trinity-RFT.
 *
 * Source: Trinity-RFT, trinity.algorithm.advantage_fn.
 */
export abstract class AdvantageFn {
  /** The framework whose key names batches may use, in addition to Trinity's. */
  readonly backend: string;
  /** @internal The function with its options applied. */
  readonly definition: AdvantageDefinition;
  readonly #fn: NativeAdvantage;
  readonly #names: readonly string[];
  readonly #mapper: KeyMapper;
  readonly #reader: BatchReader;
  readonly #selectKeys: readonly string[];

  /**
   * Used by {@link advantageClass}.
   * @internal
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(
    backend: string,
    declaration: AdvantageDeclaration,
    options: Readonly<Record<string, unknown>>,
    variant: AdvantageVariant,
  ) {
    const mapper = KeyMapper.get(backend);
    const inputs =
      variant.inputs ?? (declaration.reads.filter((key) => key !== 'action_mask') as AdvantageInput[]);
    this.backend = backend;
    const { perRow, returns, readsMasked, whitens } = declaration;
    const { options: variantOptions, ...applied } = variant;
    const spec = {
      name: declaration.name,
      options: variantOptions ?? nativeOptions(declaration.options, options),
    };
    this.definition = { perRow, returns, readsMasked, whitens, ...applied, native: spec, inputs };
    this.#fn = guarded(() => native.createAdvantage(spec), 'ERR_INVALID_OPTION');
    this.#names = native.advantageValueNames(this.#fn);
    this.#mapper = mapper;
    this.#reader = new BatchReader(mapper, { inputs: ['action_mask', ...inputs], order: 'advantage' });
    this.#selectKeys = Object.freeze([...inputs, 'action_mask'].map((key) => mapper.fromTrinity(key)));
  }

  /** The batch keys that the function reads, in the backend's naming. */
  get selectKeys(): readonly string[] {
    return this.#selectKeys;
  }

  /** Returns Trinity-RFT's default arguments (snake_case). */
  static defaultArgs(): TrinityArgs {
    return {};
  }

  /**
   * Computes the advantages on the pool's threads, without blocking the event loop.
   *
   * @returns rejects with LossError: `ERR_MISSING_INPUT`, `ERR_SHAPE_MISMATCH`, `ERR_INVALID_INPUT` (also
   * for a reward that is not finite), `ERR_INVALID_OPTION`, `ERR_DEVICE_UNAVAILABLE`, `ERR_OUT_OF_MEMORY`,
   * `ERR_ABORTED`.
   */
  async compute(batch: Batch | DeviceBatch, options?: AdvantageComputeOptions): Promise<AdvantageResult> {
    return guardedAsync(async () => {
      const input = this.#read(batch, options?.device);
      const call = this.#call(input.layout, options, 'all');
      await this.#run(input, call, options?.signal);
      return this.#result(input.layout, call);
    });
  }

  /** Synchronous version of {@link compute}. The results have the same bits. */
  computeSync(batch: Batch | DeviceBatch, options?: AdvantageComputeSyncOptions): AdvantageResult {
    return guarded(() => {
      const input = this.#read(batch, undefined);
      const call = this.#call(input.layout, options, 'all');
      this.#runSync(input, call);
      return this.#result(input.layout, call);
    });
  }

  /**
   * @internal Computes the advantages in the form that a loss reads fastest.
   * @param perToken whether the loss needs one value per token, with 0 at masked tokens.
   */
  async computeFor(
    batch: Batch,
    options: AdvantageComputeOptions | undefined,
    perToken: boolean,
    conversions?: Conversions,
  ): Promise<{ computed: ComputedAdvantages; metrics: Metrics }> {
    const input = this.#read(batch, undefined, conversions);
    const call = this.#call(input.layout, options, perToken ? 'tokens' : 'rows');
    await this.#run(input, call, options?.signal);
    return this.#computed(call);
  }

  /** @internal Synchronous version of {@link computeFor}. */
  computeForSync(
    batch: Batch,
    options: AdvantageComputeSyncOptions | undefined,
    perToken: boolean,
    conversions?: Conversions,
  ): { computed: ComputedAdvantages; metrics: Metrics } {
    const input = this.#read(batch, undefined, conversions);
    const call = this.#call(input.layout, options, perToken ? 'tokens' : 'rows');
    this.#runSync(input, call);
    return this.#computed(call);
  }

  /** @internal Prepares the function for a loss on a device, which computes the advantages there in the same call. */
  fuse(
    batch: DeviceBatch,
    options: AdvantageComputeSyncOptions,
  ): {
    advantage: NativeFusedAdvantage;
    metrics: () => Metrics;
    notFinite: (input: number) => LossError;
  } {
    this.#read(batch, undefined);
    const advantage = {
      fn: this.#fn,
      seed: this.#seed(options),
      values: new Float64Array(this.#names.length),
      notFiniteRow: new Float64Array(1),
    };
    return {
      advantage,
      metrics: () => this.#metrics(advantage),
      notFinite: (input) => nonFiniteError(this.#mapper, undefined, input, advantage.notFiniteRow[0]!, false),
    };
  }

  async #run(
    input: AdvantageSource,
    call: NativeAdvantageCall,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const nonFinite = await abortable(signal, (flag) => {
      call.abort = flag;
      return native.advantages(this.#fn, input.native as NativeAdvantageBatch, call, input.device);
    });
    this.#check(input, call, nonFinite);
  }

  #runSync(input: AdvantageSource, call: NativeAdvantageCall): void {
    let nonFinite: number;
    try {
      nonFinite = native.advantagesSync(this.#fn, input.native as NativeAdvantageBatch, call);
    } catch (error) {
      throw fromNative(error);
    }
    this.#check(input, call, nonFinite);
  }

  #read(batch: Batch | DeviceBatch, device: string | undefined, conversions?: Conversions): AdvantageSource {
    const input = this.#reader.read(batch, device, conversions);
    return { ...input, host: batch instanceof DeviceBatch ? undefined : batch };
  }

  // Throws if native code found an input that is not finite. `input` is its number, or 0 if all inputs are finite.
  #check({ native, layout, host }: AdvantageSource, call: NativeAdvantageCall, input: number): void {
    if (input === 0) return;
    const source = host && { batch: host, native: native as NativeAdvantageBatch, layout };
    throw nonFiniteError(
      this.#mapper,
      source,
      input,
      call.notFiniteRow[0]!,
      this.definition.readsMasked === true,
    );
  }

  // `wanted`: 'all' for every result, 'tokens' for one advantage per token, 'rows' for one per row if the function
  // allows.
  #call(
    { rows, tokens }: Layout,
    options: AdvantageComputeSyncOptions | undefined,
    wanted: 'all' | 'tokens' | 'rows',
  ): NativeAdvantageCall {
    const { perRow, drops, returns } = this.definition;
    const seed = this.#seed(options);
    const scoresOnly = wanted === 'rows' && perRow;
    return allocate(`the advantages of ${tokens} tokens`, () => {
      return {
        advantages: scoresOnly ? undefined : new Float32Array(tokens),
        returns: returns && wanted === 'all' ? new Float32Array(tokens) : undefined,
        scores: scoresOnly ? new Float32Array(rows) : undefined,
        repeats: drops ? new Uint32Array(rows) : undefined,
        values: new Float64Array(this.#names.length),
        notFiniteRow: new Float64Array(1),
        seed,
        abort: undefined,
      };
    });
  }

  #seed(options: AdvantageComputeSyncOptions | undefined): number {
    const seed = options?.seed ?? this.definition.seed ?? 0;
    if (Number.isSafeInteger(seed) && seed >= 0) return seed;
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'seed',
      expected: 'a whole number of at least 0',
      received: describeValue(seed),
    });
  }

  #result({ rows }: Layout, call: NativeAdvantageCall): AdvantageResult {
    const { repeats } = call;
    const advantages = call.advantages!;
    return {
      advantages,
      returns: call.returns ?? advantages,
      keptRows: repeats ? Uint8Array.from(repeats, (n) => (n > 0 ? 1 : 0)) : new Uint8Array(rows).fill(1),
      ...(repeats && this.definition.duplicates && { copies: repeats }),
      metrics: this.#metrics(call),
    };
  }

  #computed(call: NativeAdvantageCall): { computed: ComputedAdvantages; metrics: Metrics } {
    const { scores, advantages, repeats } = call;
    const computed = { column: (scores ?? advantages)!, perRow: scores !== undefined, repeats };
    return { computed, metrics: this.#metrics(call) };
  }

  #metrics({ values }: { values: Float64Array }): Metrics {
    return Object.fromEntries(this.#names.map((name, i) => [name, values[i]!]));
  }
}

type GroupMetrics<N extends string> = Record<
  `group_advantages/${N}/${'mean' | 'max' | 'min'}`,
  { unit: string }
>;

/** Declares metrics that group functions report as mean, maximum and minimum over the groups. */
export function groupMetrics<const N extends string>(unit: string, ...names: readonly N[]): GroupMetrics<N> {
  return Object.fromEntries(
    names.flatMap((name) =>
      Object.entries({ mean: 'mean', max: 'maximum', min: 'minimum' }).map(([key, word]) => [
        `group_advantages/${name}/${key}`,
        { unit: `${unit}, ${word} over groups` },
      ]),
    ),
  ) as GroupMetrics<N>;
}

/** The class of a declared advantage function. */
export interface AdvantageClass<D extends AdvantageDeclaration> {
  /** @throws LossError `ERR_INVALID_OPTION`, `ERR_UNKNOWN_NAME` for an unknown backend. */
  new (options?: OptionsOf<D['options']> & AdvantageOptions): AdvantageFn;
  /** The function's declaration. */
  readonly declaration: D;
  /** Returns Trinity-RFT's default arguments (snake_case). */
  defaultArgs(): TrinityArgs;
}

/**
 * Makes the class of a declared advantage function.
 * @param variant returns the properties that depend on the checked options.
 */
export function advantageClass<const D extends AdvantageDeclaration>(
  declaration: D,
  variant: (options: CheckedOptions<D['options']>) => AdvantageVariant = () => ({}),
): AdvantageClass<D> {
  return class extends AdvantageFn {
    static readonly declaration = declaration;

    constructor(options: OptionsOf<D['options']> & AdvantageOptions = {}) {
      const checked = readOptions<D['options']>(new.target.name, declaration.options, options);
      super(backendOf(options), declaration, checked, variant(checked));
    }

    static override defaultArgs(): TrinityArgs {
      return defaultArgsOf(declaration.options);
    }
  };
}

/** The advantage functions by name. */
export const ADVANTAGE_FN = new Registry<AdvantageFn>('advantage function');
