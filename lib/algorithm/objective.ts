// An algorithm's objective: policy loss − entropy loss + KL loss, computed in one pass over a batch.
import type { NativeFunctionSpec } from '../../binding.js';
import { guarded, LossError } from '../base/errors.js';
import { checkLossAggMode } from '../base/option.js';
import type { LossAggMode } from '../base/options.js';
import { type Steps, takeLater, takeNow } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import type { ColumnName, InputName, RowDataName } from '../batch/columns.js';
import type { Counts, Normalizer } from '../batch/counts.js';
import { KeyMapper } from '../batch/key-mapper.js';
import { BatchReader, type Conversions, missingInput } from '../batch/reader.js';
import type { CallOptions, Requested, Requesting, Requests, Result } from '../call/calls.js';
import type { ComputedAdvantages } from '../call/computed-advantages.js';
import { countBatch } from '../call/count-batch.js';
import { type CoefficientsOf, Evaluator, type ReadLoss } from '../call/evaluator.js';
import {
  type Gradients,
  gradientsOf,
  requestLike,
  type WantedGradients,
  withHeldRequests,
} from '../call/gradients.js';
import { termsOfPart } from '../call/part-sums.js';
import type { DeviceBatch } from '../device/device-batch.js';
import { hasInput, heldInput, type Input } from '../device/input.js';
import {
  fromHidden,
  fromHiddenSync,
  type HiddenBatch,
  type HiddenRequests,
  type HiddenResult,
  type RequestedHidden,
} from '../logits/from-hidden.js';
import {
  fromLogits,
  fromLogitsSync,
  type LogitsBatch,
  type LogitsBatchSync,
  type LogitsRequests,
  type LogitsResult,
  type LossOfLogits,
  type RequestedLogits,
} from '../logits/from-logits.js';
import type { AdvantageFn } from '../losses/advantage-fn.js';
import type { EntropyLossFn } from '../losses/entropy.js';
import { ADVANTAGE_FN, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN } from '../losses/index.js';
import type { KLFn } from '../losses/kl-fn.js';
import type { PolicyLossFn } from '../losses/policy-loss-fn.js';
import { KlPenalty } from './kl-penalty.js';
import { type CallAdvantages, ObjectiveAdvantages } from './objective-advantages.js';
import { checkCombination, type ObjectiveFunctions, policyLossArgs } from './objective-functions.js';
import type {
  ObjectiveComputeOptions,
  ObjectiveComputeSyncOptions,
  ObjectiveFromHiddenOptions,
  ObjectiveFromHiddenSyncOptions,
  ObjectiveFromLogitsOptions,
  ObjectiveFromLogitsSyncOptions,
  WithEntropies,
} from './objective-options.js';
import { type ObjectiveResult, toResult } from './objective-result.js';

// The KL loss and the entropy loss of an objective, as native code takes them.
type Terms = Pick<NativeFunctionSpec, 'kl' | 'entropy'>;

/** @internal What an objective of another framework than Trinity-RFT has in addition to its functions. */
export interface ObjectiveExtras {
  /** A loss that is the policy loss, the KL loss and the entropy loss in one, aggregated as the framework does. */
  readonly lossFn?: PolicyLossFn<Partial<Record<string, number>>> | undefined;
  /** Why the objective cannot compute advantages, for the error about a batch without them: 'because …'. */
  readonly advantageObstacle?: string | undefined;
}

/**
 * An algorithm's objective: policy loss − entropy loss + KL loss. It reads a batch once for all three losses, and can
 * also return the gradients of their sum with respect to logprob and to entropy. To create an objective, call
 * AlgorithmType.objective(), fromConfig() or fromTrinityConfig().
 *
 * If the algorithm has an advantage function and a batch has no advantages, the objective first computes them from the
 * rewards. Some advantage functions drop rows. The objective then counts neither these rows nor their tokens.
 *
 * A batch needs the columns that the functions of the objective read. There is one exception: if the KL loss or the
 * entropy loss has the coefficient 0 and the batch lacks its column, the objective leaves this loss out. With
 * entropyCoef 0, for example, a batch needs no entropy. The result has the metrics of all functions that were computed.
 *
 * Source: Trinity-RFT, trinity.algorithm.
 */
