// The entropy losses: their base class, the function that makes a subclass from a statement, the registry, and the table.
import type { NativeFunctionSpec } from '../../binding.js';
import type { FunctionDeclaration, MetricSchema } from '../base/declaration.js';
import { guarded } from '../base/errors.js';
import { checkLossAggMode, number } from '../base/option.js';
import {
  backendOf,
  defaultArgsOf,
  type LossAggMode,
  type PassedOptions,
  readOptions,
  type TrinityArgs,
} from '../base/options.js';
import { Registry } from '../base/registry.js';
import { type Steps, takeLater, takeNow } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import type { InputName } from '../batch/columns.js';
import type { Counts, Normalizer } from '../batch/counts.js';
import { KeyMapper } from '../batch/key-mapper.js';
import { BatchReader } from '../batch/reader.js';
import type {
  ComputeOptions,
  ComputeSyncOptions,
  Requested,
  Requesting,
  Requests,
  Result,
} from '../call/calls.js';
import { countBatch } from '../call/count-batch.js';
import { Evaluator } from '../call/evaluator.js';
import type { DeviceBatch } from '../device/device-batch.js';
import { classOf, type FunctionClass } from './statement.js';

/** The options that entropy losses declare. */
export const OPTIONS = {
  entropyCoef: number({ default: 0, typical: [0, 1], help: 'the aggregated entropy is multiplied by this' }),
};

/** The options that every entropy loss accepts. */
export type EntropyLossOptions = PassedOptions<typeof OPTIONS> & {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's; 'verl' by default. */
  backend?: string | undefined;
};

/** The declaration of an entropy loss, as data. All entropy losses have the same options. */
export interface EntropyLossDeclaration extends FunctionDeclaration {
  /** Which rows count: 'all' rows, only the 'usual' rows (which the policy itself sampled), or 'none'. */
  readonly rows: 'all' | 'usual' | 'none';
}

/** Options of {@link EntropyLossFn.computeSync}. */
export interface EntropyComputeSyncOptions extends ComputeSyncOptions {
  /** How the entropies of the tokens become one number; 'token-mean' by default. */
  lossAggMode?: LossAggMode;
}
/** Options of {@link EntropyLossFn.compute}. */
export interface EntropyComputeOptions extends ComputeOptions {
  /** How the entropies of the tokens become one number; 'token-mean' by default. */
  lossAggMode?: LossAggMode;
}

/**
 * The metric of the entropy losses: `entropy_loss` is the aggregated entropy in nats, before it is multiplied by the
 * coefficient. The entropy loss `none` has no metric.
 */
export type EntropyMetrics = Partial<Record<'entropy_loss', number>>;

/**
 * An entropy loss: entropyCoef times the aggregated entropy of the policy's distributions. An algorithm subtracts it
 * from its loss. The class is abstract; its subclasses differ in the rows that count.
 *
 * An entropy loss reads `entropy`, which holds one value in nats per token and has the shape [B, T] (rows × tokens). It
 * also reads `action_mask` and, in `mix`, `expert_mask`. The gradient is taken with respect to `entropy`.
 *
 * Source: Trinity-RFT, trinity.algorithm.entropy_loss_fn.
 */
export abstract class EntropyLossFn {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's. */
  readonly backend: string;
  /** The coefficient by which the aggregated entropy is multiplied. */
  readonly entropyCoef: number;
  /** @internal Which rows count; see EntropyLossDeclaration. */
  readonly rows: 'all' | 'usual' | 'none';
  readonly #reader: BatchReader;
  readonly #counter: BatchReader;
  readonly #evaluators = new Map<LossAggMode, Evaluator>();

  /**
   * Called by the classes that {@link entropyLoss} makes.
   * @internal
   * @throws LossError `ERR_INVALID_OPTION` for an invalid option, `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(owner: string, rows: EntropyLossDeclaration['rows'], options: EntropyLossOptions) {
    this.entropyCoef = readOptions(owner, OPTIONS, options).entropyCoef;
    this.backend = backendOf(options);
    this.rows = rows;
    const mapper = KeyMapper.get(this.backend);
    const masks: InputName[] = rows === 'usual' ? ['action_mask', 'expert_mask'] : ['action_mask'];
    this.#reader = new BatchReader(mapper, { inputs: ['entropy', ...masks], perToken: ['entropy'] });
    this.#counter = new BatchReader(mapper, { inputs: masks });
  }

  /** Returns Trinity-RFT's default arguments, with their names in snake_case. */
  static defaultArgs(): TrinityArgs {
    return defaultArgsOf(OPTIONS);
  }

