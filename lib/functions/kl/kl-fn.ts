// The base of all KL functions, the function that makes a class from a declaration, and the registry.
import type { NativeFunctionSpec } from '../../../binding.js';
import { fromNative } from '../../core/abortable.js';
import type { Batch } from '../../core/batch.js';
import { BatchReader, type Input, type InputName, readTokenFloats } from '../../core/batch-reader.js';
import type { Counts } from '../../core/counts.js';
import type { FunctionDeclaration, MetricSchema } from '../../core/declaration.js';
import { cudaIndex } from '../../core/device.js';
import type { DeviceBatch } from '../../core/device-batch.js';
import { allocate, describeValue, guarded, LossError } from '../../core/errors.js';
import {
  type ComputeOptions,
  type ComputeSyncOptions,
  countBatch,
  countBatchSync,
  Evaluator,
  gradArray,
  type Result,
} from '../../core/evaluator.js';
import { KeyMapper } from '../../core/key-mapper.js';
import { native } from '../../core/native.js';
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
  adaptive: {
    type: 'boolean',
    default: false,
    help: 'adapt the coefficient to keep the divergence near its target',
  },
  klCoef: {
    type: 'number',
    default: 0.001,
    typical: [0.001, 2],
    help: 'the KL loss and the penalty are multiplied by this',
  },
  targetKl: {
    type: 'number',
    above: 0,
    requiredWith: 'adaptive',
    help: 'the divergence that an adaptive coefficient aims at, in nats',
  },
  horizon: {
    type: 'number',
    above: 0,
    requiredWith: 'adaptive',
    help: 'the number of rows after which an adaptive coefficient has changed by about 20% at most',
  },
} as const;

/** Options of every KL function. */
export type KLOptions = OptionsOf<typeof OPTIONS> & {
  /** The framework whose key names batches may use, in addition to Trinity's; 'verl' by default. */
  backend?: string | undefined;
};

/** The declaration of a KL function. All have the same options and metrics. */
export interface KLDeclaration extends FunctionDeclaration {
  /** The native estimator; absent for `none`. */
  readonly estimator?: string;
  /** The native estimator for batches without old_logprob; by default the same one. */
  readonly estimatorWithoutOld?: string;
}

/** Options of calculateKlLossSync. */
export interface KlLossSyncOptions extends ComputeSyncOptions {
  /** 'token-mean' by default. */
  lossAggMode?: LossAggMode;
}
/** Options of calculateKlLoss. */
export interface KlLossOptions extends ComputeOptions {
  /** 'token-mean' by default. */
  lossAggMode?: LossAggMode;
}

/** Metrics of the KL loss: kl_loss before the coefficient, in nats, and the coefficient. `none` has no metrics. */
export type KLMetrics = Partial<Record<'kl_loss' | 'kl_coef', number>>;

/** The result of applyKlPenaltyToReward(). */
export interface KlPenaltyResult {
  /** [B, T] token_level_scores, minus klCoef·KL(old ‖ ref) at unmasked tokens. */
  tokenLevelRewards: Float32Array;
  /** kl in nats per token, averaged over rows, and the kl_coef that was used. `none` has no metrics. */
  metrics: Partial<Record<'kl' | 'kl_coef', number>>;
}

/**
 * A KL function: an estimate for each token of the policy's divergence from the reference, as a value, a loss or a
 * penalty in the reward. Abstract; each estimator is a subclass named as in Trinity-RFT.
 *
 * Reads logprob, ref_logprob and action_mask, and old_logprob if the estimator uses it; all in nats.
 *
 * Source: Trinity-RFT, trinity.algorithm.kl_fn; Schulman, "Approximating KL divergence" (2020).
 */
export abstract class KLFn {
  /** The framework whose key names batches may use, in addition to Trinity's. */
  readonly backend: string;
  /** Whether the coefficient adapts to the divergence. */
  readonly adaptive: boolean;
  /** The divergence that an adaptive coefficient aims at, in nats. */
  readonly targetKl: number | undefined;
  /** The number of rows after which an adaptive coefficient has changed by about 20% at most. */
  readonly horizon: number | undefined;
  /** @internal Whether the estimator uses the ratio to the policy that sampled. */
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
   * Used by {@link klClass}.
   * @internal
   * @throws LossError `ERR_INVALID_OPTION`, `ERR_UNKNOWN_NAME` for an unknown backend.
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

