// The base class of all advantage functions, the function that makes a subclass from a statement, and their registry.
import type {
  NativeAdvantage,
  NativeAdvantageBatch,
  NativeAdvantageCall,
  NativeAdvantageSpec,
  NativeFusedAdvantage,
} from '../../binding.js';
import type { AbortSignalLike } from '../base/abortable.js';
import type { FunctionDeclaration } from '../base/declaration.js';
import { allocate, describeValue, guarded, LossError } from '../base/errors.js';
import { native } from '../base/native.js';
import {
  type AnyOption,
  backendOf,
  type CheckedOptions,
  nativeOptions,
  readOptions,
  type TrinityArgs,
} from '../base/options.js';
import { Registry } from '../base/registry.js';
import { resultArray } from '../base/result-arrays.js';
import { inSlices, type Steps, takeCall, takeLater, takeNow } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import type { AdvantageInput } from '../batch/columns.js';
import { KeyMapper } from '../batch/key-mapper.js';
import type { Layout } from '../batch/layout.js';
import { BatchReader, type Conversions } from '../batch/reader.js';
import type { DeviceCallOptions, Metrics } from '../call/calls.js';
import type { ComputedAdvantages } from '../call/computed-advantages.js';
import type { DeviceBatch } from '../device/device-batch.js';
import { heldInput, type Input, readInput } from '../device/input.js';
import { checkStream } from '../device/stream.js';
import {
  type AdvantageOutputs,
  checkOutputs,
  type NamedRewards,
  nonFiniteError,
  readNamedRewards,
  readOutputs,
} from './advantage-arrays.js';
import { computeOnHost, type HostAdvantage, needsHost } from './host-advantages.js';
import { classOf, type FunctionClass, located } from './statement.js';

/** The length of a NativeSpread; see binding.d.ts. */
export const SPREAD_LENGTH = 3;

/** How a batch stands for a larger one; see NativeAdvantageBatch in binding.d.ts. */
export type AdvantagePart = Pick<NativeAdvantageBatch, 'rowTokens' | 'spread'>;

/** Options that every advantage function accepts. */
export interface AdvantageOptions {
  /** The training framework whose key names batches may use, in addition to Trinity-RFT's; 'verl' by default. */
  backend?: string | undefined;
}

/** Options of a call that computes advantages synchronously. */
export interface AdvantageComputeSyncOptions {
  /** The seed of random draws, a whole number of at least 0. It replaces the seed with which the object was created. */
  seed?: number;
  /**
   * Arrays to which the results are written, in the layout of the batch. The result has the same arrays. They must not
   * share memory with the batch or with each other. If the call fails, they may be partly written.
   */
  out?: AdvantageOutputs;
}

/** Options of a call that computes advantages asynchronously. */
export interface AdvantageComputeOptions extends AdvantageComputeSyncOptions, DeviceCallOptions {
  /** A signal that ends the call early when it is aborted. The call then rejects with `ERR_ABORTED`. */
  signal?: AbortSignalLike;
}

/** The result of computing advantages. */
export interface AdvantageResult {
  /** Shape [B, T]: the advantage of each token, in the same layout as the batch (padded or packed). */
  advantages: Float32Array;
  /**
   * Shape [B, T]: the return of each token. This is the same array as `advantages` if the function does not compute
   * returns separately.
   */
  returns: Float32Array;
  /** Shape [B]: 1 for a row that was kept, 0 for a row that was dropped. The advantages of a dropped row are 0. */
  keptRows: Uint8Array;
  /**
   * Shape [B]: how often each row counts, 0 if it is dropped. Present only with grpo's option duplicateExperiences,
   * which counts kept rows again in place of dropped ones.
   */
  copies?: Uint32Array;
  /** The metrics under their Trinity-RFT names. */
  metrics: Metrics;
}

/** The declaration of an advantage function. */
export interface AdvantageDeclaration extends FunctionDeclaration {
  /** true if all unmasked tokens of a row have the same advantage. */
  readonly perRow: boolean;
  /** true if the returns differ from the advantages. */
  readonly returns?: true;
  /**
   * true if the function also reads the rewards and values of masked tokens, as the implementation that it follows
   * does.
   */
  readonly readsMasked?: true;
  /**
   * true if advantages are whitened (shifted and scaled) over all tokens of the batch. A call then needs the whole
   * batch. Files can be computed in parts, because all their rows are measured before any of them is computed.
   */
  readonly whitens?: true;
  /**
   * true if a row's advantages depend on single tokens of other rows, and not only on the rewards of these rows and the
   * number of their tokens. Files can then not be computed in parts either.
   */
  readonly comparesTokens?: true;
  /** Inputs that are read if the batch has them. */
  readonly optional?: readonly AdvantageInput[];
}

