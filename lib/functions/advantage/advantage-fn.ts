// What all advantage functions have in common.
import type {
  NativeAdvantage,
  NativeAdvantageCall,
  NativeAdvantageOnTheWay,
  NativeAdvantageSpec,
} from '../../../binding.js';
import { abortable, fromNative } from '../../core/abortable.js';
import type { Batch, Layout } from '../../core/batch.js';
import type { DeviceBatch } from '../../core/device-batch.js';
import { describeValue, guarded, guardedAsync, LossError } from '../../core/errors.js';
import type { ComputedAdvantages, Metrics } from '../../core/evaluator.js';
import { KeyMapper } from '../../core/key-mapper.js';
import { native } from '../../core/native.js';
import type { TrinityArgs } from '../../core/options.js';
import { type AdvantageInput, AdvantageReader, type AdvantageSource, notFinite } from './advantage-batch.js';

/** Options that every advantage function takes. */
export interface AdvantageOptions {
  /** The training framework whose names the batch's keys may have, beside Trinity's; 'verl' by default. */
  backend?: string | undefined;
}

/** Options of a synchronous call. */
export interface AdvantageComputeSyncOptions {
  /** What random choices depend on, in the place of the object's own seed: a whole number of at least 0. */
  seed?: number;
}

/** Options of a call. */
export interface AdvantageComputeOptions extends AdvantageComputeSyncOptions {
  /** Where to compute a host batch: 'cpu' unless said otherwise; 'cuda', 'cuda:1', …. A DeviceBatch is computed where it lies. */
  device?: string;
  /** Ends the call early: it rejects with `ERR_ABORTED`. */
  signal?: AbortSignal;
}

/** What an advantage function gives. */
export interface AdvantageResult {
  /** [B, T] in the batch's layout. */
  advantages: Float32Array;
  /** [B, T]; the same array as advantages where the function makes no difference between them. */
  returns: Float32Array;
  /** [B] 1: kept; 0: dropped, and its advantages are 0. */
  keptRows: Uint8Array;
  /** [B] how often each row counts, 0 where it was dropped; where rows may stand in for dropped ones (grpo). */
  copies?: Uint32Array;
  /** Under Trinity-RFT's names. */
  metrics: Metrics;
}

/** What a class tells the base of itself. */
export interface AdvantageDefinition {
  advantage: NativeAdvantageSpec;
  /** What it reads beside action_mask. */
  inputs: readonly AdvantageInput[];
  /** Whether every unmasked token of a row has the row's score. */
  perRow: boolean;
  /** Whether rows may be dropped. */
  drops?: boolean;
  /** Whether rows may stand in for dropped ones. */
  duplicates?: boolean;
  /** Whether returns are something else than advantages. */
  returns?: boolean;
  /** Whether masked tokens' rewards and values are read, as the source does. */
  readsMasked?: boolean;
  /** Whether advantages are whitened over all tokens, so that a part of a batch has none without the others. */
  whitens?: boolean;
  seed?: number;
}

/**
 * An advantage function: how much better each token was than expected, from rewards. Abstract; each function is a
 * subclass, named as in Trinity-RFT.
 *
 * Source: Trinity-RFT, trinity.algorithm.advantage_fn.
 */
export abstract class AdvantageFn {
  /** Whose names the batch's keys may have, beside Trinity's. */
  readonly backend: string;
  /** @internal */
  readonly definition: AdvantageDefinition;
  readonly #fn: NativeAdvantage;
  readonly #names: readonly string[];
  readonly #reader: AdvantageReader;
  readonly #selectKeys: readonly string[];

  /**
   * Of the package's own classes.
   * @internal
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(backend: string, definition: AdvantageDefinition) {
    const mapper = KeyMapper.get(backend);
    this.backend = backend;
    this.definition = definition;
    this.#fn = guarded(() => native.createAdvantage(definition.advantage), 'ERR_INVALID_OPTION');
    this.#names = native.advantageValueNames(this.#fn);
    this.#reader = new AdvantageReader(mapper, definition.inputs);
    this.#selectKeys = Object.freeze(
      [...definition.inputs, 'action_mask'].map((key) => mapper.fromTrinity(key)),
    );
  }

  /** The batch keys that the function reads, in the backend's naming. */
  get selectKeys(): readonly string[] {
    return this.#selectKeys;
  }

  /** Trinity-RFT's default arguments of the class (snake_case). */
  static defaultArgs(): TrinityArgs {
    return {};
  }

  /**
   * The advantages, computed on the pool's threads while the event loop goes on.
   *
   * @returns rejects with LossError: `ERR_MISSING_INPUT`, `ERR_SHAPE_MISMATCH`, `ERR_INVALID_INPUT` (a reward that is
   * not finite included), `ERR_INVALID_OPTION`, `ERR_DEVICE_UNAVAILABLE`, `ERR_OUT_OF_MEMORY`, `ERR_ABORTED`.
   */
  async compute(batch: Batch | DeviceBatch, options?: AdvantageComputeOptions): Promise<AdvantageResult> {
    return guardedAsync(async () => {
      const input = this.#reader.source(batch, options?.device);
      const call = this.#call(input.layout, options, 'all');
      await this.#run(input, call, options?.signal);
      return this.#result(input.layout, call);
    });
  }