export class Objective {
  /** The algorithm's name. */
  readonly algorithm: string;
  /** The training framework whose batch keys are accepted in addition to Trinity's. */
  readonly backend: string;
  /** The policy loss. */
  readonly policyLossFn: PolicyLossFn<Partial<Record<string, number>>>;
  /** The KL loss, which the objective adds. The KL function `none` adds nothing. */
  readonly klLossFn: KLFn;
  /** The entropy loss, which the objective subtracts. The entropy loss `none` subtracts nothing. */
  readonly entropyLossFn: EntropyLossFn;
  /**
   * The advantage function. It is undefined if the algorithm reads no advantages, or expects every batch to have them.
   */
  readonly advantageFn: AdvantageFn | undefined;
  /**
   * The KL function whose penalty is subtracted from the rewards. The KL function `none` leaves the rewards unchanged.
   */
  readonly klPenaltyFn: KLFn;
  /** How the KL loss and the entropy loss are aggregated. */
  readonly lossAggMode: LossAggMode;
  /**
   * @internal The loss that is evaluated: the policy loss, or one that also contains the KL loss and the entropy loss.
   */
  readonly lossFn: PolicyLossFn<Partial<Record<string, number>>>;
  /** @internal Why the objective cannot compute advantages, for the error about a batch without them. */
  readonly advantageObstacle: string | undefined;
  readonly #mapper: KeyMapper;
  readonly #klPenalty: KlPenalty;
  // Evaluators by the terms that they compute, created when first needed. The columns of a batch decide whether the KL
  // loss and the entropy loss are computed.
  readonly #evaluators = new Map<string, Evaluator>();
  readonly #finder: BatchReader;
  readonly #advantages: ObjectiveAdvantages;
  readonly #counter: BatchReader;

