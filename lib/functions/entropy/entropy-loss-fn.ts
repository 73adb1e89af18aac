// The base of all entropy losses, the function that makes a class from a declaration, and the registry.
import type { NativeFunctionSpec } from '../../../binding.js';
import type { Batch } from '../../core/batch.js';
import { BatchReader, type InputName } from '../../core/batch-reader.js';
import type { Counts } from '../../core/counts.js';
import type { FunctionDeclaration, MetricSchema } from '../../core/declaration.js';
import type { DeviceBatch } from '../../core/device-batch.js';
import { guarded } from '../../core/errors.js';
import {
  type ComputeOptions,
  type ComputeSyncOptions,
  countBatch,
  countBatchSync,
  Evaluator,
  type Result,
} from '../../core/evaluator.js';
import { KeyMapper } from '../../core/key-mapper.js';
import {
  backendOf,
  checkLossAggMode,
  defaultArgsOf,
  type LossAggMode,
  type OptionsOf,
  readOptions,
  type TrinityArgs,
} from '../../core/options.js';
import { Registry } from '../../core/registry.js';

const OPTIONS = {
  entropyCoef: {
    type: 'number',
    default: 0,
    typical: [0, 1],
    help: 'the aggregated entropy is multiplied by this',
  },
} as const;

/** Options of every entropy loss. */
export type EntropyLossOptions = OptionsOf<typeof OPTIONS> & {
  /** The framework whose key names batches may use, in addition to Trinity's; 'verl' by default. */
  backend?: string | undefined;
};

/** The declaration of an entropy loss. All have the same options and metrics. */
export interface EntropyLossDeclaration extends FunctionDeclaration {
  /** The rows that count: all, the policy's own ('usual'), or none. */
  readonly rows: 'all' | 'usual' | 'none';
}

/** Options of an entropy loss's synchronous call. */
export interface EntropyComputeSyncOptions extends ComputeSyncOptions {
  /** 'token-mean' by default. */
  lossAggMode?: LossAggMode;
}
/** Options of an entropy loss's asynchronous call. */
export interface EntropyComputeOptions extends ComputeOptions {
  /** 'token-mean' by default. */
  lossAggMode?: LossAggMode;
}

/** Metric of the entropy losses: the entropy before the coefficient, in nats. `none` has no metric. */
export type EntropyMetrics = Partial<Record<'entropy_loss', number>>;

/**
 * An entropy loss: entropyCoef times the aggregated entropy of the policy's distributions. An algorithm subtracts it
 * from its loss. Abstract; the subclasses select the rows that count.
 *
 * Reads entropy [B, T] in nats and action_mask. The gradient is taken with respect to entropy.
 *
 * Source: Trinity-RFT, trinity.algorithm.entropy_loss_fn.
 */
export abstract class EntropyLossFn {
  /** The framework whose key names batches may use, in addition to Trinity's. */
  readonly backend: string;
  /** The coefficient of the aggregated entropy. */
  readonly entropyCoef: number;
  /** @internal The rows that count. */
  readonly rows: 'all' | 'usual' | 'none';
  readonly #reader: BatchReader;
  readonly #counter: BatchReader;
  readonly #evaluators = new Map<LossAggMode, Evaluator>();

  /**
   * Used by {@link entropyLossClass}.
   * @internal
   * @throws LossError `ERR_INVALID_OPTION`, `ERR_UNKNOWN_NAME` for an unknown backend.
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

  /** Returns Trinity-RFT's default arguments (snake_case). */
  static defaultArgs(): TrinityArgs {
    return defaultArgsOf(OPTIONS);
  }

  /**
   * Computes the loss, its metric and, if asked for, its gradient with respect to entropy.
   * @returns rejects with the LossErrors of a policy loss's compute(), and for an unknown lossAggMode.
   */
  async compute(
    batch: Batch | DeviceBatch,
    options?: EntropyComputeOptions,
  ): Promise<Result<EntropyMetrics>> {
    const evaluator = this.#evaluator(options);
    return evaluator.compute(batch, options, () => ({ entropyCoef: this.entropyCoef }));
  }

  /** Synchronous version of {@link compute}. */
  computeSync(batch: Batch | DeviceBatch, options?: EntropyComputeSyncOptions): Result<EntropyMetrics> {
    const evaluator = this.#evaluator(options);
    return evaluator.computeSync(batch, options, () => ({ entropyCoef: this.entropyCoef }));
  }

  /** Counts a batch's tokens and rows. Pass the sum over all micro-batches as `normalizer` when you compute each. */
  count(batch: Batch | DeviceBatch): Promise<Counts> {
    return countBatch(this.#counter, batch);
  }

  /** Synchronous version of {@link count}. */
  countSync(batch: Batch | DeviceBatch): Counts {
    return countBatchSync(this.#counter, batch);
  }

  /** @internal Returns this loss as a term of a native function; undefined for `none`. */
  term(aggregation: LossAggMode): NativeFunctionSpec['entropy'] {
    return this.rows === 'none' ? undefined : { usualRowsOnly: this.rows === 'usual', aggregation };
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

/** The class of a declared entropy loss. */
export interface EntropyLossClass<D extends EntropyLossDeclaration> {
  /** @throws LossError `ERR_INVALID_OPTION` */
  new (options?: EntropyLossOptions): EntropyLossFn;
  /** The entropy loss's declaration. */
  readonly declaration: D;
  /** Returns Trinity-RFT's default arguments (snake_case). */
  defaultArgs(): TrinityArgs;
}

const METRICS = { entropy_loss: { unit: 'nats, before the coefficient' } } as const satisfies MetricSchema;

type EntropyMetricsOf<D> = D extends { readonly rows: 'none' } ? Record<never, never> : typeof METRICS;

/** Makes the class of a declared entropy loss. */
export function entropyLossClass<const D extends Omit<EntropyLossDeclaration, 'options' | 'metrics'>>(
  own: D,
) {
  const declaration = {
    ...own,
    options: OPTIONS,
    metrics: (own.rows === 'none' ? {} : METRICS) as EntropyMetricsOf<D>,
  };
  const made: EntropyLossClass<
    D & { readonly options: typeof OPTIONS; readonly metrics: EntropyMetricsOf<D> }
  > = class extends EntropyLossFn {
    static readonly declaration = declaration;

    constructor(options: EntropyLossOptions = {}) {
      super(new.target.name, declaration.rows, options);
    }
  };
  return made;
}

/** The entropy losses by name. */
export const ENTROPY_LOSS_FN = new Registry<EntropyLossFn>('entropy loss');
