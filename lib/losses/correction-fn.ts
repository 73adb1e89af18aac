// Defines the base class of all corrections, the function that makes a subclass from a declaration, and the registry of
// the subclasses.
import type { NativeBatch } from '../../binding.js';
import type { AbortSignalLike } from '../base/abortable.js';
import type { FunctionDeclaration, MetricSchema, MetricValues } from '../base/declaration.js';
import {
  backendOf,
  type CheckedOptions,
  type OptionSchema,
  readOptions,
  type TrinityArgs,
} from '../base/options.js';
import { Registry } from '../base/registry.js';
import { type Steps, takeLater, takeNow } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import { KeyMapper } from '../batch/key-mapper.js';
import { BatchReader } from '../batch/reader.js';
import type { DeviceCallOptions, Metrics } from '../call/calls.js';
import { DeviceBatch } from '../device/device-batch.js';
import { type Input, readInput, whileResident } from '../device/input.js';
import { type ProgramSymbols, programSymbolsOf } from '../program/expression.js';
import { Graph } from '../program/graph.js';
import {
  type BuildCorrection,
  type CorrectionExpressions,
  CorrectionPrograms,
} from './correction-programs.js';
import { classOf, type FunctionClass, located } from './statement.js';

/** The result of computing a correction. */
export interface CorrectionResult<M = Metrics> {
  /** Shape [B, T]: what the loss of each token is multiplied by, 0 at masked tokens; null if there are no weights. */
  weights: Float32Array | null;
  /** Shape [B, T]: 1 for unmasked tokens that are kept, and 0 for others. */
  keptMask: Uint8Array;
  /** The metrics under the names of the framework that the correction follows. */
  metrics: M;
}

/** Options of a call that computes a correction asynchronously. */
export interface CorrectionComputeOptions extends DeviceCallOptions {
  /** A signal that ends the call early when it is aborted. */
  signal?: AbortSignalLike;
}

/** Options that every correction accepts. */
export interface CorrectionFnOptions {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's; 'verl' by default. */
  backend?: string | undefined;
}

/**
 * A correction for the difference between the policy that is trained and the inference engine that sampled the tokens. It
 * computes importance weights of the tokens, and which tokens to keep. A policy loss with the option `correction` does
 * this itself.
 */
export abstract class CorrectionFn<M = Metrics> {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's. */
  readonly backend: string;
  /** @internal Returns the correction's expressions. */
  readonly build: BuildCorrection;
  readonly #name: string;
  readonly #mapper: KeyMapper;
  #compiled: CorrectionPrograms | undefined;

  /**
   * Called by the classes that {@link correction} makes.
   * @internal
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(backend: string, name: string, build: BuildCorrection) {
    this.backend = backend;
    this.build = build;
    this.#name = name;
    this.#mapper = KeyMapper.get(backend);
    // Checks the options.
    build(programSymbolsOf(new Graph()));
  }

  // They are compiled when they are first needed. A loss with this correction does not need them: it compiles its own.
  get #programs(): CorrectionPrograms {
    this.#compiled ??= new CorrectionPrograms(this.#name, [this.build], this.#mapper, true);
    return this.#compiled;
  }

  /** The batch keys that the correction reads, under the names that the backend uses. */
  get selectKeys(): readonly string[] {
    return [...this.#programs.columns, 'action_mask'].map((key) => this.#mapper.fromTrinity(key));
  }

  /** Returns the default arguments of the class, with their names in snake_case. */
  static defaultArgs(): TrinityArgs {
    return {};
  }

  /**
   * Computes the weights, the tokens that are kept, and the metrics. The work runs on a pool of threads, without blocking
   * the event loop. Do not change the batch's arrays before the promise settles.
   *
   * @returns the result. The promise rejects with the same LossErrors as compute() of a policy loss.
   */
  compute(batch: Batch | DeviceBatch, options?: CorrectionComputeOptions): Promise<CorrectionResult<M>> {
    return takeLater(this.#compute(batch, options), options);
  }

  /** Synchronous version of {@link compute}. Its results are bitwise equal to those of compute(). */
  computeSync(batch: Batch | DeviceBatch): CorrectionResult<M> {
    return takeNow(this.#compute(batch, undefined));
  }

  *#compute(
    batch: Batch | DeviceBatch,
    options: CorrectionComputeOptions | undefined,
  ): Steps<CorrectionResult<M>> {
    const { device, stream } = options ?? {};
    const input = withLogprob(yield* readInput(this.#reader(batch), batch, device));
    const { columns, metrics } = yield* whileResident(input, this.#programs.apply(input, stream));
    const { mask, weights } = columns;
    return { weights: weights ?? null, keptMask: mask!, metrics: metrics as M };
  }

  // Native code needs the log-probabilities of every batch. On the host, another column takes their place, or zeros if the
  // correction reads no column.
  #reader(batch: Batch | DeviceBatch): BatchReader {
    const { columns, rowColumns } = this.#programs;
    const all = batch instanceof DeviceBatch ? new Set(['logprob', ...columns] as const) : columns;
    return new BatchReader(this.#mapper, {
      inputs: [...all, ...rowColumns, 'action_mask'],
      perToken: columns,
    });
  }
}

function withLogprob(input: Input): Input {
  const { data, dtypes } = input.native as NativeBatch;
  const first = data?.findIndex((column) => column !== undefined) ?? 0;
  if (first > 0) [data[0], dtypes[0]] = [data[first], dtypes[first]!];
  if (first < 0) data[0] = new Float32Array(input.layout.tokens);
  return input;
}

/** The statement of a correction. */
interface Statement<N extends string, O, M>
  extends Omit<FunctionDeclaration, 'name' | 'options' | 'metrics'> {
  readonly name: N;
  readonly options: O;
  readonly metrics: M;
  /** Returns the correction's expressions. */
  readonly formula: (symbols: ProgramSymbols, options: CheckedOptions<O>) => CorrectionExpressions;
}

/** The class of a correction with the declaration D. */
export type CorrectionClass<D extends Pick<FunctionDeclaration, 'name' | 'options' | 'metrics'>> =
  FunctionClass<
    CorrectionFn<MetricValues<D['metrics']>>,
    FunctionDeclaration,
    D['name'],
    D['options'],
    CorrectionFnOptions
  >;

/** Makes a class of corrections: `export class X extends correction({ … }) {}`. */
export function correction<
  const N extends string,
  const O extends OptionSchema,
  const M extends MetricSchema,
>({ formula, ...given }: Statement<N, O, M>): CorrectionClass<{ name: N; options: O; metrics: M }> {
  return classOf(CorrectionFn, given, (owner, options) => {
    const checked = readOptions<O>(owner, given.options, options);
    return [backendOf(options), given.name, (symbols) => located(owner, () => formula(symbols, checked))];
  }) as never;
}

/** The registry of the corrections, by name. */
export const CORRECTION_FN = new Registry<CorrectionFn<Partial<Record<string, number>>>>('correction');