  /**
   * Computes the loss, its metric and, if asked for, its gradient with respect to entropy.
   * @returns the result. The promise rejects with the LossErrors that PolicyLossFn.compute() lists, or with
   * `ERR_INVALID_OPTION` for an unknown lossAggMode.
   */
  compute<R extends Requests>(
    batch: Batch | DeviceBatch,
    options: Requesting<R, EntropyComputeOptions>,
  ): Promise<Result<EntropyMetrics> & Requested<R>>;
  /**
   * Computes the loss and its metrics. If the types of the options leave open whether a gradient is requested, it is
   * optional in the type of the result.
   */
  compute(batch: Batch | DeviceBatch, options?: EntropyComputeOptions): Promise<Result<EntropyMetrics>>;
  async compute(
    batch: Batch | DeviceBatch,
    options?: EntropyComputeOptions,
  ): Promise<Result<EntropyMetrics>> {
    return takeLater(this.#compute(batch, options), options);
  }

  /** Synchronous version of {@link compute}. */
  computeSync<R extends Requests>(
    batch: Batch | DeviceBatch,
    options: Requesting<R, EntropyComputeSyncOptions>,
  ): Result<EntropyMetrics> & Requested<R>;
  /** Synchronous version of {@link compute}. */
  computeSync(batch: Batch | DeviceBatch, options?: EntropyComputeSyncOptions): Result<EntropyMetrics>;
  computeSync(batch: Batch | DeviceBatch, options?: EntropyComputeSyncOptions): Result<EntropyMetrics> {
    return takeNow(this.#compute(batch, options));
  }

  /**
   * Counts a batch's tokens and rows. To compute a batch in several parts, count each part, add up the counts with
   * sumCounts(), and pass the sum as `normalizer` to the computation of every part.
   */
  count(batch: Batch | DeviceBatch): Promise<Counts> {
    return takeLater(countBatch(this.#counter, batch));
  }

  /** Synchronous version of {@link count}. */
  countSync(batch: Batch | DeviceBatch): Counts {
    return takeNow(countBatch(this.#counter, batch));
  }

  /**
   * Computes the loss and its metric for a whole batch from its parts. They have the same bits however the batch is
   * divided, and in whatever order the parts are given.
   * @param parts the property `part` of each part's result. compute() returns it if the option `part` is true.
   * @param normalizer the counts of the whole batch, as for compute().
   * @throws LossError `ERR_INVALID_INPUT`, `ERR_INVALID_OPTION`
   */
  merge(parts: readonly ArrayLike<number>[], normalizer: Normalizer): Result<EntropyMetrics> {
    return this.#evaluator(undefined).merge(parts, normalizer);
  }

  /** @internal Returns this loss's part of a native function's specification; undefined for the loss `none`. */
  term(aggregation: LossAggMode): NativeFunctionSpec['entropy'] {
    return this.rows === 'none' ? undefined : { usualRowsOnly: this.rows === 'usual', aggregation };
  }

  *#compute(
    batch: Batch | DeviceBatch,
    options: EntropyComputeSyncOptions | undefined,
  ): Steps<Result<EntropyMetrics>> {
    const evaluator = this.#evaluator(options);
    return yield* evaluator.compute(batch, options, () => ({ entropyCoef: this.entropyCoef }));
  }

  #evaluator(options: EntropyComputeSyncOptions | undefined): Evaluator {
    const lossAggMode = guarded(() => options?.lossAggMode, 'ERR_INVALID_OPTION');
    const aggregation = checkLossAggMode(this.constructor.name, lossAggMode);
    let evaluator = this.#evaluators.get(aggregation);
    if (!evaluator) {
      const entropy = this.term(aggregation);
      evaluator = new Evaluator(entropy ? { entropy } : {}, this.#reader, 'gradEntropy');
      this.#evaluators.set(aggregation, evaluator);
    }
    return evaluator;
  }
}

const METRICS: MetricSchema = { entropy_loss: { unit: 'nats, before the coefficient' } };

/** The statement of an entropy loss. All entropy losses have the same options and metrics. */
interface Statement<N extends string> extends Omit<EntropyLossDeclaration, 'name' | 'options' | 'metrics'> {
  readonly name: N;
}

/** Makes a class of entropy losses: `export class X extends entropyLoss({ … }) {}`. */
export function entropyLoss<const N extends string>(
  statement: Statement<N>,
): FunctionClass<EntropyLossFn, EntropyLossDeclaration, N, typeof OPTIONS, { backend?: string | undefined }> {
  const metrics = statement.rows === 'none' ? {} : METRICS;
  const declaration = { ...statement, options: OPTIONS, metrics };
  return classOf(EntropyLossFn, declaration, (owner, options) => [owner, declaration.rows, options]) as never;
}

/** The registry of the entropy losses, by name. */
export const ENTROPY_LOSS_FN = new Registry<EntropyLossFn>('entropy loss');

/** The entropy loss `default`: the entropy of the unmasked tokens of all rows, including experts' rows. */
export class DefaultEntropyLossFn extends entropyLoss({
  name: 'default',
  summary: 'the entropy of all unmasked tokens',
  source: ['Trinity-RFT'],
  reads: ['entropy', 'action_mask'],
  rows: 'all',
  numerics: { range: 'any finite entropies', outside: 'NaN and Infinity pass through' },
}) {}

/** The entropy loss `mix`: the entropy of the rows that the policy itself sampled, without experts' rows. */
export class MixEntropyLossFn extends entropyLoss({
  name: 'mix',
  summary: "the entropy of the policy's own rows, without experts' rows",
  source: ['Trinity-RFT'],
  reads: ['entropy', 'action_mask', 'expert_mask'],
  rows: 'usual',
  numerics: { range: 'any finite entropies', outside: 'NaN and Infinity pass through' },
}) {}

/** The entropy loss `none`. It computes nothing: its loss and its gradient are 0. */
export class DummyEntropyLossFn extends entropyLoss({
  name: 'none',
  summary: 'no entropy: loss and gradient are 0',
  source: ['Trinity-RFT'],
  reads: ['entropy', 'action_mask'],
  rows: 'none',
  numerics: { range: 'anything', outside: 'the values do not matter' },
}) {}
