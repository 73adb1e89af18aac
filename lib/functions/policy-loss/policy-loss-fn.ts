// The base of all policy losses, the function that makes a class from a declaration, and the registry.
import type { NativeFunctionSpec } from '../../../binding.js';
import type { Batch } from '../../core/batch.js';
import { BatchReader, type ColumnName, type InputName } from '../../core/batch-reader.js';
import type { Counts, Normalizer } from '../../core/counts.js';
import type { FunctionDeclaration, MetricsOf } from '../../core/declaration.js';
import type { DeviceBatch } from '../../core/device-batch.js';
import {
  type Coefficients,
  type ComputeOptions,
  type ComputeSyncOptions,
  countBatch,
  countBatchSync,
  Evaluator,
  type Metrics,
  type Result,
} from '../../core/evaluator.js';
import { KeyMapper } from '../../core/key-mapper.js';
import type { Layout } from '../../core/layout.js';
import {
  backendOf,
  type CheckedOptions,
  defaultArgsOf,
  type LossAggMode,
  nativeOptions,
  type OptionsOf,
  readOptions,
  type TrinityArgs,
} from '../../core/options.js';
import { Registry } from '../../core/registry.js';

/** Options that every policy loss accepts. */
export interface PolicyLossOptions {
  /** The training framework whose key names batches may use, in addition to Trinity's; 'verl' by default. */
  backend?: string | undefined;
}

/** Options of policy losses that aggregate their tokens. */
export interface AggregatedLossOptions extends PolicyLossOptions {
  /** How the loss of all tokens becomes one number; 'token-mean' unless the class says otherwise. */
  lossAggMode?: LossAggMode | null | undefined;
}

type NativePolicyLoss = NonNullable<NativeFunctionSpec['policyLoss']>;

/** The declaration of a policy loss. */
export interface PolicyLossDeclaration extends FunctionDeclaration {
  /** Whether even rows hold chosen answers and odd rows the rejected ones. */
  readonly pairs?: true;
}

/** The properties of a policy loss that depend on its options, and so cannot be declared. */
export interface PolicyLossVariant extends Partial<NativePolicyLoss> {
  /** Keys in `reads` that are not read with these options. */
  readonly unread?: readonly string[];
  /** Whether a metric counts the advantages of masked tokens too. */
  readonly readsMaskedAdvantages?: boolean;
}

/**
 * A policy loss: ℓ of each unmasked token, aggregated to one number, with its metrics and its gradient with respect to
 * logprob. Abstract; each loss is a subclass named as in Trinity-RFT.
 *
 * Source: Trinity-RFT, trinity.algorithm.policy_loss_fn.
 */
export abstract class PolicyLossFn<M = Metrics> {
  /** The framework whose key names batches may use, in addition to Trinity's. */
  readonly backend: string;
  /** @internal The native loss with its options and aggregation. */
  readonly policyLoss: NativePolicyLoss;
  /** @internal The parts of a batch that the loss reads. */
  readonly reads: { columns: readonly ColumnName[]; expertMask: boolean };
  /** @internal Whether a metric counts the advantages of masked tokens too. */
  readonly readsMaskedAdvantages: boolean;
  readonly #selectKeys: readonly string[];
  readonly #evaluator: Evaluator;
  readonly #counter: BatchReader;

  /**
   * Used by {@link policyLossClass}.
   * @internal
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(
    backend: string,
    declaration: PolicyLossDeclaration,
    options: Readonly<Record<string, unknown>>,
    { unread, readsMaskedAdvantages, ...native }: PolicyLossVariant,
  ) {
    const mapper = KeyMapper.get(backend);
    const keys = declaration.reads;
    this.backend = backend;
    this.#selectKeys = Object.freeze(keys.map((key) => mapper.fromTrinity(key)));
    const columns: ColumnName[] = ['logprob'];
    for (const key of ['old_logprob', 'ref_logprob', 'advantages'] as const)
      if (keys.includes(key) && !unread?.includes(key)) columns.push(key);
    this.policyLoss = {
      name: declaration.name,
      options: nativeOptions(declaration.options, options),
      aggregation: (options.lossAggMode as LossAggMode | undefined) ?? 'token-mean',
      ...native,
    };
    this.readsMaskedAdvantages = readsMaskedAdvantages === true;
    this.reads = { columns, expertMask: keys.includes('expert_mask') };
    const masks: InputName[] = this.reads.expertMask ? ['action_mask', 'expert_mask'] : ['action_mask'];
    const reader = new BatchReader(mapper, { inputs: [...columns, ...masks] });
    this.#evaluator = new Evaluator({ policyLoss: this.policyLoss }, reader);
    this.#counter = new BatchReader(mapper, { inputs: masks });
  }

  /** The batch keys that the loss reads in addition to logprob, in the backend's naming. */
  get selectKeys(): readonly string[] {
    return this.#selectKeys;
  }