  /**
   * @internal
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown function, `ERR_INVALID_OPTION` for an invalid argument of a
   * function, and for functions that cannot be combined.
   */
  constructor(
    algorithm: string,
    config: ObjectiveFunctions,
    { lossFn, advantageObstacle }: ObjectiveExtras = {},
  ) {
    const backend = config.backend ?? 'verl';
    const options = { backend };
    this.algorithm = algorithm;
    this.backend = backend;
    this.lossAggMode = checkLossAggMode(`objective of ${algorithm}`, config.loss_agg_mode);
    this.policyLossFn = POLICY_LOSS_FN.create(config.policy_loss_fn, policyLossArgs(config), options);
    this.lossFn = lossFn ?? this.policyLossFn;
    this.advantageObstacle = advantageObstacle;
    this.klLossFn = KL_FN.create(config.kl_loss_fn ?? 'none', config.kl_loss_fn_args, options);
    this.entropyLossFn = ENTROPY_LOSS_FN.create(
      config.entropy_loss_fn ?? 'none',
      config.entropy_loss_fn_args,
      options,
    );
    this.advantageFn =
      config.advantage_fn === undefined
        ? undefined
        : ADVANTAGE_FN.create(config.advantage_fn, config.advantage_fn_args, options);
    this.klPenaltyFn = KL_FN.create(config.kl_penalty_fn ?? 'none', config.kl_penalty_fn_args, options);
    this.#mapper = KeyMapper.get(backend);
    this.#klPenalty = new KlPenalty(this.klPenaltyFn, this.#mapper);
    checkCombination(this, config);
    this.#finder = new BatchReader(this.#mapper, { inputs: ['action_mask'] });
    this.#advantages = new ObjectiveAdvantages(`objective of ${algorithm}`, {
      advantageFn: this.advantageFn,
      policyLossFn: this.lossFn,
      klPenalty: this.#klPenalty,
      finder: this.#finder,
    });
    const counted = this.lossFn.correction?.maskColumns ?? [];
    this.#counter = new BatchReader(this.#mapper, { inputs: [...counted, ...this.#masks(true)] });
  }

  /**
   * Computes the loss, all metrics and, if requested, the gradients with respect to logprob and to entropy. The work
   * runs on the native thread pool and does not block the event loop.
   *
   * @returns a promise of the result. It rejects with the same LossErrors as compute() of a policy loss and compute()
   * of an advantage function.
   */
  compute<R extends Requests>(
    batch: Batch | DeviceBatch,
    given: Requesting<R, ObjectiveComputeOptions>,
  ): Promise<ObjectiveResult & Requested<R> & WithEntropies<R>>;
  /**
   * Computes the objective and its metrics. If the types of the options leave open whether a gradient is requested, it is
   * optional in the type of the result.
   */
  compute(batch: Batch | DeviceBatch, given?: ObjectiveComputeOptions): Promise<ObjectiveResult>;
  compute(batch: Batch | DeviceBatch, given?: ObjectiveComputeOptions): Promise<ObjectiveResult> {
    return takeLater(this.#compute(batch, given), given);
  }

  /** Synchronous version of compute(). Both return exactly the same numbers. */
  computeSync<R extends Requests>(
    batch: Batch | DeviceBatch,
    given: Requesting<R, ObjectiveComputeSyncOptions>,
  ): ObjectiveResult & Requested<R> & WithEntropies<R>;
  /** Synchronous version of {@link compute}. */
  computeSync(batch: Batch | DeviceBatch, given?: ObjectiveComputeSyncOptions): ObjectiveResult;
  computeSync(batch: Batch | DeviceBatch, given?: ObjectiveComputeSyncOptions): ObjectiveResult {
    return takeNow(this.#compute(batch, given));
  }

  *#compute(batch: Batch | DeviceBatch, given: ObjectiveComputeOptions | undefined): Steps<ObjectiveResult> {
    const loss = yield* this.#read(batch, withHeldRequests(given ?? {}));
    return yield* loss.compute();
  }

  /**
   * Computes the log-probabilities and, if they are needed, the entropies from logits, then the objective and its
   * metrics and, if requested, the gradient with respect to the logits; see {@link PolicyLossFn.fromLogits}.
   */
  fromLogits<R extends LogitsRequests>(
    batch: LogitsBatch,
    options: Requesting<R, ObjectiveFromLogitsOptions>,
  ): Promise<ObjectiveResult & LogitsResult & RequestedLogits<R> & WithEntropies<R>>;
  /**
   * Computes the objective from logits. If the types of the options leave open whether a gradient is requested, it is
   * optional in the type of the result.
   */
  fromLogits(
    batch: LogitsBatch,
    options?: ObjectiveFromLogitsOptions,
  ): Promise<ObjectiveResult & LogitsResult>;
  fromLogits(
    batch: LogitsBatch,
    options?: ObjectiveFromLogitsOptions,
  ): Promise<ObjectiveResult & LogitsResult> {
    return fromLogits(this.#ofLogits, batch, options);
  }

  /** Synchronous version of {@link fromLogits}. */
  fromLogitsSync<R extends LogitsRequests>(
    batch: LogitsBatchSync,
    options: Requesting<R, ObjectiveFromLogitsSyncOptions>,
  ): ObjectiveResult & LogitsResult & RequestedLogits<R> & WithEntropies<R>;
  /** Synchronous version of {@link fromLogits}. */
  fromLogitsSync(
    batch: LogitsBatchSync,
    options?: ObjectiveFromLogitsSyncOptions,
  ): ObjectiveResult & LogitsResult;
  fromLogitsSync(
    batch: LogitsBatchSync,
    options?: ObjectiveFromLogitsSyncOptions,
  ): ObjectiveResult & LogitsResult {
    return fromLogitsSync(this.#ofLogits, batch, options);
  }

  /**
   * Computes the logits from hidden states and the output head of the model, and from them the objective and its metrics
   * and, if requested, the gradients with respect to the hidden states and the head; see {@link PolicyLossFn.fromHidden}.
   */
  fromHidden<R extends HiddenRequests>(
    batch: HiddenBatch,
    options: Requesting<R, ObjectiveFromHiddenOptions>,
  ): Promise<ObjectiveResult & HiddenResult & RequestedHidden<R> & WithEntropies<R>>;
  /**
   * Computes the objective from hidden states. If the types of the options leave open whether a gradient is requested, it is
   * optional in the type of the result.
   */
  fromHidden(
    batch: HiddenBatch,
    options?: ObjectiveFromHiddenOptions,
  ): Promise<ObjectiveResult & HiddenResult>;
  fromHidden(
    batch: HiddenBatch,
    options?: ObjectiveFromHiddenOptions,
  ): Promise<ObjectiveResult & HiddenResult> {
    return fromHidden(this.#ofLogits, batch, options);
  }

  /** Synchronous version of {@link fromHidden}. */
  fromHiddenSync<R extends HiddenRequests>(
    batch: HiddenBatch,
    options: Requesting<R, ObjectiveFromHiddenSyncOptions>,
  ): ObjectiveResult & HiddenResult & RequestedHidden<R> & WithEntropies<R>;
  /** Synchronous version of {@link fromHidden}. */
  fromHiddenSync(
    batch: HiddenBatch,
    options?: ObjectiveFromHiddenSyncOptions,
  ): ObjectiveResult & HiddenResult;
  fromHiddenSync(
    batch: HiddenBatch,
    options?: ObjectiveFromHiddenSyncOptions,
  ): ObjectiveResult & HiddenResult {
    return fromHiddenSync(this.#ofLogits, batch, options);
  }

  get #ofLogits(): LossOfLogits<ObjectiveResult> {
    const { columns, optional } = this.lossFn.reads;
    const { rows, entropyCoef } = this.entropyLossFn;
    const inLoss = columns.includes('entropy') && !optional.includes('entropy');
    return {
      mapper: this.#mapper,
      needsEntropy: inLoss || (rows !== 'none' && entropyCoef !== 0),
      requestsGradEntropy: false,
      gradEntropyIsOther: false,
      needsLogprobFirst: (batch) =>
        this.lossFn.correction !== undefined ||
        (!this.#klPenalty.isNone && this.#advantages.areMissing(batch)),
      prepared: (batch, options, hasEntropy) =>
        this.#prepared(batch, options, this.#terms(batch, hasEntropy)),
      read: (batch, options) => this.#read(batch, options),
    };
  }

  /**
   * Computes the loss and the metrics of a whole batch from its parts, without the metrics of the advantage function.
   * They have the same bits however the batch is divided, and in whatever order the parts are given.
   * @param parts the property `part` of each part's result. compute() returns it if the option `part` is true.
   * @param normalizer the counts of the whole batch, as for compute().
   * @throws LossError `ERR_INVALID_INPUT`, `ERR_INVALID_OPTION`
   */
  merge(parts: readonly ArrayLike<number>[], normalizer: Normalizer): Result {
    return guarded(() => {
      const { kl, entropy } = termsOfPart(parts);
      return this.#evaluatorFor(this.#termsOf(kl, entropy, true), false).merge(parts, normalizer);
    });
  }

  /**
   * Counts the rows and the unmasked tokens of a batch, excluding the rows that the advantage function drops. These
   * counts are needed to compute a large batch in parts: add up the counts of all parts, and pass the sum to compute()
   * as `normalizer`. If the batch has no advantages, all rows of a group must be in the same part, because advantages
   * are computed within groups.
   */
  count(batch: Batch | DeviceBatch, options?: { seed?: number }): Promise<Counts> {
    return takeLater(this.#count(batch, options));
  }

  /** Synchronous version of count(). */
  countSync(batch: Batch | DeviceBatch, options?: { seed?: number }): Counts {
    return takeNow(this.#count(batch, options));
  }

  *#count(batch: Batch | DeviceBatch, options: { seed?: number } | undefined): Steps<Counts> {
    const { correction } = this.lossFn;
    if (!this.#advantages.mayDrop(batch)) return yield* countBatch(this.#counter, batch, { correction });
    const held = this.#held(batch);
    const { computed, fused } = yield* this.#advantages.compute(held, options ?? {});
    return yield* countBatch(this.#counter, held, { repeats: computed?.repeats, fused, correction });
  }

  /**
   * @internal Computes the objective for a host batch whose advantages were computed before.
   * @param computed the batch's advantages, computed after the KL penalty was subtracted from the rewards. undefined if
   * the batch has advantages or needs none.
   * @returns the result, without the metrics of the advantage function.
   */
  computeWith(
    batch: Batch,
    computed: ComputedAdvantages | undefined,
    options: ObjectiveComputeOptions,
  ): Promise<ObjectiveResult> {
    return takeLater(this.#computeWith(batch, computed, options), options);
  }

  *#computeWith(
    batch: Batch,
    computed: ComputedAdvantages | undefined,
    options: ObjectiveComputeOptions,
  ): Steps<ObjectiveResult> {
    const loss = yield* this.#readWith(batch, options, computed && { computed });
    return yield* loss.compute();
  }

  // Whether the loss that is evaluated contains the KL loss and the entropy loss.
  get #hasTerms(): boolean {
    return this.lossFn !== this.policyLossFn;
  }

  #masks(withEntropy: boolean): InputName[] {
    const separatesExperts =
      this.lossFn.reads.expertMask || (withEntropy && this.entropyLossFn.rows === 'usual');
    return separatesExperts ? ['action_mask', 'expert_mask'] : ['action_mask'];
  }

  #held<B extends Batch | DeviceBatch>(batch: B): B {
    return heldInput(batch, this.#mapper, this.advantageFn?.definition.named?.keys);
  }

  // Reads a batch, and computes its advantages if they are missing. The options must not change during the call.
  *#read(batch: Batch | DeviceBatch, options: ObjectiveComputeOptions): Steps<ReadLoss<ObjectiveResult>> {
    if (!this.#advantages.areMissing(batch)) return yield* this.#readWith(batch, options, undefined);
    const conversions: Conversions = new Map();
    const held = this.#held(batch);
    const found = yield* this.#advantages.compute(held, options, conversions);
    return yield* this.#readWith(held, options, found, conversions);
  }

  *#readWith(
    batch: Batch | DeviceBatch,
    options: ObjectiveComputeOptions,
    found: CallAdvantages | undefined,
    conversions?: Conversions,
  ): Steps<ReadLoss<ObjectiveResult>> {
    const terms = this.#terms(batch, hasInput(this.#finder, batch, 'entropy'));
    const { evaluator, coefficients } = this.#prepare(batch, terms, found !== undefined);
    const prepared = yield* this.#prepared(batch, options, terms);
    const known = prepared === batch ? conversions : undefined;
    const read = evaluator.read(prepared, options.device, found?.computed, known);
    const input = yield* this.#explained(read);
    const gradients = this.#gradients(input, options, batch);
    const call = {
      input,
      gradients,
      options,
      coefficients: coefficients(input, options.normalizer),
      fused: found?.fused,
    };
    return evaluator.prepare(call, (result) =>
      toResult(result, gradients, options.gradEntropy !== false, input.layout, found),
    );
  }

  // Lets an error about a missing column that only the KL loss or the entropy loss reads say how to do without this loss.
  *#explained(read: Steps<Input>): Steps<Input> {
    try {
      return yield* read;
    } catch (error) {
      if (!(error instanceof LossError) || error.code !== 'ERR_MISSING_INPUT') throw error;
      for (const [column, loss, option] of [
        ['ref_logprob', 'KL', 'klLossFn'],
        ['entropy', 'entropy', 'entropyLossFn'],
      ] as const) {
        if (!this.#mapper.keys(column).includes(error.key!) || this.lossFn.reads.columns.includes(column))
          continue;
        const hint = (spell: (option: string) => string) =>
          `The ${loss} loss of ${this.algorithm} reads it. ${spell(option)} 'none' leaves this loss out`;
        throw error.with({ hint });
      }
      throw error;
    }
  }

  #prepared<B extends Batch | DeviceBatch>(batch: B, options: CallOptions, { kl, entropy }: Terms): Steps<B> {
    return this.lossFn.prepared(batch, options, (kl ?? entropy) !== undefined);
  }

  // Returns the KL loss and the entropy loss that are computed for a batch.
  #terms(batch: Batch | DeviceBatch, hasEntropy: boolean): Terms {
    if (this.#hasTerms) return {};
    const readsKl = this.klLossFn.klCoef !== 0 || hasInput(this.#finder, batch, 'ref_logprob');
    const readsEntropy = this.entropyLossFn.entropyCoef !== 0 || hasEntropy;
    return this.#termsOf(readsKl, readsEntropy, hasInput(this.#finder, batch, 'old_logprob'));
  }

  #termsOf(readsKl: boolean, readsEntropy: boolean, hasOldLogprob: boolean): Terms {
    const kl = readsKl ? this.klLossFn.term(this.lossAggMode, hasOldLogprob) : undefined;
    const entropy = readsEntropy ? this.entropyLossFn.term(this.lossAggMode) : undefined;
    return { ...(kl && { kl }), ...(entropy && { entropy }) };
  }

  #prepare(batch: Batch | DeviceBatch, terms: Terms, computed: boolean) {
    if (this.advantageObstacle !== undefined && !hasInput(this.#finder, batch, 'advantages'))
      throw missingInput(this.#mapper, 'advantages', `in the batch, ${this.advantageObstacle}`);
    const coefficients: CoefficientsOf = (input, normalizer) => ({
      ...this.lossFn.coefficients(input, normalizer),
      klCoef: this.klLossFn.klCoef,
      entropyCoef: 0 - this.entropyLossFn.entropyCoef,
    });
    return { evaluator: this.#evaluatorFor(terms, computed), coefficients };
  }

  #evaluatorFor(terms: Terms, computed: boolean): Evaluator {
    const key = `${terms.kl?.name} ${terms.entropy !== undefined} ${computed}`;
    let evaluator = this.#evaluators.get(key);
    if (!evaluator) {
      evaluator = this.#evaluator(terms, computed);
      this.#evaluators.set(key, evaluator);
    }
    return evaluator;
  }

  #evaluator(terms: Terms, computed: boolean): Evaluator {
    const { kl, entropy } = terms;
    const { columns: all, optional, rowColumns, step: readsStep, weights, rowsOfPair } = this.lossFn.reads;
    const isNeeded = (name: RowDataName) => !(optional as readonly string[]).includes(name);
    const columns = new Set<ColumnName>(all.filter((column) => !optional.includes(column)));
    if (computed) columns.delete('advantages');
    if (kl) columns.add('ref_logprob');
    const corrected = this.klLossFn.usesOldLogprob && this.klLossFn.term(this.lossAggMode, true)?.name;
    if (kl && kl.name === corrected) columns.add('old_logprob');
    if (entropy) columns.add('entropy');
    const step: InputName[] = readsStep ? ['step'] : [];
    const reader = new BatchReader(this.#mapper, {
      inputs: [...columns, ...rowColumns.filter(isNeeded), ...this.#masks(entropy !== undefined), ...step],
      ...weights,
      optional: [...optional.filter((name) => !columns.has(name as ColumnName)), ...(weights.optional ?? [])],
      rowsOfPair,
      perToken: ['logprob', 'entropy'],
    });
    return new Evaluator(this.lossFn.withTerms(terms), reader, 'grad', this.lossFn.correction);
  }

  // Returns the arrays that native code writes the gradients to. If the loss does not depend on entropy, ∂loss/∂entropy
  // is 0 everywhere. Native code then gets an array for it only if the caller passed one.
  #gradients(input: Input, wanted: WantedGradients, batch: Batch | DeviceBatch): Gradients {
    const { grad, gradLogZ } = wanted;
    const { rows, entropyCoef } = this.entropyLossFn;
    const hasTerm = rows !== 'none' && entropyCoef !== 0 && hasInput(this.#finder, batch, 'entropy');
    const depends = hasTerm || this.lossFn.dependsOnEntropy;
    const gradEntropy = wanted.gradEntropy ?? (depends && requestLike(grad));
    return gradientsOf(input, { grad, gradEntropy, gradLogZ });
  }
}
