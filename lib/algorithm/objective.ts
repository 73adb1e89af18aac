// An algorithm's objective: policy loss − entropy loss + KL loss of a batch, in one pass over it.
import type { NativeFunctionSpec } from '../../binding.js';
import { type Batch, find } from '../core/batch.js';
import {
  BatchReader,
  type ColumnName,
  type Conversions,
  findInput,
  type InputName,
  missingInput,
} from '../core/batch-reader.js';
import { readMask, readRowNumbers } from '../core/columns.js';
import type { Counts } from '../core/counts.js';
import { DeviceBatch } from '../core/device-batch.js';
import { guarded, guardedAsync, LossError } from '../core/errors.js';
import {
  type Coefficients,
  type ComputedAdvantages,
  type ComputeOptions,
  type ComputeSyncOptions,
  countBatch,
  countBatchSync,
  Evaluator,
  type Gradients,
  gradArray,
  type Metrics,
  type OnTheWay,
  type Result,
} from '../core/evaluator.js';
import { KeyMapper } from '../core/key-mapper.js';
import { type Layout, readLayout } from '../core/layout.js';
import { checkLossAggMode, type LossAggMode } from '../core/options.js';
import type {
  AdvantageComputeOptions,
  AdvantageComputeSyncOptions,
  AdvantageFn,
} from '../functions/advantage/advantage-fn.js';
import { ADVANTAGE_FN } from '../functions/advantage/index.js';
import type { EntropyLossFn } from '../functions/entropy/entropy-loss-fn.js';
import { ENTROPY_LOSS_FN } from '../functions/entropy/index.js';
import { KL_FN } from '../functions/kl/index.js';
import type { KLFn, KlPenaltyResult } from '../functions/kl/kl-fn.js';
import { POLICY_LOSS_FN } from '../functions/policy-loss/index.js';
import type { PolicyLossFn } from '../functions/policy-loss/policy-loss-fn.js';
import { type CheckedConfig, type FunctionArgs, names } from './config.js';

/** Options of an objective's synchronous call. */
export interface ObjectiveComputeSyncOptions extends ComputeSyncOptions {
  /** Where to write ∂loss/∂entropy (B×T values); with `grad` alone it goes to a new array. */
  gradEntropy?: Float32Array;
  /** What the advantage function's random choices depend on, in the place of its own seed. */
  seed?: number;
}

/** Options of an objective's call. */
export interface ObjectiveComputeOptions extends ComputeOptions, ObjectiveComputeSyncOptions {}

/** What an objective gives. */
export interface ObjectiveResult extends Result {
  /** [B, T] ∂loss/∂entropy, where a gradient was asked for. */
  gradEntropy?: Float32Array;
}

/**
 * An algorithm on a batch: policy loss − entropy loss + KL loss, with the gradient of that sum with respect to logprob
 * and to entropy. The batch is read once for all three. Made by an algorithm's objective(), or from a configuration.
 *
 * Where the algorithm has an advantage function and the batch no advantages, they are computed first, from rewards; rows
 * that the function drops then count neither as rows nor as tokens.
 *
 * Reads what its functions read. A term whose coefficient is 0 is left out where the batch lacks its column, so that
 * entropyCoef 0 needs no entropy. Metrics: those of its functions.
 *
 * Source: Trinity-RFT, trinity.algorithm.
 */
export class Objective {
  /** The algorithm's name. */
  readonly algorithm: string;
  /** Whose names the batch's keys may have, beside Trinity's. */
  readonly backend: string;
  /** The policy loss, on which the other two act. */
  readonly policyLossFn: PolicyLossFn<Partial<Record<string, number>>>;
  /** What is added to it; `none` adds nothing. */
  readonly klLossFn: KLFn;
  /** What is subtracted from it; `none` subtracts nothing. */
  readonly entropyLossFn: EntropyLossFn;
  /** undefined: the algorithm needs no advantages, or takes them as they are. */
  readonly advantageFn: AdvantageFn | undefined;
  /** What the KL penalty in the reward is by. */
  readonly klPenaltyFn: KLFn;
  /** How KL and entropy are aggregated. */
  readonly lossAggMode: LossAggMode;
  readonly #mapper: KeyMapper;
  readonly #evaluators = new Map<string, Evaluator>();
  readonly #finder: BatchReader;
  readonly #counter: BatchReader;

