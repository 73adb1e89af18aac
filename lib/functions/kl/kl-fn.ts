// What all KL functions have in common.

import type { NativeFunctionSpec } from '../../../binding.js';
import { fromNative } from '../../core/abortable.js';
import { type Batch, find, HostReader, keysOf, missing, readFloat32 } from '../../core/batch.js';
import { BatchReader, type Input } from '../../core/batch-reader.js';
import type { Counts } from '../../core/counts.js';
import { cudaIndex } from '../../core/device.js';
import type { DeviceBatch } from '../../core/device-batch.js';
import { describeValue, guarded, LossError } from '../../core/errors.js';
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
import { checkLossAggMode, type LossAggMode, OptionReader, type TrinityArgs } from '../../core/options.js';

/** Options of every KL function. */
export interface KLOptions {
  /** Adapt the coefficient to keep the divergence near targetKl; false by default. */
  adaptive?: boolean | null | undefined;
  /** What the KL loss is multiplied by; 0.001 by default. */
  klCoef?: number | null | undefined;
  /** In nats; needed where adaptive. */
  targetKl?: number | null | undefined;
  /** In rows; needed where adaptive. */
  horizon?: number | null | undefined;
  /** Whose names the batch's keys may have, beside Trinity's; 'verl' by default. */
  backend?: string | undefined;
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

/** Metrics of the KL loss: kl_loss before the coefficient (nats), and the coefficient. None for `none`. */
export type KLMetrics = Partial<Record<'kl_loss' | 'kl_coef', number>>;

/** What applyKlPenaltyToReward gives. */
export interface KlPenaltyResult {
  /** [B, T] token_level_scores − klCoef·KL(old ‖ ref) of each unmasked token. */
  tokenLevelRewards: Float32Array;
  /** kl (nats per token, meaned over rows) and kl_coef (the one used). None for `none`. */
  metrics: Partial<Record<'kl' | 'kl_coef', number>>;
}

/**
 * A KL function: an estimate, per token, of the policy's divergence from the reference, as a value, as a loss or
 * as a penalty in the reward. Abstract; each estimator is a subclass, named as in Trinity-RFT.
 *
 * Batches: logprob, ref_logprob, action_mask, and old_logprob where the estimator takes it. All in nats.
 *
 * Source: Trinity-RFT, trinity.algorithm.kl_fn; Schulman, "Approximating KL divergence" (2020).
 */
export abstract class KLFn {
  /** Whose names the batch's keys may have, beside Trinity's. */
  readonly backend: string;
  /** Whether the coefficient follows the divergence. */
  readonly adaptive: boolean;
  /** The divergence that an adaptive coefficient aims at, in nats. */
  readonly targetKl: number | undefined;
  /** The rows over which an adaptive coefficient moves. */
  readonly horizon: number | undefined;
  #klCoef: number;
  readonly #estimator: string | undefined;
  readonly #reader: BatchReader;
  readonly #valueReader: BatchReader;
  readonly #counter: BatchReader;
  readonly #penaltyReader: HostReader;
  readonly #scoreKeys: readonly string[];
  readonly #evaluators = new Map<string, Evaluator>();

  /**
   * @param estimator the native estimator; undefined: none.
   * @throws LossError `ERR_INVALID_OPTION`: adaptive without targetKl and horizon, an unknown option.
   */
  constructor(owner: string, estimator: string | undefined, options: KLOptions = {}) {
    const reader = new OptionReader(owner, options);
    this.adaptive = reader.boolean('adaptive', false);
    this.#klCoef = reader.number('klCoef', 0.001);
    const positive = { holds: (x: number) => x > 0, says: 'above 0' };
    this.targetKl = reader.number('targetKl', undefined, positive);
    this.horizon = reader.number('horizon', undefined, positive);
    reader.end();
    if (this.adaptive && (this.targetKl === undefined || this.horizon === undefined))
      throw reader.invalid(
        this.targetKl === undefined ? 'targetKl' : 'horizon',
        'given for an adaptive coefficient',
      );
    this.backend = reader.backend;
    const mapper = KeyMapper.get(this.backend);
    this.#estimator = estimator;
    const columns = estimator ? (['logprob', 'ref_logprob'] as const) : [];
    const optional = this.takesOldLogprob ? (['old_logprob'] as const) : [];
    this.#reader = new BatchReader(mapper, { columns, optional });
    this.#valueReader = new BatchReader(mapper, { columns, optional, mask: false });
    this.#counter = new BatchReader(mapper, { columns: [] });
    this.#penaltyReader = new HostReader(mapper, {
      columns: ['old_logprob'],
      optional: ['ref_logprob'],
      perToken: ['old_logprob'],
    });
    this.#scoreKeys = keysOf(mapper, 'token_level_scores');
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static defaultArgs(): TrinityArgs {
    return { adaptive: false, kl_coef: 0.001 };
  }

