// The base class of all KL functions, the function that makes a subclass from a statement, and their registry.

import type { NativeFunctionSpec } from '../../binding.js';
import type { FunctionDeclaration, MetricSchema } from '../base/declaration.js';
import { allocate, describeValue, guarded, LossError } from '../base/errors.js';
import { native } from '../base/native.js';
import { checkLossAggMode, flag, number } from '../base/option.js';
import {
  backendOf,
  defaultArgsOf,
  type LossAggMode,
  type PassedOptions,
  readOptions,
  type TrinityArgs,
} from '../base/options.js';
import { Registry } from '../base/registry.js';
import { resultArray } from '../base/result-arrays.js';
import { type Steps, takeCall, takeLater, takeNow } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import type { InputName } from '../batch/columns.js';
import type { Counts, Normalizer } from '../batch/counts.js';
import { KeyMapper } from '../batch/key-mapper.js';
import { BatchReader, heldBatch, readTokenFloats } from '../batch/reader.js';
import type {
  ComputeOptions,
  ComputeSyncOptions,
  DeviceCallOptions,
  Requested,
  Requesting,
  Requests,
  Result,
} from '../call/calls.js';
import { countBatch } from '../call/count-batch.js';
import { Evaluator } from '../call/evaluator.js';
import { cudaIndex } from '../device/device.js';
import type { DeviceBatch } from '../device/device-batch.js';
import { hasInput, readInput } from '../device/input.js';
import { checkStream } from '../device/stream.js';
import { classOf, type FunctionClass } from './statement.js';

/** The options that KL functions declare. */
export const OPTIONS = {
  adaptive: flag({ default: false, help: 'adapt the coefficient to keep the divergence near its target' }),
  klCoef: number({
    default: 0.001,
    typical: [0.001, 2],
    help: 'the KL loss and the penalty are multiplied by this',
  }),
  targetKl: number({
    above: 0,
    requiredWith: 'adaptive',
    help: 'the divergence that an adaptive coefficient aims at, in nats',
  }),
  horizon: number({
    above: 0,
    requiredWith: 'adaptive',
    help: 'the number of rows after which an adaptive coefficient has changed by about 20% at most',
  }),
};

/** The options that every KL function accepts. */
export type KLOptions = PassedOptions<typeof OPTIONS> & {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's; 'verl' by default. */
  backend?: string | undefined;
};

/** The declaration of a KL function, as data. All KL functions have the same options. */
export interface KLDeclaration extends FunctionDeclaration {
  /** The name of the native estimator; absent for the KL function `none`. */
  readonly estimator?: string;
  /** The name of the native estimator for batches without old_logprob; by default the same as `estimator`. */
  readonly estimatorWithoutOld?: string;
}

/** Options of {@link KLFn.calculateKlLossSync}. */
export interface KlLossSyncOptions extends ComputeSyncOptions {
  /** How the estimates of the tokens become one number; 'token-mean' by default. */
  lossAggMode?: LossAggMode;
}
/** Options of {@link KLFn.calculateKlLoss}. */
export interface KlLossOptions extends ComputeOptions {
  /** How the estimates of the tokens become one number; 'token-mean' by default. */
  lossAggMode?: LossAggMode;
}

/**
 * The metrics of a KL loss: `kl_loss` is the aggregated estimate in nats, before it is multiplied by the coefficient;
 * `kl_coef` is the coefficient. The KL function `none` has no metrics.
 */
export type KLMetrics = Partial<Record<'kl_loss' | 'kl_coef', number>>;

/** The result of {@link KLFn.applyKlPenaltyToReward}. */
export interface KlPenaltyResult {
  /**
   * One reward per token, of shape [B, T] (rows × tokens), in the batch's layout: the token's score, minus klCoef times
   * the estimate of KL(old ‖ ref) if the token is unmasked.
   */
  tokenLevelRewards: Float32Array;
  /**
   * `kl` is the estimate in nats, averaged over each row's tokens and then over the rows. `kl_coef` is the coefficient
   * that was used. Both are 0 without ref_logprob. The KL function `none` has no metrics.
   */
  metrics: Partial<Record<'kl' | 'kl_coef', number>>;
}

