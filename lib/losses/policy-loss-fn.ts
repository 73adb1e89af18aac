// The base class of all policy losses, and their registry. policy-loss.ts makes the subclasses.
import type { NativeFunctionSpec, NativeLossSpec, NativeProgramLossSpec } from '../../binding.js';
import { type LossAggMode, nativeOptions, type TrinityArgs } from '../base/options.js';
import { Registry } from '../base/registry.js';
import { type Steps, takeLater, takeNow } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import {
  COLUMNS,
  type ColumnName,
  type InputName,
  type LossInput,
  ROW_DATA,
  type RowDataName,
} from '../batch/columns.js';
import type { Counts, Normalizer } from '../batch/counts.js';
import { KeyMapper } from '../batch/key-mapper.js';
import { BatchReader, type Reads } from '../batch/reader.js';
import type {
  CallOptions,
  LossComputeOptions,
  LossComputeSyncOptions,
  LossResult,
  Metrics,
  Requested,
  Requesting,
  Requests,
  Result,
} from '../call/calls.js';
import { countBatch } from '../call/count-batch.js';
import { type Coefficients, Evaluator, type ReadLoss } from '../call/evaluator.js';
import type { Forms } from '../call/forms.js';
import { gradientsOf, withHeldRequests } from '../call/gradients.js';
import type { DeviceBatch } from '../device/device-batch.js';
import { heldInput, type Input } from '../device/input.js';
import {
  type FromHiddenOptions,
  type FromHiddenSyncOptions,
  fromHidden,
  fromHiddenSync,
  type HiddenBatch,
  type HiddenRequests,
  type HiddenResult,
  type RequestedHidden,
} from '../logits/from-hidden.js';
import {
  type FromLogitsOptions,
  type FromLogitsSyncOptions,
  fromLogits,
  fromLogitsSync,
  type LogitsBatch,
  type LogitsBatchSync,
  type LogitsRequests,
  type LogitsResult,
  type LossOfLogits,
  type RequestedLogits,
} from '../logits/from-logits.js';
import type { CorrectionPrograms } from './correction-programs.js';
import {
  keysOfProgram,
  type PolicyLossDeclaration,
  type PolicyLossVariant,
  type Prepare,
} from './policy-loss-declaration.js';

/**
 * A policy loss. It computes a loss ℓ for each unmasked token and aggregates these to one number. It also computes
 * metrics and the gradient with respect to logprob. The class is abstract; each loss is a subclass named as in
 * Trinity-RFT.
 *
 * Source: Trinity-RFT, trinity.algorithm.policy_loss_fn.
 */
export abstract class PolicyLossFn<M = Metrics> {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's. */
  readonly backend: string;
  /** @internal The loss as native code takes it: one of the native module, or a program. */
  readonly policyLoss: NativeLossSpec | NativeProgramLossSpec;
  /** @internal The checked options as native code takes them, under snake_case names. */
  readonly nativeOptions: Readonly<Record<string, number | boolean | string>>;
  /**
   * @internal The columns and the data of rows that the loss reads from a batch, those among them that the batch may lack,
   * and whether the loss reads expert_mask and step.
   */
  readonly reads: {
    columns: readonly ColumnName[];
    optional: readonly LossInput[];
    rowColumns: readonly RowDataName[];
    expertMask: boolean;
    step: boolean;
    /** What happens if the batch has token_weights: they multiply the losses of the tokens, or they are refused. */
    weights: Pick<Reads, 'optional' | 'refused'>;
    /** The number of rows that belong together, if the loss reads pair_ids and a batch has none. */
    rowsOfPair: 2 | 3 | undefined;
  };
  /** @internal Whether one of the loss's metrics also reads the advantages of masked tokens. */
  readonly readsMaskedAdvantages: boolean;
  /** @internal Whether the loss compares pairs of rows, which must stay in the same part of a batch. */
  readonly readsPairs: boolean;
  /** @internal Whether the gradient treats a part of the loss that depends on logprob as constant. */
  readonly stopsGradient: boolean;
  /** @internal Whether the loss reduces over all rows, so that a batch cannot be computed in parts. */
  readonly readsWholeBatch: boolean;
  /** @internal Whether the loss depends on the length of the rows, so that more padding changes it. */
  readonly readsRowLength: boolean;
  /** @internal Whether the loss has a gradient with respect to the entropies. */
  readonly dependsOnEntropy: boolean;
  readonly #forms: PolicyLossVariant['forms'];
  readonly #multiplied: PolicyLossVariant['multiplied'];
  readonly #mapper: KeyMapper;
  readonly #prepare: Prepare | undefined;
  readonly #frozen: (column: ColumnName) => PolicyLossFn<object> | undefined;
  readonly #selectKeys: readonly string[];
  /** @internal The correction that the options `correction` and `masks` ask for. */
  readonly correction: CorrectionPrograms | undefined;
  readonly #evaluator: Evaluator;
  readonly #counter: BatchReader;