  /** What the KL loss and the penalty are multiplied by now; updateKlCoef() changes it. */
  get klCoef(): number {
    return this.#klCoef;
  }

  /** @internal Whether the estimator corrects by the ratio to the policy that sampled. */
  get takesOldLogprob(): boolean {
    return false;
  }

  /**
   * The estimate of each token, in nats, [B, T]; the mask is not read.
   * @param options.device where to compute a host batch; 'cpu' by default.
   * @returns rejects with LossError as compute() of a policy loss does.
   */
  async calculateKl(batch: Batch | DeviceBatch, options?: { device?: string }): Promise<Float32Array> {
    const pass = guarded(() => this.#values(batch, options?.device));
    await run(pass);
    return pass.out;
  }

  /** The same at once. */
  calculateKlSync(batch: Batch | DeviceBatch): Float32Array {
    const pass = guarded(() => this.#values(batch, undefined));
    runSync(pass);
    return pass.out;
  }

  /**
   * klCoef times the aggregated estimates, with the gradient with respect to logprob.
   * @returns rejects with LossError as compute() of a policy loss does, and for an unknown lossAggMode.
   */
  async calculateKlLoss(batch: Batch | DeviceBatch, options?: KlLossOptions): Promise<Result<KLMetrics>> {
    const evaluator = this.#evaluator(batch, options);
    return evaluator.compute(batch, options, () => ({ klCoef: this.#klCoef }));
  }

  /** The same at once. */
  calculateKlLossSync(batch: Batch | DeviceBatch, options?: KlLossSyncOptions): Result<KLMetrics> {
    const evaluator = this.#evaluator(batch, options);
    return evaluator.computeSync(batch, options, () => ({ klCoef: this.#klCoef }));
  }

  /** A batch's counts. The sum of its parts' is what `normalizer` is to be when the parts are computed. */
  count(batch: Batch | DeviceBatch): Promise<Counts> {
    return countBatch(this.#counter, batch);
  }

  /** The same at once. */
  countSync(batch: Batch | DeviceBatch): Counts {
    return countBatchSync(this.#counter, batch);
  }

  /** @internal Its part of a native function, of a batch with old_logprob or without; undefined: none. */
  term(aggregation: LossAggMode, hasOld: boolean): NativeFunctionSpec['kl'] {
    const name = this.takesOldLogprob && !hasOld ? 'k3' : this.#estimator;
    return name === undefined ? undefined : { name, aggregation };
  }

  /**
   * Rewards with a KL penalty: token_level_scores − klCoef·KL of the old policy from the reference, and then the
   * coefficient is adapted. Reads token_level_scores [B, T], old_logprob, ref_logprob, action_mask. Without
   * ref_logprob the rewards are the scores.
   * @param options.device where to compute; 'cpu' by default.
   */
  async applyKlPenaltyToReward(batch: Batch, options?: { device?: string }): Promise<KlPenaltyResult> {
    const penalty = guarded(() => this.#penalty(batch, options?.device));
    return this.#penaltyResult(penalty, penalty.pass ? await run(penalty.pass) : 0);
  }

  /** The same at once. */
  applyKlPenaltyToRewardSync(batch: Batch): KlPenaltyResult {
    const penalty = guarded(() => this.#penalty(batch, undefined));
    return this.#penaltyResult(penalty, penalty.pass ? runSync(penalty.pass) : 0);
  }

  /**
   * Where adaptive: multiplies the coefficient by 1 + clip(currentKl / targetKl − 1, ±0.2)·batchSize / horizon.
   * @param currentKl in nats.
   * @param batchSize in rows.
   * @throws LossError `ERR_INVALID_INPUT` for what is no number.
   */
  updateKlCoef(currentKl: number, batchSize: number): void {
    for (const [name, value] of Object.entries({ currentKl, batchSize }))
      if (typeof value !== 'number')
        throw new LossError('ERR_INVALID_INPUT', `${name}: expected a number, not ${describeValue(value)}`);
    if (!this.adaptive) return;
    const error = Math.min(Math.max(currentKl / this.targetKl! - 1, -0.2), 0.2);
    this.#klCoef *= 1 + (error * batchSize) / this.horizon!;
  }

  // The old policy stands in for the current one, and there is no older one to correct by.
  get #penaltyEstimator(): string | undefined {
    return this.takesOldLogprob ? 'k3' : this.#estimator;
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
    const { native: old, layout } = this.#penaltyReader.read(batch);
    const found = find(batch, this.#scoreKeys);
    if (!found) throw missing(this.#scoreKeys, 'a score per token');
    const scores = readFloat32(found.key, found.value, layout);
    const { rows } = layout;
    const [, oldLogprob, refLogprob] = old.data;
    const estimator = this.#penaltyEstimator;
    if (!refLogprob || !estimator) return { rows, pass: undefined, rewards: scores.slice() };
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

// A native pass over KL values; see NativeBinding.kl.
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