/**
 * A KL function. It estimates for each token how far the policy diverges from the reference policy, in nats. It returns
 * the estimates themselves, a loss, or rewards from which the estimates are subtracted. The class is abstract; each
 * estimator is a subclass named as in Trinity-RFT.
 *
 * A KL function reads logprob, ref_logprob, action_mask and, if the estimator uses it, old_logprob. Log-probabilities
 * are natural logarithms.
 *
 * Source: Trinity-RFT, trinity.algorithm.kl_fn; Schulman, "Approximating KL divergence" (2020).
 */
export abstract class KLFn {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's. */
  readonly backend: string;
  /** Whether the coefficient is adapted to the measured divergence; see {@link updateKlCoef}. */
  readonly adaptive: boolean;
  /** The divergence, in nats, that an adaptive coefficient tries to maintain. */
  readonly targetKl: number | undefined;
  /** The number of rows in which an adaptive coefficient changes by about 20% at most. */
  readonly horizon: number | undefined;
  /**
   * @internal Whether the estimator uses the probability ratio between the current policy and the old one, which
   * sampled the rows.
   */
  readonly usesOldLogprob: boolean;
  #klCoef: number;
  readonly #estimator: string | undefined;
  readonly #estimatorWithoutOld: string | undefined;
  readonly #mapper: KeyMapper;
  readonly #reader: BatchReader;
  readonly #valueReader: BatchReader;
  readonly #counter: BatchReader;
  readonly #penaltyReader: BatchReader;
  readonly #evaluators = new Map<string, Evaluator>();

  /**
   * Called by the classes that {@link klFunction} makes.
   * @internal
   * @throws LossError `ERR_INVALID_OPTION` for an invalid option, `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(
    owner: string,
    {
      estimator,
      estimatorWithoutOld = estimator,
      reads,
    }: Pick<KLDeclaration, 'estimator' | 'estimatorWithoutOld' | 'reads'>,
    options: KLOptions,
  ) {
    const { adaptive, klCoef, targetKl, horizon } = readOptions(owner, OPTIONS, options);
    this.adaptive = adaptive;
    this.#klCoef = klCoef;
    this.targetKl = targetKl;
    this.horizon = horizon;
    this.backend = backendOf(options);
    this.usesOldLogprob = reads.includes('old_logprob');
    const mapper = KeyMapper.get(this.backend);
    this.#mapper = mapper;
    this.#estimator = estimator;
    this.#estimatorWithoutOld = estimatorWithoutOld;
    const inputs: InputName[] = estimator === undefined ? [] : ['logprob', 'ref_logprob'];
    const optional: InputName[] = this.usesOldLogprob ? ['old_logprob'] : [];
    this.#reader = new BatchReader(mapper, { inputs: [...inputs, 'action_mask'], optional });
    this.#valueReader = new BatchReader(mapper, { inputs, optional });
    this.#counter = new BatchReader(mapper, { inputs: ['action_mask'] });
    this.#penaltyReader = new BatchReader(mapper, {
      inputs: ['old_logprob', 'action_mask'],
      optional: ['ref_logprob'],
      perToken: ['old_logprob'],
    });
  }

  /** Returns Trinity-RFT's default arguments, with their names in snake_case. */
  static defaultArgs(): TrinityArgs {
    return defaultArgsOf(OPTIONS);
  }

  /**
   * The current coefficient of the KL loss and of the KL penalty. If it is adaptive, updateKlCoef() and
   * applyKlPenaltyToReward() change it.
   */
  get klCoef(): number {
    return this.#klCoef;
  }

