// What all entropy losses have in common.

import type { NativeFunctionSpec } from '../../../binding.js';
import type { Batch } from '../../core/batch.js';
import { BatchReader } from '../../core/batch-reader.js';
import type { Counts } from '../../core/counts.js';
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
import { checkLossAggMode, type LossAggMode, OptionReader, type TrinityArgs } from '../../core/options.js';

/** Options of every entropy loss. */
export interface EntropyLossOptions {
  /** What the aggregated entropy is multiplied by; 0 by default. */
  entropyCoef?: number | null | undefined;
  /** Whose names the batch's keys may have, beside Trinity's; 'verl' by default. */
  backend?: string | undefined;
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

/** Metric of the entropy losses: before the coefficient, in nats. None for `none`. */
export type EntropyMetrics = Partial<Record<'entropy_loss', number>>;

/**
 * An entropy loss: entropyCoef times the aggregated entropy of the policy's distributions; an algorithm subtracts
 * it from its loss. Abstract; the subclasses say which rows count.
 *
 * Batches: entropy [B, T] in nats, action_mask. The gradient is taken with respect to entropy.
 *
 * Source: Trinity-RFT, trinity.algorithm.entropy_loss_fn.
 */
export abstract class EntropyLossFn {
  /** Whose names the batch's keys may have, beside Trinity's. */
  readonly backend: string;
  /** What the aggregated entropy is multiplied by. */
  readonly entropyCoef: number;
  /** @internal Which rows count. */
  readonly rows: 'all' | 'usual' | 'none';
  readonly #reader: BatchReader;
  readonly #counter: BatchReader;
  readonly #evaluators = new Map<LossAggMode, Evaluator>();

  /**
   * @param rows which rows count: all, those that are not an expert's, or none.
   * @throws LossError `ERR_INVALID_OPTION`, `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(owner: string, rows: 'all' | 'usual' | 'none', options: EntropyLossOptions = {}) {
    const reader = new OptionReader(owner, options);
    this.entropyCoef = reader.number('entropyCoef', 0);
    reader.end();
    this.backend = reader.backend;
    this.rows = rows;
    const mapper = KeyMapper.get(this.backend);
    const expertMask = rows === 'usual';
    this.#reader = new BatchReader(mapper, { columns: ['entropy'], expertMask, perToken: ['entropy'] });
    this.#counter = new BatchReader(mapper, { columns: [], expertMask });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static defaultArgs(): TrinityArgs {
    return { entropy_coef: 0.0 };
  }

  /**
   * The loss, its metric and, where asked for, its gradient with respect to entropy.
   * @returns rejects with LossError as compute() of a policy loss does, and for an unknown lossAggMode.
   */
  async compute(
    batch: Batch | DeviceBatch,
    options?: EntropyComputeOptions,
  ): Promise<Result<EntropyMetrics>> {
    const evaluator = this.#evaluator(options);
    return evaluator.compute(batch, options, () => ({ entropyCoef: this.entropyCoef }));
  }

  /** The same at once. */
  computeSync(batch: Batch | DeviceBatch, options?: EntropyComputeSyncOptions): Result<EntropyMetrics> {
    const evaluator = this.#evaluator(options);
    return evaluator.computeSync(batch, options, () => ({ entropyCoef: this.entropyCoef }));
  }

  /** A batch's counts. The sum of its parts' is what `normalizer` is to be when the parts are computed. */
  count(batch: Batch | DeviceBatch): Promise<Counts> {
    return countBatch(this.#counter, batch);
  }

  /** The same at once. */
  countSync(batch: Batch | DeviceBatch): Counts {
    return countBatchSync(this.#counter, batch);
  }

  /** @internal Its part of a native function; undefined: none. */
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