/**
 * The properties of an advantage function that depend on its options and therefore cannot be part of its declaration.
 */
export interface AdvantageVariant {
  /** The options that native code takes; by default all options, under their snake_case names. */
  readonly options?: NativeAdvantageSpec['options'];
  /** The inputs that the function reads in addition to the mask; by default those in its declaration. */
  readonly inputs?: readonly AdvantageInput[];
  /** The rewards that the function reads instead of token-level rewards. The batch must be in host memory. */
  readonly named?: NamedRewards | undefined;
  /** Whether the function may drop rows. */
  readonly drops?: boolean;
  /** Whether the function may count a kept row more than once. */
  readonly duplicates?: boolean;
  /** The seed of random draws. */
  readonly seed?: number;
  /** Computes the function on the host, from a batch in host memory. Without it, native code does. */
  readonly onHost?: HostAdvantage;
}

/**
 * All properties of an advantage function after its options were applied. Two functions with equal definitions compute
 * equal results.
 */
export interface AdvantageDefinition extends Omit<AdvantageVariant, 'options' | 'onHost'> {
  readonly native: NativeAdvantageSpec;
  readonly perRow: boolean;
  readonly returns: boolean | undefined;
  readonly readsMasked: boolean | undefined;
  readonly whitens: boolean | undefined;
  readonly comparesTokens: boolean | undefined;
  readonly inputs: readonly AdvantageInput[];
  /** Whether the batch must be in host memory, where the function is computed. */
  readonly hostOnly: boolean;
}

interface AdvantageSource extends Omit<Input, 'step'> {
  /** The batch that the caller passed; undefined if it is on a device. */
  host: object | undefined;
}

/**
 * The base class of advantage functions, which compute from rewards how much better each token was than expected. It is
 * abstract: each function is a subclass with the same name as in Trinity-RFT.
 *
 * Source: Trinity-RFT, trinity.algorithm.advantage_fn.
 */
export abstract class AdvantageFn {
  /** The training framework whose key names batches may use, in addition to Trinity-RFT's. */
  readonly backend: string;
  /** @internal All properties of the function after its options were applied. */
  readonly definition: AdvantageDefinition;
  /** Undefined if the function is computed on the host. */
  readonly #fn: NativeAdvantage | undefined;
  readonly #onHost: HostAdvantage | undefined;
  readonly #names: readonly string[];
  readonly #mapper: KeyMapper;
  readonly #reader: BatchReader;
  readonly #selectKeys: readonly string[];

  /**
   * Called by the classes that {@link advantage} makes.
   * @internal
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend, `ERR_INVALID_OPTION`
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
    const { perRow, returns, readsMasked, whitens, comparesTokens, optional = [] } = declaration;
    const { options: variantOptions, onHost, ...applied } = variant;
    const spec = {
      name: declaration.name,
      options: variantOptions ?? nativeOptions(declaration.options, options),
    };
    const facts = { perRow, returns, readsMasked, whitens, comparesTokens };
    this.definition = { ...facts, ...applied, native: spec, inputs, hostOnly: onHost !== undefined };
    this.#onHost = onHost;
    this.#fn = onHost ? undefined : guarded(() => native.createAdvantage(spec), 'ERR_INVALID_OPTION');
    this.#names = this.#fn ? native.advantageValueNames(this.#fn) : [];
    this.#mapper = mapper;
    this.#reader = new BatchReader(mapper, {
      inputs: ['action_mask', ...inputs],
      optional,
      order: 'advantage',
    });
    const keys = [...inputs, ...(variant.named?.keys ?? []), 'action_mask'];
    this.#selectKeys = Object.freeze(keys.map((key) => mapper.fromTrinity(key)));
  }

  /** The batch keys that the function reads, under the names that the backend uses. */
  get selectKeys(): readonly string[] {
    return this.#selectKeys;
  }

  /** Returns the default arguments, which are Trinity-RFT's, under snake_case names. */
  static defaultArgs(): TrinityArgs {
    return {};
  }

