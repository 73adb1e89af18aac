// What all policy losses have in common.
import type { NativeFunctionSpec } from '../../../binding.js';
import type { Batch, ColumnName, Layout } from '../../core/batch.js';
import { BatchReader } from '../../core/batch-reader.js';
import type { Counts, Normalizer } from '../../core/counts.js';
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
import { type LossAggMode, OptionReader, type TrinityArgs } from '../../core/options.js';

/** Options that every policy loss takes. */
export interface PolicyLossOptions {
  /** The training framework whose names the batch's keys may have, beside Trinity's; 'verl' by default. */
  backend?: string | undefined;
}

/** Options of policy losses that aggregate their tokens. */
export interface AggregatedLossOptions extends PolicyLossOptions {
  /** How tokens become one number; 'token-mean' unless the class says otherwise. */
  lossAggMode?: LossAggMode | null | undefined;
}

/** What a class tells the base of itself: its native loss and the keys that it reads, in Trinity's order. */
export interface PolicyLossDefinition {
  policyLoss: NonNullable<NativeFunctionSpec['policyLoss']>;
  keys: readonly string[];
  /** Keys that Trinity lists and that are not read all the same. */
  unread?: readonly string[];
  /** Whether a metric looks at the advantages of masked tokens too. */
  looksUnderMask?: boolean;
}

/**
 * A policy loss: ℓ of each unmasked token, aggregated to one number, with its metrics and its gradient with
 * respect to logprob. Abstract; each loss is a subclass, named as in Trinity-RFT.
 *
 * Source: Trinity-RFT, trinity.algorithm.policy_loss_fn.
 */
export abstract class PolicyLossFn<M = Metrics> {
  /** Whose names the batch's keys may have, beside Trinity's. */
  readonly backend: string;
  /** @internal */
  readonly policyLoss: PolicyLossDefinition['policyLoss'];
  /** @internal What it reads of a batch. */
  readonly reads: { columns: readonly ColumnName[]; expertMask: boolean };
  /** @internal */
  readonly looksUnderMask: boolean;
  readonly #selectKeys: readonly string[];
  readonly #evaluator: Evaluator;
  readonly #counter: BatchReader;

  /**
   * Of the package's own classes.
   * @internal
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(backend: string, definition: PolicyLossDefinition) {
    const mapper = KeyMapper.get(backend);
    const { keys } = definition;
    this.backend = backend;
    this.#selectKeys = Object.freeze(keys.map((key) => mapper.fromTrinity(key)));
    const columns: ColumnName[] = ['logprob'];
    for (const key of ['old_logprob', 'ref_logprob', 'advantages'] as const)
      if (keys.includes(key) && !definition.unread?.includes(key)) columns.push(key);
    this.policyLoss = definition.policyLoss;
    this.looksUnderMask = definition.looksUnderMask === true;
    this.reads = { columns, expertMask: keys.includes('expert_mask') };
    this.#evaluator = new Evaluator({ policyLoss: this.policyLoss }, new BatchReader(mapper, this.reads));
    this.#counter = new BatchReader(mapper, { ...this.reads, columns: [] });
  }

  /** The batch keys that the loss reads beside logprob, in the backend's naming. */
  get selectKeys(): readonly string[] {
    return this.#selectKeys;
  }

  /** Trinity-RFT's default arguments of the class (snake_case): what a registry's create() starts from. */
  static defaultArgs(): TrinityArgs {
    return {};
  }

  /**
   * The loss, its metrics and, where asked for, its gradient, computed on the pool's threads while the event
   * loop goes on. On Windows, the batch's arrays must not be transferred before the promise settles (SECURITY.md).
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
   * The same at once, on this thread and, for large batches, the pool's: for small batches and scripts.
   * The results are the same to the bit.
   */
  computeSync(batch: Batch | DeviceBatch, options?: ComputeSyncOptions): Result<M> {
    return this.#evaluator.computeSync(batch, options, (layout) =>
      this.coefficients(batch, layout, options?.normalizer),
    );
  }

  /** A batch's counts. The sum of its parts' is what `normalizer` is to be when the parts are computed. */
  count(batch: Batch | DeviceBatch): Promise<Counts> {
    return countBatch(this.#counter, batch);
  }

  /** The same at once. */
  countSync(batch: Batch | DeviceBatch): Counts {
    return countBatchSync(this.#counter, batch);
  }

  /**
   * What a call needs beside the batch's arrays.
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

/** The keys of losses on ratios and advantages. */
export const RATIO_KEYS = ['old_logprob', 'action_mask', 'advantages'] as const;

/** Opens a class's options: a reader of them, and the backend. */
export function openOptions(owner: string, options: unknown): { reader: OptionReader; backend: string } {
  const reader = new OptionReader(owner, options);
  return { reader, backend: reader.backend };
}