  /**
   * @internal
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown function, `ERR_INVALID_OPTION` for an argument of one.
   */
  constructor(algorithm: string, config: CheckedConfig & { policy_loss_fn: string }) {
    const backend = config.backend ?? 'verl';
    const options = { backend };
    this.algorithm = algorithm;
    this.backend = backend;
    this.lossAggMode = checkLossAggMode(`objective of ${algorithm}`, config.loss_agg_mode);
    this.policyLossFn = POLICY_LOSS_FN.create(config.policy_loss_fn, policyLossArgs(config), options);
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
    if (this.#penalises && !this.#rewardsTokens)
      throw new LossError(
        'ERR_INVALID_OPTION',
        `kl_penalty_fn: expected none, as ${config.advantage_fn ?? 'no advantage function'} reads no token_level_rewards ` +
          'that a penalty could be taken from',
      );
    if (config.policy_loss_fn === 'dpo' && this.advantageFn?.definition.drops)
      throw new LossError(
        'ERR_INVALID_OPTION',
        `advantage_fn: expected one that drops no rows, as dpo's are pairs, not ${config.advantage_fn} with a threshold`,
      );
    this.#mapper = KeyMapper.get(backend);
    this.#finder = new BatchReader(this.#mapper, { inputs: ['action_mask'] });
    this.#counter = new BatchReader(this.#mapper, { inputs: this.#masks(true) });
  }

  /**
   * The loss, all metrics and, where asked for, both gradients, computed on the pool's threads while the event loop goes
   * on.
   *
   * @returns rejects with LossError as compute() of a policy loss and of an advantage function does.
   */
  compute(batch: Batch | DeviceBatch, given?: ObjectiveComputeOptions): Promise<ObjectiveResult> {
    return guardedAsync(async () => {
      const options = given ?? {};
      const lacks = this.#lacksAdvantages(batch);
      const conversions: Conversions = new Map();
      const found = lacks ? await this.#advantages(batch, options, conversions) : undefined;
      return this.#computeWith(batch, options, found, conversions);
    });
  }

  /** The same at once. The results are the same to the bit. */
  computeSync(batch: Batch | DeviceBatch, given?: ObjectiveComputeSyncOptions): ObjectiveResult {
    return guarded(() => this.#computeSync(batch, given ?? {}));
  }

  #computeSync(batch: Batch | DeviceBatch, options: ObjectiveComputeSyncOptions): ObjectiveResult {
    const conversions: Conversions = new Map();
    const found = this.#lacksAdvantages(batch)
      ? this.#advantagesSync(batch, options, conversions)
      : undefined;
    const { evaluator, coefficients } = this.#prepare(batch, found !== undefined);
    const input = evaluator.read(batch, undefined, found?.computed, conversions);
    const gradients = this.#gradients(input.layout, options, batch);
    const result = evaluator.evaluateSync<Metrics>(
      input,
      gradients,
      options.normalizer,
      coefficients(input.layout, options),
      found?.onTheWay,
    );
    return toResult(result, gradients, input.layout, found);
  }

  /**
   * A batch's counts, without rows that the advantage function drops. The sum of its parts' is what `normalizer` is to be
   * when the parts are computed. Parts of a batch without advantages must be whole groups.
   */
  count(batch: Batch | DeviceBatch, options?: { seed?: number }): Promise<Counts> {
    return guardedAsync(async () => {
      const { computed, onTheWay } = this.#mayDrop(batch) ? await this.#advantages(batch, options ?? {}) : {};
      return countBatch(this.#counter, batch, { copies: computed?.copies, onTheWay });
    });
  }

  /** The same at once. */
  countSync(batch: Batch | DeviceBatch, options?: { seed?: number }): Counts {
    return guarded(() => {
      const { computed, onTheWay } = this.#mayDrop(batch) ? this.#advantagesSync(batch, options ?? {}) : {};
      return countBatchSync(this.#counter, batch, { copies: computed?.copies, onTheWay });
    });
  }

  /**
   * @internal The advantages that compute() makes of a host batch before it computes, with their metrics; undefined where
   * it makes none.
   */
  async advantagesOf(batch: Batch, options: AdvantageComputeOptions): Promise<MadeAdvantages | undefined> {
    return this.#lacksAdvantages(batch) ? this.#advantagesOnHost(batch, options) : undefined;
  }

  /** @internal A host batch whose rewards have had the KL penalty taken from them, where there is one, and its metrics. */
  async penalised(batch: Batch): Promise<Penalised> {
    if (!this.#penalises) return { batch, metrics: {} };
    return penalisedBy(await this.klPenaltyFn.applyKlPenaltyToReward(this.#withScores(batch)), batch);
  }

  /**
   * @internal compute() of a host batch with advantages that were made before, of it or of a batch that it is a part of.
   * The metrics are without theirs.
   */
  computeWith(
    batch: Batch,
    computed: ComputedAdvantages | undefined,
    options: ObjectiveComputeOptions,
  ): Promise<ObjectiveResult> {
    return this.#computeWith(batch, options, computed && { computed });
  }

  get #penalises(): boolean {
    return this.klPenaltyFn.term('token-mean', false) !== undefined;
  }

  get #rewardsTokens(): boolean {
    return this.advantageFn?.definition.inputs.includes('token_level_rewards') ?? false;
  }

  #masks(withEntropy: boolean): InputName[] {
    const separatesExperts =
      this.policyLossFn.reads.expertMask || (withEntropy && this.entropyLossFn.rows === 'usual');
    return separatesExperts ? ['action_mask', 'expert_mask'] : ['action_mask'];
  }

  #lacksAdvantages(batch: Batch | DeviceBatch): boolean {
    return this.advantageFn !== undefined && !this.#finder.has(batch, 'advantages');
  }

  #mayDrop(batch: Batch | DeviceBatch): boolean {
    return this.advantageFn?.definition.drops === true && this.#lacksAdvantages(batch);
  }

  async #computeWith(
    batch: Batch | DeviceBatch,
    options: ObjectiveComputeOptions,
    found: FoundAdvantages | undefined,
    conversions?: Conversions,
  ): Promise<ObjectiveResult> {
    const { evaluator, coefficients } = this.#prepare(batch, found !== undefined);
    const input = evaluator.read(batch, options.device, found?.computed, conversions);
    const gradients = this.#gradients(input.layout, options, batch);
    const result = await evaluator.evaluate<Metrics>(
      input,
      gradients,
      options.normalizer,
      coefficients(input.layout, options),
      options.signal,
      found?.onTheWay,
    );
    return toResult(result, gradients, input.layout, found);
  }