  /**
   * Called by the classes of the statements in this folder.
   * @internal
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(
    backend: string,
    declaration: PolicyLossDeclaration,
    options: Readonly<Record<string, unknown>>,
    variant: PolicyLossVariant,
    correction: CorrectionPrograms | undefined,
  ) {
    const { unread, readsMaskedAdvantages, stopsGradient, program, ...others } = variant;
    const { readsPairIds, rowsOfPair, prepared, preparesWhole, ...further } = others;
    const { forms, frozen, multiplied, ...native } = further;
    const mapper = KeyMapper.get(backend);
    const isCorrected = correction?.hasWeights === true;
    // The weights of a correction take the place of those of the batch, which are factors of them.
    const ownKeys = (program ? keysOfProgram(program) : declaration.reads).filter(
      (key) => !(isCorrected && key === 'token_weights'),
    );
    const required = [...new Set([...ownKeys, ...(correction?.keys ?? [])])];
    const optional = forms?.optional.filter((name) => !required.includes(name)) ?? [];
    const keys = [...optional, ...required];
    this.backend = backend;
    // The columns that a loss prepares itself stay unseen.
    const seen = prepared ? [...new Set([...declaration.reads, ...(correction?.keys ?? [])])] : keys;
    this.#selectKeys = Object.freeze(seen.map((key) => mapper.fromTrinity(key)));
    const columns = COLUMNS.filter(
      (name) =>
        name === 'logprob' ||
        correction?.columns.includes(name) ||
        (keys.includes(name) && !unread?.includes(name)),
    );
    this.nativeOptions = native.options ?? nativeOptions(declaration.options, options);
    const aggregation = (options.lossAggMode as LossAggMode | undefined) ?? 'token-mean';
    this.policyLoss = program
      ? { program, metrics: program.metrics, aggregation: native.aggregation ?? aggregation }
      : {
          name: declaration.name,
          aggregation,
          ...native,
          options: this.nativeOptions,
          weighted: isCorrected,
        };
    this.readsRowLength =
      program?.readsRowLength === true ||
      [this.policyLoss.aggregation, native.expertAggregation].includes('seq-mean-token-sum-norm');
    this.readsMaskedAdvantages = readsMaskedAdvantages === true;
    this.stopsGradient =
      (stopsGradient ?? declaration.stopsGradient === true) || correction?.weighsByLogprob === true;
    this.#frozen = (column) => {
      const variant = frozen?.(column);
      const further = { multiplied: multiplied && (() => multiplied().frozen!(column)) };
      return (
        variant && new FrozenLossFn(backend, declaration, options, { ...variant, ...further }, undefined)
      );
    };
    // Three rows that belong together are no pair. Such a loss reads the whole batch, which has no parts.
    this.readsPairs = (declaration.pairs === true || program?.readsPairs === true) && rowsOfPair !== 3;
    this.correction = correction;
    const readRows: readonly string[] = [
      ...(program?.rowColumns ?? []),
      ...(correction?.rowColumns ?? []),
      ...(readsPairIds ? ['pair_ids'] : []),
    ];
    const rowColumns = ROW_DATA.filter((name) => [...readRows, ...optional].includes(name));
    this.reads = {
      columns,
      optional,
      rowColumns,
      expertMask: keys.includes('expert_mask'),
      step: keys.includes('step'),
      weights: weightsOf(declaration.name, columns, isCorrected || multiplied !== undefined),
      rowsOfPair,
    };
    const masks: InputName[] = this.reads.expertMask ? ['action_mask', 'expert_mask'] : ['action_mask'];
    const step: InputName[] = this.reads.step ? ['step'] : [];
    const needed = [...columns, ...rowColumns].filter((name) => !isIn(optional, name));
    const reader = new BatchReader(mapper, {
      inputs: [...needed, ...masks, ...step],
      ...this.reads.weights,
      optional: [...optional, ...(this.reads.weights.optional ?? [])],
      rowsOfPair,
    });
    this.#mapper = mapper;
    this.#prepare = prepared;
    this.dependsOnEntropy =
      program?.dependsOnEntropy === true && columns.includes('entropy') && !columns.includes('entropy_other');
    this.#forms = forms;
    this.#multiplied = multiplied;
    this.#evaluator = new Evaluator(this.withTerms({}), reader, 'grad', correction);
    this.readsWholeBatch = this.#evaluator.readsWholeBatch || preparesWhole === true;
    // A correction decides which tokens count, so counting also reads what its mask is computed from.
    this.#counter = new BatchReader(mapper, { inputs: [...(correction?.maskColumns ?? []), ...masks] });
    // Other functions of the package rely on these properties of the losses that callers pass to them.
    for (const name of Object.keys(this))
      Object.defineProperty(this, name, { writable: false, configurable: false });
  }

  /**
   * The batch keys that the loss reads in addition to logprob, under the names that the backend uses. The loss can do
   * without the mask and some others; its class says which.
   */
  get selectKeys(): readonly string[] {
    return this.#selectKeys;
  }