  /** Returns Trinity-RFT's default arguments (snake_case). */
  static defaultArgs(): TrinityArgs {
    return defaultArgsOf(OPTIONS);
  }

  /** The current coefficient of the KL loss and the penalty; updateKlCoef() changes it. */
  get klCoef(): number {
    return this.#klCoef;
  }

  /**
   * Estimates the divergence of each token, in nats: [B, T]. The mask is not read.
   * @param options.device where to compute a host batch; 'cpu' by default.
   * @returns rejects with the LossErrors of a policy loss's compute().
   */
  async calculateKl(batch: Batch | DeviceBatch, options?: { device?: string }): Promise<Float32Array> {
    const pass = guarded(() => this.#values(batch, options?.device));
    await run(pass);
    return pass.out;
  }

  /** Synchronous version of {@link calculateKl}. */
  calculateKlSync(batch: Batch | DeviceBatch): Float32Array {
    const pass = guarded(() => this.#values(batch, undefined));
    runSync(pass);
    return pass.out;
  }

  /**
   * Computes klCoef times the aggregated estimates, with the gradient with respect to logprob.
   * @returns rejects with the LossErrors of a policy loss's compute(), and for an unknown lossAggMode.
   */
  async calculateKlLoss(batch: Batch | DeviceBatch, options?: KlLossOptions): Promise<Result<KLMetrics>> {
    const evaluator = this.#evaluator(batch, options);
    return evaluator.compute(batch, options, () => ({ klCoef: this.#klCoef }));
  }

  /** Synchronous version of {@link calculateKlLoss}. */
  calculateKlLossSync(batch: Batch | DeviceBatch, options?: KlLossSyncOptions): Result<KLMetrics> {
    const evaluator = this.#evaluator(batch, options);
    return evaluator.computeSync(batch, options, () => ({ klCoef: this.#klCoef }));
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
   * @internal Returns the KL loss as a term of a native function; undefined for `none`.
   * @param hasOld whether the batch has old_logprob.
   */
  term(aggregation: LossAggMode, hasOld: boolean): NativeFunctionSpec['kl'] {
    const name = hasOld ? this.#estimator : this.#estimatorWithoutOld;
    return name === undefined ? undefined : { name, aggregation };
  }

  /**
   * Returns rewards with a KL penalty: token_level_scores − klCoef·KL of the old policy from the reference. Then adapts
   * the coefficient. Reads token_level_scores [B, T], old_logprob, ref_logprob and action_mask. Without ref_logprob the
   * rewards are the scores.
   * @param options.device where to compute; 'cpu' by default.
   */
  async applyKlPenaltyToReward(batch: Batch, options?: { device?: string }): Promise<KlPenaltyResult> {
    const penalty = guarded(() => this.#penalty(batch, options?.device));
    return this.#penaltyResult(penalty, penalty.pass ? await run(penalty.pass) : 0);
  }

  /** Synchronous version of {@link applyKlPenaltyToReward}. */
  applyKlPenaltyToRewardSync(batch: Batch): KlPenaltyResult {
    const penalty = guarded(() => this.#penalty(batch, undefined));
    return this.#penaltyResult(penalty, penalty.pass ? runSync(penalty.pass) : 0);
  }

  /**
   * Multiplies an adaptive coefficient by 1 + clip(currentKl / targetKl − 1, ±0.2)·batchSize / horizon.
   * @param currentKl in nats.
   * @param batchSize in rows.
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

  // The penalty treats the old policy as the current one, so the ratio between them is 1.
  get #penaltyEstimator(): string | undefined {
    return this.#estimatorWithoutOld;
  }

  #evaluator(batch: Batch | DeviceBatch, options: KlLossSyncOptions | undefined): Evaluator {
    const lossAggMode = guarded(() => options?.lossAggMode, 'ERR_INVALID_OPTION');
    const aggregation = checkLossAggMode(this.constructor.name, lossAggMode);
    const hasOld = guarded(() => this.#reader.has(batch, 'old_logprob'));
    const kl = this.term(aggregation, hasOld);
    const key = `${kl?.name ?? 'none'} ${aggregation}`;
    let evaluator = this.#evaluators.get(key);
    if (!evaluator) {
      evaluator = new Evaluator(kl ? { kl } : {}, this.#reader);
      this.#evaluators.set(key, evaluator);
    }
    return evaluator;
  }

  #values(batch: Batch | DeviceBatch, device: string | undefined): KlPass {
    const input = this.#valueReader.read(batch, device);
    const estimator = this.term('token-mean', this.#valueReader.has(batch, 'old_logprob'))?.name;
    return { estimator, input, out: gradArray(input.layout, true)!, base: undefined, scale: 0 };
  }

  #penalty(batch: Batch, device: string | undefined): KlPenalty {
    const { native: old, layout } = this.#penaltyReader.readHost(batch);
    const scores = readTokenFloats(batch, this.#mapper, 'token_level_scores', layout);
    const { rows } = layout;
    const [, oldLogprob, refLogprob] = old.data;
    const estimator = this.#penaltyEstimator;
    if (!refLogprob || !estimator)
      return { rows, pass: undefined, rewards: allocate('the rewards', () => scores.slice()) };
    const rewards = gradArray(layout, true)!;
    const native = {
      ...old,
      data: [oldLogprob, undefined, refLogprob, undefined, undefined],
      dtypes: [old.dtypes[1]!, 0, old.dtypes[2]!, 0, 0],
    };
    const input = { native, layout, device: cudaIndex(device) };
    return { rows, pass: { estimator, input, out: rewards, base: scores, scale: this.#klCoef }, rewards };
  }

  #penaltyResult({ rows, pass, rewards }: KlPenalty, kl: number): KlPenaltyResult {
    if (!this.#estimator) return { tokenLevelRewards: rewards, metrics: {} };
    const metrics = { kl, kl_coef: pass ? pass.scale : 0 };
    this.updateKlCoef(kl, rows);
    return { tokenLevelRewards: rewards, metrics };
  }
}

// The arguments of a native pass over KL values; see NativeBinding.kl.
interface KlPass {
  estimator: string | undefined;
  input: Input;
  out: Float32Array;
  base: Float32Array | undefined;
  scale: number;
}

interface KlPenalty {
  rows: number;
  pass: KlPass | undefined;
  rewards: Float32Array;
}

async function run({ estimator, input, out, base, scale }: KlPass): Promise<number> {
  if (!estimator) return 0;
  try {
    return await native.kl(estimator, input.native, out, base, scale, input.device);
  } catch (error) {
    throw fromNative(error);
  }
}

function runSync({ estimator, input, out, base, scale }: KlPass): number {
  if (!estimator) return 0;
  try {
    return native.klSync(estimator, input.native, out, base, scale, input.device);
  } catch (error) {
    throw fromNative(error);
  }
}

/** The class of a declared KL function. */
export interface KLClass<D extends KLDeclaration> {
  /** @throws LossError `ERR_INVALID_OPTION`: an unknown option, or adaptive without targetKl and horizon. */
  new (options?: KLOptions): KLFn;
  /** The KL function's declaration. */
  readonly declaration: D;
  /** Returns Trinity-RFT's default arguments (snake_case). */
  defaultArgs(): TrinityArgs;
}

const METRICS = {
  kl_loss: { unit: 'nats, before the coefficient' },
  kl_coef: { unit: 'coefficient' },
} as const satisfies MetricSchema;

type KLMetricsOf<D> = D extends { readonly estimator: string } ? typeof METRICS : Record<never, never>;

/** Makes the class of a declared KL function. */
export function klClass<const D extends Omit<KLDeclaration, 'options' | 'metrics'>>(own: D) {
  const declaration = {
    ...own,
    options: OPTIONS,
    metrics: (own.estimator === undefined ? {} : METRICS) as KLMetricsOf<D>,
  };
  const made: KLClass<D & { readonly options: typeof OPTIONS; readonly metrics: KLMetricsOf<D> }> =
    class extends KLFn {
      static readonly declaration = declaration;

      constructor(options: KLOptions = {}) {
        super(new.target.name, declaration, options);
      }
    };
  return made;
}

/** The KL functions by name. */
export const KL_FN = new Registry<KLFn>('KL function');