  async #advantages(
    batch: Batch | DeviceBatch,
    options: AdvantageComputeOptions,
    conversions?: Conversions,
  ): Promise<FoundAdvantages> {
    if (batch instanceof DeviceBatch) return this.#onTheWay(batch, options);
    const { computed, metrics } = await this.#advantagesOnHost(batch, options, conversions);
    return { computed, metrics: () => metrics };
  }

  async #advantagesOnHost(
    batch: Batch,
    options: AdvantageComputeOptions,
    conversions?: Conversions,
  ): Promise<MadeAdvantages> {
    const penalised = await this.penalised(batch);
    const { readsMaskedAdvantages } = this.policyLossFn;
    const made = await this.advantageFn!.computeFor(
      penalised.batch,
      ofAdvantages(options),
      readsMaskedAdvantages,
      conversions,
    );
    return { ...made, metrics: { ...made.metrics, ...penalised.metrics } };
  }

  #advantagesSync(
    batch: Batch | DeviceBatch,
    options: AdvantageComputeSyncOptions,
    conversions?: Conversions,
  ): FoundAdvantages {
    if (batch instanceof DeviceBatch) return this.#onTheWay(batch, options);
    const penalised: Penalised = this.#penalises
      ? penalisedBy(this.klPenaltyFn.applyKlPenaltyToRewardSync(this.#withScores(batch)), batch)
      : { batch, metrics: {} };
    const { readsMaskedAdvantages } = this.policyLossFn;
    const made = this.advantageFn!.computeForSync(
      penalised.batch,
      ofAdvantages(options),
      readsMaskedAdvantages,
      conversions,
    );
    return { computed: made.computed, metrics: () => ({ ...made.metrics, ...penalised.metrics }) };
  }

  #onTheWay(batch: DeviceBatch, options: AdvantageComputeSyncOptions): FoundAdvantages {
    if (this.#penalises)
      throw new LossError(
        'ERR_INVALID_INPUT',
        `expected a batch of the host, as rewards get a KL penalty there, and it lies on ${batch.device}`,
      );
    const { advantage, metrics, notFinite } = this.advantageFn!.onTheWay(batch, options);
    return { onTheWay: { advantage, notFinite }, metrics };
  }

  // The scores that a penalty is taken from: as given, else each row's reward on its last unmasked token.
  #withScores(batch: Batch): Batch {
    if (find(batch, this.#mapper.keys('token_level_scores'))) return batch;
    const rewards = find(batch, this.#mapper.keys('rewards'));
    if (!rewards) throw missingInput(this.#mapper, 'token_level_scores', 'a score per token, or rewards');
    const mask = findInput(batch, this.#mapper, 'action_mask');
    const layout = readLayout(batch, mask.value);
    const masks = readMask(mask.key, mask.value, layout, 'token');
    const perRow = readRowNumbers(rewards.key, rewards.value, layout.rows);
    return { ...batch, tokenLevelScores: onLastToken(perRow, masks, layout) };
  }

  #prepare(batch: Batch | DeviceBatch, computed: boolean) {
    const lacks = (column: ColumnName) => !this.#finder.has(batch, column);
    const kl =
      this.klLossFn.klCoef === 0 && lacks('ref_logprob')
        ? undefined
        : this.klLossFn.term(this.lossAggMode, !lacks('old_logprob'));
    const entropy =
      this.entropyLossFn.entropyCoef === 0 && lacks('entropy')
        ? undefined
        : this.entropyLossFn.term(this.lossAggMode);
    const key = `${kl?.name} ${entropy !== undefined} ${computed}`;
    let evaluator = this.#evaluators.get(key);
    if (!evaluator) {
      evaluator = this.#evaluator(kl, entropy, computed);
      this.#evaluators.set(key, evaluator);
    }
    const coefficients = (layout: Layout, { normalizer }: ObjectiveComputeSyncOptions): Coefficients => ({
      ...this.policyLossFn.coefficients(batch, layout, normalizer),
      klCoef: this.klLossFn.klCoef,
      entropyCoef: 0 - this.entropyLossFn.entropyCoef,
    });
    return { evaluator, coefficients };
  }

  #evaluator(
    kl: NativeFunctionSpec['kl'],
    entropy: NativeFunctionSpec['entropy'],
    computed: boolean,
  ): Evaluator {
    const columns = new Set<ColumnName>(this.policyLossFn.reads.columns);
    if (computed) columns.delete('advantages');
    if (kl) columns.add('ref_logprob');
    if (kl && this.klLossFn.usesOldLogprob && kl.name !== 'k3') columns.add('old_logprob');
    if (entropy) columns.add('entropy');
    const reader = new BatchReader(this.#mapper, {
      inputs: [...columns, ...this.#masks(entropy !== undefined)],
      perToken: ['logprob', 'entropy'],
    });
    const spec: NativeFunctionSpec = { policyLoss: this.policyLossFn.policyLoss };
    if (kl) spec.kl = kl;
    if (entropy) spec.entropy = entropy;
    return new Evaluator(spec, reader);
  }

  // Where there is no entropy term, the gradient by entropy is all zeros, and nobody need write them.
  #gradients(
    layout: Layout,
    { grad, gradEntropy }: ObjectiveComputeSyncOptions,
    batch: Batch | DeviceBatch,
  ): Gradients {
    const { rows, entropyCoef } = this.entropyLossFn;
    const depends = rows !== 'none' && entropyCoef !== 0 && this.#finder.has(batch, 'entropy');
    const wanted = gradEntropy ?? (depends && grad !== undefined && grad !== false);
    return { grad: gradArray(layout, grad), gradEntropy: gradArray(layout, wanted, 'gradEntropy') };
  }
}

// Advantages of a batch: computed already, or to be computed on the device where the batch lies.
interface FoundAdvantages {
  computed?: ComputedAdvantages;
  onTheWay?: OnTheWay;
  metrics?: () => Metrics;
}

/** @internal Advantages that were made of a host batch. */
export interface MadeAdvantages {
  computed: ComputedAdvantages;
  metrics: Metrics;
}

// A batch with penalised rewards.
interface Penalised {
  batch: Batch;
  metrics: Metrics;
}

function ofAdvantages({ seed, signal }: AdvantageComputeOptions): AdvantageComputeOptions {
  return { ...(seed !== undefined && { seed }), ...(signal !== undefined && { signal }) };
}

function penalisedBy({ tokenLevelRewards, metrics }: KlPenaltyResult, batch: Batch): Penalised {
  return {
    batch: { ...batch, tokenLevelRewards },
    metrics: { 'kl_penalty/kl': metrics.kl!, 'kl_penalty/kl_coef': metrics.kl_coef! },
  };
}

function toResult(
  { loss, metrics, grad }: Result,
  { gradEntropy }: Gradients,
  { tokens }: Layout,
  found: FoundAdvantages | undefined,
): ObjectiveResult {
  const result: ObjectiveResult = { loss, metrics: { ...metrics, ...found?.metrics?.() } };
  if (grad) result.grad = grad;
  if (gradEntropy) result.gradEntropy = gradEntropy;
  else if (grad) addZeros(result, tokens);
  return result;
}

// Zeros that are made when they are looked at: as many as tokens would otherwise be filled on the event loop.
function addZeros(result: ObjectiveResult, tokens: number): void {
  const shared = { configurable: true, enumerable: true };
  Object.defineProperty(result, 'gradEntropy', {
    ...shared,
    get() {
      const value = new Float32Array(tokens);
      Object.defineProperty(result, 'gradEntropy', { ...shared, value, writable: true });
      return value;
    },
  });
}

function onLastToken(rewards: Float64Array, mask: Uint8Array, layout: Layout): Float32Array {
  const scores = new Float32Array(layout.tokens);
  for (let row = 0; row < layout.rows; row++) {
    const begin = layout.offsets ? layout.offsets[row]! : row * layout.columns;
    let last = (layout.offsets ? layout.offsets[row + 1]! : begin + layout.columns) - 1;
    while (last >= begin && mask[last] === 0) last--;
    if (last >= begin) scores[last] = rewards[row]!;
  }
  return scores;
}

// loss_agg_mode reaches the policy loss too, where it aggregates and its own arguments do not say how.
function policyLossArgs(config: CheckedConfig & { policy_loss_fn: string }): FunctionArgs {
  const args = config.policy_loss_fn_args ?? {};
  const aggregates = 'loss_agg_mode' in POLICY_LOSS_FN.get(config.policy_loss_fn).defaultArgs();
  if (config.loss_agg_mode === undefined || !aggregates || names(args, 'loss_agg_mode')) return args;
  return { ...args, loss_agg_mode: config.loss_agg_mode };
}