  /**
   * Returns Trinity-RFT's default arguments for the class, with their names in snake_case. A registry's create() uses
   * them for the arguments that it is not given.
   */
  static defaultArgs(): TrinityArgs {
    return {};
  }

  /**
   * Computes the loss, its metrics and, if asked for, its gradients. The work runs on a pool of threads, without
   * blocking the event loop. Only batches of at most 8,192 tokens in at most 32 rows are computed at once on the calling
   * thread, one in each turn of the event loop. Columns that native code cannot read in place are converted in slices
   * first. Do not change, transfer or resize the batch's arrays before the promise settles; SECURITY.md says what happens
   * otherwise.
   *
   * @returns the result. The promise rejects with a LossError of one of these codes: `ERR_MISSING_INPUT`,
   * `ERR_SHAPE_MISMATCH`, `ERR_INVALID_INPUT`, `ERR_INVALID_OPTION`, `ERR_DEVICE_UNAVAILABLE`, `ERR_OUT_OF_MEMORY`,
   * `ERR_ABORTED`.
   */
  compute<R extends Requests>(
    batch: Batch | DeviceBatch,
    options: Requesting<R, LossComputeOptions>,
  ): Promise<LossResult<M> & Requested<R>>;
  /**
   * Computes the loss and its metrics. If the types of the options leave open whether a gradient is requested, it is
   * optional in the type of the result.
   */
  compute(batch: Batch | DeviceBatch, options?: LossComputeOptions): Promise<LossResult<M>>;
  compute(batch: Batch | DeviceBatch, options?: LossComputeOptions): Promise<LossResult<M>> {
    return takeLater(this.#compute(batch, options), options);
  }

  /**
   * Synchronous version of {@link compute}, for small batches and scripts. It blocks the calling thread; for large
   * batches, the threads of the pool help. Its results are bitwise equal to the results of compute().
   */
  computeSync<R extends Requests>(
    batch: Batch | DeviceBatch,
    options: Requesting<R, LossComputeSyncOptions>,
  ): LossResult<M> & Requested<R>;
  /** Synchronous version of {@link compute}. */
  computeSync(batch: Batch | DeviceBatch, options?: LossComputeSyncOptions): LossResult<M>;
  computeSync(batch: Batch | DeviceBatch, options?: LossComputeSyncOptions): LossResult<M> {
    return takeNow(this.#compute(batch, options));
  }

  #compute(batch: Batch | DeviceBatch, options: LossComputeOptions | undefined): Steps<LossResult<M>> {
    if (this.#prepare) return this.#computePrepared(batch, options);
    return this.#evaluator.compute(batch, options, (input, normalizer) =>
      this.coefficients(input, normalizer),
    );
  }

  *#computePrepared(
    given: Batch | DeviceBatch,
    options: LossComputeOptions | undefined,
  ): Steps<LossResult<M>> {
    const held = withHeldRequests(options ?? {});
    const batch = yield* this.prepared(given, held);
    return yield* this.#evaluator.compute(batch, held, (input, normalizer) =>
      this.coefficients(input, normalizer),
    );
  }

  /**
   * Returns the keys under which a batch may have an input.
   * @internal
   */
  keysOf(name: InputName): readonly string[] {
    return this.#mapper.keys(name);
  }

  /**
   * Returns the batch that is computed for one of the caller.
   * @param hasTerms whether an objective computes a KL loss or an entropy loss from the same batch.
   * @internal
   */
  *prepared<B extends Batch | DeviceBatch>(batch: B, options: CallOptions, hasTerms = false): Steps<B> {
    if (!this.#prepare) return batch;
    const held = heldInput(batch, this.#mapper);
    const isCorrected = this.correction !== undefined;
    return (yield* this.#prepare(held, this.#mapper, options, isCorrected, hasTerms)) as B;
  }

  /**
   * Computes the log-probabilities from logits, then the loss and its metrics and, if requested, the gradient with
   * respect to the logits. The logits are read once and the gradient is written once, unless the gradient of a token
   * depends on other tokens, as in a loss with a ratio per row or with a correction: the logits are then read twice.
   *
   * @param batch a batch with `logits` and `targets` in place of log-probabilities and entropies.
   * @returns the result of compute() for the log-probabilities of logprobs(), to the last bit, with these. The promise
   * rejects with the LossErrors of compute(), logprobs() and logprobsBackward().
   */
  fromLogits<R extends LogitsRequests>(
    batch: LogitsBatch,
    options: Requesting<R, FromLogitsOptions>,
  ): Promise<LossResult<M> & LogitsResult & RequestedLogits<R>>;
  /**
   * Computes the loss from logits. If the types of the options leave open whether a gradient is requested, it is
   * optional in the type of the result.
   */
  fromLogits(batch: LogitsBatch, options?: FromLogitsOptions): Promise<LossResult<M> & LogitsResult>;
  fromLogits(batch: LogitsBatch, options?: FromLogitsOptions): Promise<LossResult<M> & LogitsResult> {
    return fromLogits(this.#ofLogits, batch, options);
  }

  /** Synchronous version of {@link fromLogits}. */
  fromLogitsSync<R extends LogitsRequests>(
    batch: LogitsBatchSync,
    options: Requesting<R, FromLogitsSyncOptions>,
  ): LossResult<M> & LogitsResult & RequestedLogits<R>;
  /** Synchronous version of {@link fromLogits}. */
  fromLogitsSync(batch: LogitsBatchSync, options?: FromLogitsSyncOptions): LossResult<M> & LogitsResult;
  fromLogitsSync(batch: LogitsBatchSync, options?: FromLogitsSyncOptions): LossResult<M> & LogitsResult {
    return fromLogitsSync(this.#ofLogits, batch, options);
  }

  /**
   * Computes the logits from hidden states and the output head of the model, a block of tokens at a time, and from them what
   * fromLogits() computes. The gradients are with respect to the hidden states and the head. In addition to its inputs and
   * results, the call takes memory for one block of logits: 64 MiB, or one token's logits if these are more. The logits are
   * computed twice if the gradient of a token depends on other tokens.
   *
   * @param batch a batch with `hidden`, `weight` and `targets` in place of log-probabilities and entropies.
   * @returns the result of compute() for the log-probabilities of these logits. Its bits are always the same for the same
   * input: they depend neither on the number of threads nor on the blocks. The promise rejects with the LossErrors of
   * fromLogits().
   */
  fromHidden<R extends HiddenRequests>(
    batch: HiddenBatch,
    options: Requesting<R, FromHiddenOptions>,
  ): Promise<LossResult<M> & HiddenResult & RequestedHidden<R>>;
  /**
   * Computes the loss from hidden states. If the types of the options leave open whether a gradient is requested, it is
   * optional in the type of the result.
   */
  fromHidden(batch: HiddenBatch, options?: FromHiddenOptions): Promise<LossResult<M> & HiddenResult>;
  fromHidden(batch: HiddenBatch, options?: FromHiddenOptions): Promise<LossResult<M> & HiddenResult> {
    return fromHidden(this.#ofLogits, batch, options);
  }

  /** Synchronous version of {@link fromHidden}. */
  fromHiddenSync<R extends HiddenRequests>(
    batch: HiddenBatch,
    options: Requesting<R, FromHiddenSyncOptions>,
  ): LossResult<M> & HiddenResult & RequestedHidden<R>;
  /** Synchronous version of {@link fromHidden}. */
  fromHiddenSync(batch: HiddenBatch, options?: FromHiddenSyncOptions): LossResult<M> & HiddenResult;
  fromHiddenSync(batch: HiddenBatch, options?: FromHiddenSyncOptions): LossResult<M> & HiddenResult {
    return fromHiddenSync(this.#ofLogits, batch, options);
  }

  get #ofLogits(): LossOfLogits<LossResult<M>> {
    const { columns, optional } = this.reads;
    return {
      mapper: this.#mapper,
      needsEntropy: columns.includes('entropy') && !optional.includes('entropy'),
      requestsGradEntropy: this.dependsOnEntropy,
      gradEntropyIsOther: columns.includes('entropy_other'),
      needsLogprobFirst: () => this.correction !== undefined,
      prepared: (batch, options) => this.prepared(batch, options),
      read: (batch, options) => this.#read(batch, options),
    };
  }

  *#read(batch: Batch, options: LossComputeOptions): Steps<ReadLoss<LossResult<M>>> {
    const input = yield* this.#evaluator.read(batch, options.device);
    const coefficients = this.coefficients(input, options.normalizer);
    const call = { input, gradients: gradientsOf(input, options), options, coefficients };
    return this.#evaluator.prepare(call, (result) => result as LossResult<M>);
  }

  /**
   * Counts a batch's tokens and rows. To compute a batch in several parts, count each part, add up the counts with
   * sumCounts(), and pass the sum as `normalizer` to the computation of every part.
   */
  count(batch: Batch | DeviceBatch): Promise<Counts> {
    return takeLater(countBatch(this.#counter, batch, { correction: this.correction }));
  }

  /** Synchronous version of {@link count}. */
  countSync(batch: Batch | DeviceBatch): Counts {
    return takeNow(countBatch(this.#counter, batch, { correction: this.correction }));
  }

  /**
   * Computes the loss and the metrics of a whole batch from its parts. They have the same bits however the batch is
   * divided, and in whatever order the parts are given.
   * @param parts the property `part` of each part's result. compute() returns it if the option `part` is true.
   * @param normalizer the counts of the whole batch, as for compute().
   * @throws LossError `ERR_INVALID_INPUT`, `ERR_INVALID_OPTION`
   */
  merge(parts: readonly ArrayLike<number>[], normalizer: Normalizer): Result<M> {
    return this.#evaluator.merge(parts, normalizer);
  }

  /**
   * Returns the loss in which everything inside sg() is computed from a column other than logprob, so that its finite
   * differences are the gradient. Returns undefined for a loss of the native module.
   * @internal
   */
  frozen(column: ColumnName): PolicyLossFn<object> | undefined {
    return this.#frozen(column);
  }

  /**
   * Returns the specification of a native function that computes this loss and the given terms.
   * @internal
   */
  withTerms(terms: Omit<NativeFunctionSpec, 'policyLoss'>): NativeFunctionSpec | Forms {
    const multiplied = this.#multiplied;
    const { optional, perRow } = this.#forms ?? { optional: [], perRow: [] };
    const own = (form: number) => ({ ...terms, policyLoss: this.#specOf(form, this.#forms) });
    if (!multiplied) return this.#forms ? { optional, perRow, spec: own } : own(0);
    // The lowest bit tells whether the batch has weights.
    const spec = (form: number) => {
      if (form % 2 === 0) return own(form >> 1);
      const { program, forms } = multiplied();
      const ofProgram = forms ?? (program && { program: () => program });
      return { ...terms, policyLoss: { ...this.#specOf(form >> 1, ofProgram), weighted: true } };
    };
    return { optional: ['token_weights', ...optional], perRow, spec };
  }

  #specOf(form: number, forms: Pick<NonNullable<PolicyLossVariant['forms']>, 'program'> | undefined) {
    if (!forms) return this.policyLoss;
    const program = forms.program(form);
    return { program, metrics: program.metrics, aggregation: this.policyLoss.aggregation };
  }

  /**
   * Returns the numbers that a native call needs in addition to the batch's arrays, such as MIX's mu. Subclasses
   * override it. This version returns no numbers.
   * @internal
   */
  coefficients(_input: Input, _normalizer: Normalizer | undefined): Coefficients {
    return NO_COEFFICIENTS;
  }
}

// Returns how the reader of a loss treats token_weights.
function weightsOf(
  name: string,
  columns: readonly ColumnName[],
  multiplies: boolean,
): PolicyLossFn['reads']['weights'] {
  if (multiplies) return { optional: ['token_weights'] };
  if (columns.includes('token_weights')) return {};
  return {
    refused: {
      input: 'token_weights',
      reason: `the loss of a row of ${name} is not a sum over its tokens`,
    },
  };
}

function isIn(names: readonly string[], name: string): boolean {
  return names.includes(name);
}

class FrozenLossFn extends PolicyLossFn<object> {}

const NO_COEFFICIENTS: Coefficients = Object.freeze({});

/** The registry of the policy losses, by name. */
export const POLICY_LOSS_FN = new Registry<PolicyLossFn<Partial<Record<string, number>>>>('policy loss');