  /**
   * Estimates the divergence at each token, in nats. It does not read the mask, so masked tokens get estimates too.
   * @returns one estimate per token, of shape [B, T] (rows × tokens), in the batch's layout. The promise rejects with
   * the LossErrors that PolicyLossFn.compute() lists.
   */
  async calculateKl(batch: Batch | DeviceBatch, options?: DeviceCallOptions): Promise<Float32Array> {
    return takeLater(this.#values(batch, options));
  }

  /** Synchronous version of {@link calculateKl}. */
  calculateKlSync(batch: Batch | DeviceBatch): Float32Array {
    return takeNow(this.#values(batch, undefined));
  }

  /**
   * Computes the KL loss, which is klCoef times the aggregated estimates, with its metrics and, if asked for, its
   * gradient with respect to logprob.
   * @returns the result. The promise rejects with the LossErrors that PolicyLossFn.compute() lists, or with
   * `ERR_INVALID_OPTION` for an unknown lossAggMode.
   */
  calculateKlLoss<R extends Requests>(
    batch: Batch | DeviceBatch,
    options: Requesting<R, KlLossOptions>,
  ): Promise<Result<KLMetrics> & Requested<R>>;
  /**
   * Computes the KL loss and its metrics. If the types of the options leave open whether a gradient is requested, it is
   * optional in the type of the result.
   */
  calculateKlLoss(batch: Batch | DeviceBatch, options?: KlLossOptions): Promise<Result<KLMetrics>>;
  async calculateKlLoss(batch: Batch | DeviceBatch, options?: KlLossOptions): Promise<Result<KLMetrics>> {
    return takeLater(this.#loss(batch, options), options);
  }

  /** Synchronous version of {@link calculateKlLoss}. */
  calculateKlLossSync<R extends Requests>(
    batch: Batch | DeviceBatch,
    options: Requesting<R, KlLossSyncOptions>,
  ): Result<KLMetrics> & Requested<R>;
  /** Synchronous version of {@link calculateKlLoss}. */
  calculateKlLossSync(batch: Batch | DeviceBatch, options?: KlLossSyncOptions): Result<KLMetrics>;
  calculateKlLossSync(batch: Batch | DeviceBatch, options?: KlLossSyncOptions): Result<KLMetrics> {
    return takeNow(this.#loss(batch, options));
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
   * Computes the KL loss and its metrics for a whole batch from its parts. They have the same bits however the batch is
   * divided, and in whatever order the parts are given.
   * @param parts the property `part` of each part's result. calculateKlLoss() returns it if the option `part` is true.
   * @param normalizer the counts of the whole batch, as for calculateKlLoss().
   * @throws LossError `ERR_INVALID_INPUT`, `ERR_INVALID_OPTION`
   */
  mergeKlLoss(parts: readonly ArrayLike<number>[], normalizer: Normalizer): Result<KLMetrics> {
    return this.#evaluatorOf('token-mean', true).merge(parts, normalizer);
  }

  /**
   * @internal Returns the KL loss's part of a native function's specification; undefined for the KL function `none`.
   * @param hasOld whether the batch has old_logprob.
   */
  term(aggregation: LossAggMode, hasOld: boolean): NativeFunctionSpec['kl'] {
    const name = hasOld ? this.#estimator : this.#estimatorWithoutOld;
    return name === undefined ? undefined : { name, aggregation };
  }

  /**
   * Subtracts a KL penalty from the scores. The penalty of a token is klCoef times the estimated divergence of the old
   * policy, which sampled the rows, from the reference policy. Afterwards, adapts the coefficient if it is adaptive.
   *
   * Reads token_level_scores, old_logprob, action_mask and, if the batch has it, ref_logprob. Each has the shape [B, T]
   * (rows × tokens). Without ref_logprob the rewards equal the scores.
   */
  async applyKlPenaltyToReward(batch: Batch, options?: DeviceCallOptions): Promise<KlPenaltyResult> {
    return takeLater(this.penalise(batch, options));
  }

  /** Synchronous version of {@link applyKlPenaltyToReward}. */
  applyKlPenaltyToRewardSync(batch: Batch): KlPenaltyResult {
    return takeNow(this.penalise(batch));
  }

  /**
   * Multiplies the coefficient by 1 + clip(currentKl / targetKl − 1, −0.2, 0.2)·batchSize / horizon if it is adaptive.
   * Otherwise does nothing.
   * @param currentKl the measured divergence, in nats.
   * @param batchSize the number of rows on which the divergence was measured.
   * @throws LossError `ERR_INVALID_INPUT` if an argument is not a number.
   */
  updateKlCoef(currentKl: number, batchSize: number): void {
    for (const [name, value] of Object.entries({ currentKl, batchSize }))
      if (typeof value !== 'number')
        throw new LossError('ERR_INVALID_INPUT', {
          key: name,
          expected: 'a number',
          received: describeValue(value),
        });
    if (!this.adaptive) return;
    const error = Math.min(Math.max(currentKl / this.targetKl! - 1, -0.2), 0.2);
    this.#klCoef *= 1 + (error * batchSize) / this.horizon!;
  }

  // The penalty measures the old policy itself, so old_logprob takes the place of logprob. The ratio between the two is
  // then 1, and the estimator that does without old_logprob gives the right value.
  get #penaltyEstimator(): string | undefined {
    return this.#estimatorWithoutOld;
  }

  *#loss(batch: Batch | DeviceBatch, options: KlLossSyncOptions | undefined): Steps<Result<KLMetrics>> {
    const lossAggMode = guarded(() => options?.lossAggMode, 'ERR_INVALID_OPTION');
    const aggregation = checkLossAggMode(this.constructor.name, lossAggMode);
    const evaluator = this.#evaluatorOf(aggregation, hasInput(this.#reader, batch, 'old_logprob'));
    return yield* evaluator.compute(batch, options, () => ({ klCoef: this.#klCoef }));
  }

  #evaluatorOf(aggregation: LossAggMode, hasOld: boolean): Evaluator {
    const kl = this.term(aggregation, hasOld);
    const key = `${kl?.name ?? 'none'} ${aggregation}`;
    let evaluator = this.#evaluators.get(key);
    if (!evaluator) {
      evaluator = new Evaluator(kl ? { kl } : {}, this.#reader);
      this.#evaluators.set(key, evaluator);
    }
    return evaluator;
  }

  *#values(batch: Batch | DeviceBatch, options: DeviceCallOptions | undefined): Steps<Float32Array> {
    const { device, stream } = options ?? {};
    const estimator = this.term('token-mean', hasInput(this.#valueReader, batch, 'old_logprob'))?.name;
    const input = yield* readInput(this.#valueReader, batch, device);
    const { tokens } = input.layout;
    checkStream(stream, input.resident?.device ?? input.device);
    const what = `KL values of ${tokens} tokens`;
    if (!estimator) return allocate(what, () => new Float32Array(tokens));
    const out = resultArray(what, tokens);
    const place = { batch: input.native, device: input.device, stream };
    yield* takeCall(native.kl, { estimator, ...place, out, base: undefined, scale: 0 });
    return out;
  }

  /** @internal Implements {@link applyKlPenaltyToReward}. */
  *penalise(given: Batch, options?: DeviceCallOptions): Steps<KlPenaltyResult> {
    const { device, stream } = options ?? {};
    const batch = heldBatch(given, this.#mapper);
    const { native: old, layout } = yield* this.#penaltyReader.read(batch);
    const scores = yield* readTokenFloats(batch, this.#mapper, 'token_level_scores', layout);
    const [, oldLogprob, refLogprob] = old.data;
    const estimator = this.#penaltyEstimator;
    if (!refLogprob || !estimator) {
      const tokenLevelRewards = allocate('the rewards', () => scores.slice());
      return { tokenLevelRewards, metrics: this.#penaltyMetrics(0, 0, layout.rows) };
    }
    const index = cudaIndex(device);
    checkStream(stream, index);
    const tokenLevelRewards = resultArray('the rewards', layout.tokens);
    const scale = this.#klCoef;
    const data = [oldLogprob, undefined, refLogprob];
    const kl = yield* takeCall(native.kl, {
      estimator,
      batch: { ...old, data, dtypes: [old.dtypes[1]!, 0, old.dtypes[2]!] },
      device: index,
      stream,
      out: tokenLevelRewards,
      base: scores,
      scale,
    });
    return { tokenLevelRewards, metrics: this.#penaltyMetrics(kl, scale, layout.rows) };
  }

  // Returns the metrics of a penalty, and adapts the coefficient to it.
  #penaltyMetrics(kl: number, coefficient: number, rows: number): KlPenaltyResult['metrics'] {
    if (!this.#estimator) return {};
    this.updateKlCoef(kl, rows);
    return { kl, kl_coef: coefficient };
  }
}

const METRICS: MetricSchema = {
  kl_loss: { unit: 'nats, before the coefficient' },
  kl_coef: { unit: 'coefficient' },
};

/** The statement of a KL function. All KL functions have the same options and metrics. */
interface Statement<N extends string> extends Omit<KLDeclaration, 'name' | 'options' | 'metrics'> {
  readonly name: N;
}

/** Makes a class of KL functions: `export class X extends klFunction({ … }) {}`. */
export function klFunction<const N extends string>(
  statement: Statement<N>,
): FunctionClass<KLFn, KLDeclaration, N, typeof OPTIONS, { backend?: string | undefined }> {
  const metrics = statement.estimator === undefined ? {} : METRICS;
  const declaration = { ...statement, options: OPTIONS, metrics };
  return classOf(KLFn, declaration, (owner, options) => [owner, declaration, options]) as never;
}

/** The registry of the KL functions, by name. */
export const KL_FN = new Registry<KLFn>('KL function');