  /** Returns Trinity-RFT's default arguments of the class (snake_case); a registry's create() starts from them. */
  static defaultArgs(): TrinityArgs {
    return {};
  }

  /**
   * Computes the loss, its metrics and, if asked for, its gradient on the pool's threads, without blocking the event
   * loop. On Windows, do not transfer the batch's arrays before the promise settles (SECURITY.md).
   *
   * @returns rejects with LossError: `ERR_MISSING_INPUT`, `ERR_SHAPE_MISMATCH`, `ERR_INVALID_INPUT`,
   * `ERR_DEVICE_UNAVAILABLE`, `ERR_OUT_OF_MEMORY`, `ERR_ABORTED`.
   */
  compute(batch: Batch | DeviceBatch, options?: ComputeOptions): Promise<Result<M>> {
    return this.#evaluator.compute(batch, options, (layout) =>
      this.coefficients(batch, layout, options?.normalizer),
    );
  }

  /**
   * Synchronous version of {@link compute}, for small batches and scripts. It blocks this thread; large batches also
   * use the pool. The results have the same bits.
   */
  computeSync(batch: Batch | DeviceBatch, options?: ComputeSyncOptions): Result<M> {
    return this.#evaluator.computeSync(batch, options, (layout) =>
      this.coefficients(batch, layout, options?.normalizer),
    );
  }

  /** Counts a batch's tokens and rows. Pass the sum over all micro-batches as `normalizer` when you compute each. */
  count(batch: Batch | DeviceBatch): Promise<Counts> {
    return countBatch(this.#counter, batch);
  }

  /** Synchronous version of {@link count}. */
  countSync(batch: Batch | DeviceBatch): Counts {
    return countBatchSync(this.#counter, batch);
  }

  /**
   * Returns the numbers that a call needs in addition to the batch's arrays.
   * @internal
   */
  coefficients(
    _batch: Batch | DeviceBatch,
    _layout: Layout,
    _normalizer: Normalizer | undefined,
  ): Coefficients {
    return NO_COEFFICIENTS;
  }
}

const NO_COEFFICIENTS: Coefficients = Object.freeze({});

/** The class of a declared policy loss. */
export interface PolicyLossClass<D extends PolicyLossDeclaration> {
  /** @throws LossError `ERR_INVALID_OPTION`, `ERR_UNKNOWN_NAME` for an unknown backend. */
  new (options?: OptionsOf<D['options']> & PolicyLossOptions): PolicyLossFn<MetricsOf<D['metrics']>>;
  /** The loss's declaration. */
  readonly declaration: D;
  /** Returns Trinity-RFT's default arguments (snake_case). */
  defaultArgs(): TrinityArgs;
}

/**
 * Makes the class of a declared policy loss.
 * @param variant chooses the native loss for the checked options. By default it is the native loss with the declared
 * name, all options, and the aggregation `lossAggMode`.
 */
export function policyLossClass<const D extends PolicyLossDeclaration>(
  declaration: D,
  variant: (options: CheckedOptions<D['options']>) => PolicyLossVariant = () => ({}),
): PolicyLossClass<D> {
  return class extends PolicyLossFn<MetricsOf<D['metrics']>> {
    static readonly declaration = declaration;

    constructor(options: OptionsOf<D['options']> & PolicyLossOptions = {}) {
      const checked = readOptions<D['options']>(new.target.name, declaration.options, options);
      super(backendOf(options), declaration, checked, variant(checked));
    }

    static override defaultArgs(): TrinityArgs {
      return defaultArgsOf(declaration.options);
    }
  };
}

/** The keys that a loss reads if it depends on ratios and advantages. */
export const RATIO_KEYS = ['old_logprob', 'action_mask', 'advantages'] as const;

/** The policy losses by name. */
export const POLICY_LOSS_FN = new Registry<PolicyLossFn<Partial<Record<string, number>>>>('policy loss');