  /** The same at once. The results are the same to the bit. */
  computeSync(batch: Batch | DeviceBatch, options?: AdvantageComputeSyncOptions): AdvantageResult {
    return guarded(() => {
      const input = this.#reader.source(batch, undefined);
      const call = this.#call(input.layout, options, 'all');
      this.#runSync(input, call);
      return this.#result(input.layout, call);
    });
  }

  /**
   * @internal The advantages in the form that a loss reads fastest.
   * @param perToken the loss must have one for each token, 0 where it is masked.
   */
  async computeFor(
    batch: Batch,
    options: AdvantageComputeOptions | undefined,
    perToken: boolean,
  ): Promise<{ computed: ComputedAdvantages; metrics: Metrics }> {
    const input = this.#reader.source(batch, undefined);
    const call = this.#call(input.layout, options, perToken ? 'tokens' : 'rows');
    await this.#run(input, call, options?.signal);
    return this.#computed(call);
  }

  /** @internal The same at once. */
  computeForSync(
    batch: Batch,
    options: AdvantageComputeSyncOptions | undefined,
    perToken: boolean,
  ): { computed: ComputedAdvantages; metrics: Metrics } {
    const input = this.#reader.source(batch, undefined);
    const call = this.#call(input.layout, options, perToken ? 'tokens' : 'rows');
    this.#runSync(input, call);
    return this.#computed(call);
  }

  /** @internal The function as a loss on a device takes it, which computes it there on the way. */
  onTheWay(
    batch: DeviceBatch,
    options: AdvantageComputeSyncOptions,
  ): {
    advantage: NativeAdvantageOnTheWay;
    metrics: () => Metrics;
    notFinite: (culprit: number) => LossError;
  } {
    this.#reader.source(batch, undefined);
    const advantage = {
      fn: this.#fn,
      seed: this.#seed(options),
      values: new Float64Array(this.#names.length),
      notFiniteRow: new Float64Array(1),
    };
    return {
      advantage,
      metrics: () => this.#metrics(advantage),
      notFinite: (culprit) => notFinite(undefined, culprit, advantage.notFiniteRow[0]!, false),
    };
  }

  async #run(
    input: AdvantageSource,
    call: NativeAdvantageCall,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const culprit = await abortable(signal, (flag) => {
      call.abort = flag;
      return native.advantages(this.#fn, input.native, call, input.device);
    });
    this.#check(input, call, culprit);
  }

  #runSync(input: AdvantageSource, call: NativeAdvantageCall): void {
    let culprit: number;
    try {
      culprit = native.advantagesSync(this.#fn, input.native, call);
    } catch (error) {
      throw fromNative(error);
    }
    this.#check(input, call, culprit);
  }

  #check(input: AdvantageSource, call: NativeAdvantageCall, culprit: number): void {
    if (culprit === 0) return;
    throw notFinite(input.host, culprit, call.notFiniteRow[0]!, this.definition.readsMasked === true);
  }

  /** @param wanted all results; or for a loss one number per token, or per row where that says it all. */
  #call(
    { rows, tokens }: Layout,
    options: AdvantageComputeSyncOptions | undefined,
    wanted: 'all' | 'tokens' | 'rows',
  ): NativeAdvantageCall {
    const { perRow, drops, returns } = this.definition;
    const seed = this.#seed(options);
    const scoresOnly = wanted === 'rows' && perRow;
    try {
      return {
        advantages: scoresOnly ? undefined : new Float32Array(tokens),
        returns: returns && wanted === 'all' ? new Float32Array(tokens) : undefined,
        scores: scoresOnly ? new Float32Array(rows) : undefined,
        copies: drops ? new Uint32Array(rows) : undefined,
        values: new Float64Array(this.#names.length),
        notFiniteRow: new Float64Array(1),
        seed,
        abort: undefined,
      };
    } catch (error) {
      throw new LossError('ERR_OUT_OF_MEMORY', `no memory for the advantages of ${tokens} tokens`, {
        cause: error,
      });
    }
  }

  #seed(options: AdvantageComputeSyncOptions | undefined): number {
    const seed = options?.seed ?? this.definition.seed ?? 0;
    if (Number.isSafeInteger(seed) && seed >= 0) return seed;
    throw new LossError(
      'ERR_INVALID_OPTION',
      `seed: expected a whole number of at least 0, not ${describeValue(seed)}`,
    );
  }

  #result({ rows }: Layout, call: NativeAdvantageCall): AdvantageResult {
    const { copies } = call;
    const advantages = call.advantages!;
    return {
      advantages,
      returns: call.returns ?? advantages,
      keptRows: copies ? Uint8Array.from(copies, (n) => (n > 0 ? 1 : 0)) : new Uint8Array(rows).fill(1),
      ...(copies && this.definition.duplicates && { copies }),
      metrics: this.#metrics(call),
    };
  }

  #computed(call: NativeAdvantageCall): { computed: ComputedAdvantages; metrics: Metrics } {
    const { scores, advantages, copies } = call;
    const computed = { column: (scores ?? advantages)!, perRow: scores !== undefined, copies };
    return { computed, metrics: this.#metrics(call) };
  }

  #metrics({ values }: { values: Float64Array }): Metrics {
    return Object.fromEntries(this.#names.map((name, i) => [name, values[i]!]));
  }
}