  /**
   * Computes the advantages of a batch on the native thread pool or on a device, without blocking the event loop.
   *
   * @returns a promise of the result. It rejects with LossError `ERR_MISSING_INPUT`, `ERR_SHAPE_MISMATCH`,
   * `ERR_INVALID_INPUT` (also for a reward that is not finite), `ERR_INVALID_OPTION`, `ERR_DEVICE_UNAVAILABLE`,
   * `ERR_OUT_OF_MEMORY` or `ERR_ABORTED`.
   */
  async compute(batch: Batch | DeviceBatch, options?: AdvantageComputeOptions): Promise<AdvantageResult> {
    return takeLater(this.#compute(batch, options), options);
  }

  /** Synchronous version of {@link compute}. The results are equal to the last bit. */
  computeSync(batch: Batch | DeviceBatch, options?: AdvantageComputeSyncOptions): AdvantageResult {
    return takeNow(this.#compute(batch, options));
  }

  *#compute(
    batch: Batch | DeviceBatch,
    options: AdvantageComputeOptions | undefined,
  ): Steps<AdvantageResult> {
    // Reads the options before the first wait, because the caller may change them afterwards.
    const { device, stream } = options ?? {};
    const seed = this.#seed(options);
    const out = readOutputs(options?.out);
    if (this.#onHost) {
      checkStream(stream, undefined);
      return yield* this.#hostResult(this.#onHost, batch, out);
    }
    const input = yield* this.#read(batch, device);
    checkStream(stream, input.resident?.device ?? input.device);
    checkOutputs(out, input, this.definition.returns === true);
    const call = this.#call(input, seed, 'all', out);
    call.stream = stream;
    yield* this.#run(input, call);
    return yield* this.#result(input.layout, call);
  }

  /**
   * @internal Computes the advantages in the form that a loss reads fastest: one value per row where possible,
   * otherwise one per token.
   * @param perToken true for a loss that also reads the advantages of masked tokens, which are 0. One value per row
   * cannot express this, so the result always has one value per token.
   * @param conversions a cache of converted inputs that is shared with the loss's reader.
   * @param part how the batch stands for a larger one, if it does.
   */
  *computeFor(
    batch: Batch,
    options: AdvantageComputeSyncOptions | undefined,
    perToken: boolean,
    conversions?: Conversions,
    part?: AdvantagePart,
  ): Steps<{ computed: ComputedAdvantages; metrics: Metrics }> {
    const seed = this.#seed(options);
    if (this.#onHost) {
      const { advantages, metrics } = yield* this.#hostResult(this.#onHost, batch, {});
      return { computed: { column: advantages, perRow: false, repeats: undefined }, metrics };
    }
    const input = yield* this.#read(batch, undefined, conversions);
    Object.assign(input.native, part);
    const call = this.#call(input, seed, perToken ? 'tokens' : 'rows');
    yield* this.#run(input, call);
    return this.#computed(call);
  }

  /**
   * @internal Measures how the advantages of each row spread before they are whitened. Only for functions that whiten
   * and give each token an advantage of its own.
   * @returns a NativeSpread (see binding.d.ts) of each row, of SPREAD_LENGTH numbers.
   */
  *spreadsOf(batch: Batch): Steps<Float64Array> {
    const input = yield* this.#read(batch, undefined);
    const call = this.#call(input, 0, 'spreads');
    yield* this.#run(input, call);
    return call.spreads!;
  }

  /**
   * @internal Prepares this function to run as part of a loss's call on a device. Native code then computes the
   * advantages on the device, and the loss reads them there.
   * @returns the function for the native call, whether it gives one advantage per row, its metrics (to be read after
   * that call), and the error for an input that native code reports as not finite.
   */
  fuse(
    batch: DeviceBatch,
    options: AdvantageComputeSyncOptions,
  ): {
    advantage: NativeFusedAdvantage;
    perRow: boolean;
    metrics: () => Metrics;
    notFinite: (input: number) => LossError;
  } {
    if (!this.#fn) throw needsHost(batch.device);
    takeNow(this.#read(batch, undefined));
    const advantage = {
      fn: this.#fn,
      seed: this.#seed(options),
      values: new Float64Array(this.#names.length),
      notFiniteRow: new Float64Array(1),
    };
    return {
      advantage,
      perRow: this.definition.perRow,
      metrics: () => this.#metrics(advantage),
      notFinite: (input) => nonFiniteError(this.#mapper, undefined, input, advantage.notFiniteRow[0]!, false),
    };
  }

  *#hostResult(
    compute: HostAdvantage,
    batch: Batch | DeviceBatch,
    out: AdvantageOutputs,
  ): Steps<AdvantageResult> {
    const { rows, ...result } = yield* computeOnHost(compute, batch, {
      mapper: this.#mapper,
      out,
      hasReturns: this.definition.returns === true,
    });
    return { ...result, keptRows: yield* keptRows(rows, undefined) };
  }

  *#run(input: AdvantageSource, call: NativeAdvantageCall): Steps<void> {
    this.#check(input, call, yield* takeCall(native.advantages, call));
  }

  *#read(
    given: Batch | DeviceBatch,
    device: string | undefined,
    conversions?: Conversions,
  ): Steps<AdvantageSource> {
    const { named } = this.definition;
    const batch = named ? heldInput(given, this.#mapper, named.keys) : given;
    const input = yield* readInput(this.#reader, batch, device, conversions);
    if (named) yield* readNamedRewards(batch, this.#mapper, named, input);
    return { ...input, host: input.resident ? undefined : (batch as Batch) };
  }

  // Throws if native code found an input that is not finite. `input` is native code's number for that input, or 0 if
  // all inputs are finite.
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

  // Creates the arrays that receive the results of a native call. `wanted` selects the results. 'all': the advantages
  // and the returns, one per token. 'tokens': only the advantages, one per token. 'rows': only the advantages, one per
  // row if the function gives all tokens of a row the same one, otherwise one per token. 'spreads': no advantages, but
  // the spread of each row.
  #call(
    { native: batch, device, layout: { rows, tokens } }: AdvantageSource,
    seed: number,
    wanted: 'all' | 'tokens' | 'rows' | 'spreads',
    out: AdvantageOutputs = {},
  ): NativeAdvantageCall {
    const { perRow, drops, returns } = this.definition;
    const scoresOnly = wanted === 'rows' && perRow;
    const spreadsOnly = wanted === 'spreads';
    const what = `the advantages of ${tokens} tokens`;
    return allocate(what, () => {
      return {
        fn: this.#fn!,
        batch: batch as NativeAdvantageBatch,
        device,
        advantages: scoresOnly || spreadsOnly ? undefined : (out.advantages ?? resultArray(what, tokens)),
        returns: returns && wanted === 'all' ? (out.returns ?? resultArray(what, tokens)) : undefined,
        scores: scoresOnly ? new Float32Array(rows) : undefined,
        spreads: spreadsOnly ? new Float64Array(SPREAD_LENGTH * rows) : undefined,
        repeats: drops ? new Uint32Array(rows) : undefined,
        values: new Float64Array(this.#names.length),
        notFiniteRow: new Float64Array(1),
        seed,
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

  *#result({ rows }: Layout, call: NativeAdvantageCall): Steps<AdvantageResult> {
    const { repeats } = call;
    const advantages = call.advantages!;
    return {
      advantages,
      returns: call.returns ?? advantages,
      keptRows: yield* keptRows(rows, repeats),
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

// Uses a loop, because Uint8Array.from() takes many times as long.
function* keptRows(rows: number, repeats: Uint32Array | undefined): Steps<Uint8Array> {
  const kept = new Uint8Array(rows).fill(1);
  if (!repeats) return kept;
  yield* inSlices(rows, (begin, end) => {
    for (let row = begin; row < end; row++) if (repeats[row] === 0) kept[row] = 0;
  });
  return kept;
}

type GroupMetrics<N extends string> = Record<
  `group_advantages/${N}/${'mean' | 'max' | 'min'}`,
  { unit: string }
>;

/**
 * Declares, for each name, three metrics that a function on groups of rows reports: the mean, the maximum and the
 * minimum over the groups.
 */
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

/** The statement of an advantage function. */
interface Statement<N extends string, O> extends Omit<AdvantageDeclaration, 'name' | 'options'> {
  readonly name: N;
  readonly options: O;
  /** Returns what depends on the options. By default, native code takes all options. */
  readonly variant?: (options: CheckedOptions<O>) => AdvantageVariant;
}

/** Makes a class of advantage functions: `export class X extends advantage({ … }) {}`. */
export function advantage<const N extends string, const O extends Readonly<Record<string, AnyOption>>>({
  variant,
  ...given
}: Statement<N, O>): FunctionClass<AdvantageFn, AdvantageDeclaration, N, O, AdvantageOptions> {
  const declaration = given as unknown as AdvantageDeclaration;
  return classOf(AdvantageFn, declaration, (owner, options) => {
    const checked = readOptions(owner, declaration.options, options);
    const own = located(owner, () => variant?.(checked as CheckedOptions<O>) ?? {});
    return [backendOf(options), declaration, checked, own];
  }) as never;
}

/** The registry of all advantage functions, by name. */
export const ADVANTAGE_FN = new Registry<AdvantageFn>('advantage function');
