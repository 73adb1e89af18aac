// The base classes of the losses that are not differentiated by log-probabilities: those of a critic's values and those of
// a reward model's rewards. column-loss.ts makes the subclasses.
import type { NativeFunctionSpec } from '../../binding.js';
import type { LossAggMode, TrinityArgs } from '../base/options.js';
import { Registry } from '../base/registry.js';
import { type Steps, takeLater, takeNow } from '../base/steps.js';
import { type Batch, find } from '../batch/batch.js';
import type { ColumnName, InputName } from '../batch/columns.js';
import type { Counts, Normalizer } from '../batch/counts.js';
import { KeyMapper } from '../batch/key-mapper.js';
import { BatchReader, type Reads } from '../batch/reader.js';
import type {
  ComputeOptions,
  ComputeSyncOptions,
  Metrics,
  RequestedOf,
  Requesting,
  Requests,
  Result,
  ResultOf,
} from '../call/calls.js';
import { countBatch } from '../call/count-batch.js';
import { Evaluator } from '../call/evaluator.js';
import type { Forms } from '../call/forms.js';
import { DeviceBatch } from '../device/device-batch.js';
import { heldInput, readInput } from '../device/input.js';
import type { Variable } from '../program/graph.js';
import type { LossProgram } from '../program/loss-program.js';

/** Options that every loss accepts. */
export interface ColumnLossOptions {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's; 'verl' by default. */
  backend?: string | undefined;
}

/** The compiled forms of a loss. */
export interface ProgramForms {
  readonly program: LossProgram;
  /** Returns the program for batches with token_weights. Undefined if the loss does not read them. */
  readonly weighted?: (() => LossProgram) | undefined;
}

/** All that is compiled of a loss. */
export interface ColumnLossPrograms extends ProgramForms {
  /** The forms without metrics of the batch, which compute parts of it. By default, the same forms compute parts too. */
  readonly ofParts?: ProgramForms | undefined;
  /** Computes metrics of the batch over the tokens of attention_mask. */
  readonly attended?: LossProgram | undefined;
  /** The input that the loss reads in place of group_ids. */
  readonly groups?: InputName | undefined;
  /** How the losses of the tokens become one number; 'token-sum' if absent. */
  readonly aggregation?: LossAggMode | undefined;
}

const WEIGHTS_OF_ROWS = {
  input: 'token_weights',
  reason: 'the loss of a row is not a sum over its tokens',
} as const;

/**
 * A loss with the gradient K, by one column of the batch. It computes a loss for each token or row, aggregates these to
 * one number, and computes metrics. The class is abstract.
 */
export abstract class ColumnLossFn<K extends 'gradValues' | 'gradRewards', M = Metrics> {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's. */
  readonly backend: string;
  /** @internal Whether the loss compares pairs of rows, which must stay in the same part of a batch. */
  readonly readsPairs: boolean;
  /** @internal Whether the loss reduces over all rows, so that a batch cannot be computed in parts. */
  readonly readsWholeBatch: boolean;
  /** @internal Whether the loss depends on the length of the rows, so that more padding changes it. */
  readonly readsRowLength: boolean;
  /** @internal What native code takes. */
  readonly spec: NativeFunctionSpec;
  /** @internal The columns and the numbers of rows that the loss reads from a batch. */
  readonly reads: { readonly columns: readonly ColumnName[]; readonly rowColumns: readonly InputName[] };
  readonly #mapper: KeyMapper;
  readonly #selectKeys: readonly string[];
  readonly #evaluator: Evaluator;
  readonly #partEvaluator: Evaluator;
  readonly #counter: BatchReader;
  readonly #attended: { evaluator: Evaluator; inputs: readonly InputName[] } | undefined;

  /**
   * @internal
   * @param variable the column by which the loss is differentiated.
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(
    variable: Exclude<Variable, 'logprob'>,
    backend: string,
    { program, weighted, ofParts, attended, groups, aggregation = 'token-sum' }: ColumnLossPrograms,
  ) {
    const ofRows = variable === 'rewards';
    const rowsOf = (of: LossProgram): InputName[] =>
      of.rowColumns.map((input) => (groups && input === 'group_ids' ? groups : input));
    const inputs = (of: LossProgram): InputName[] => {
      const others = [...of.columns, ...rowsOf(of)].filter((input) => input !== variable);
      return [variable, ...others];
    };
    const mask: InputName[] = ofRows ? [] : ['action_mask'];
    const keys = [...inputs(program), ...(attended ? (['attention_mask'] as const) : []), ...mask];
    const mapper = KeyMapper.get(backend);
    const reads = { ofRows, perToken: [variable] } as const satisfies Partial<Reads>;
    const isUnweighted = !ofRows && !weighted && !program.columns.includes('token_weights');
    const reader = new BatchReader(mapper, {
      ...reads,
      inputs: [...inputs(program), ...mask],
      optional: weighted ? ['token_weights'] : [],
      ...(isUnweighted && { refused: WEIGHTS_OF_ROWS }),
    });
    const key = ofRows ? 'gradRewards' : 'gradValues';
    this.backend = backend;
    this.readsPairs = program.readsPairs;
    this.readsRowLength = program.readsRowLength || aggregation === 'seq-mean-token-sum-norm';
    this.spec = specOf(program, aggregation);
    this.reads = { columns: program.columns, rowColumns: rowsOf(program) };
    this.#mapper = mapper;
    this.#selectKeys = Object.freeze(keys.slice(1).map((input) => mapper.fromTrinity(input)));
    const evaluatorOf = (of: ProgramForms): Evaluator => {
      const first = specOf(of.program, aggregation);
      const forms: Forms | undefined = of.weighted && {
        optional: ['token_weights'],
        perRow: [],
        spec: (form) => (form === 0 ? first : specOf(of.weighted!(), aggregation)),
      };
      return new Evaluator(forms ?? first, reader, key);
    };
    this.#evaluator = evaluatorOf({ program, weighted });
    this.#partEvaluator = ofParts ? evaluatorOf(ofParts) : this.#evaluator;
    this.readsWholeBatch = this.#partEvaluator.readsWholeBatch;
    this.#counter = new BatchReader(mapper, {
      ...reads,
      inputs: ofRows ? ['rewards'] : mask,
    });
    this.#attended = attended && {
      evaluator: new Evaluator(specOf(attended, aggregation), reader, key),
      inputs: inputs(attended),
    };
  }

  /** The batch keys that the loss reads in addition to its own column, under the names that the backend uses. */
  get selectKeys(): readonly string[] {
    return this.#selectKeys;
  }

  /** Returns the default arguments of the class, with their names in snake_case. */
  static defaultArgs(): TrinityArgs {
    return {};
  }

  /**
   * Computes the loss, its metrics and, if asked for with `grad`, its gradient. The work runs on a pool of threads, without
   * blocking the event loop. Do not change, transfer or resize the batch's arrays before the promise settles.
   *
   * @returns the result. The promise rejects with a LossError of one of these codes: `ERR_MISSING_INPUT`,
   * `ERR_SHAPE_MISMATCH`, `ERR_INVALID_INPUT`, `ERR_INVALID_OPTION`, `ERR_DEVICE_UNAVAILABLE`, `ERR_OUT_OF_MEMORY`,
   * `ERR_ABORTED`.
   */
  compute<R extends Pick<Requests, 'grad' | 'part'>>(
    batch: Batch | DeviceBatch,
    options: Requesting<R, ComputeOptions>,
  ): Promise<ResultOf<K, M> & RequestedOf<K, R>>;
  /** Computes the loss and its metrics. The gradient is optional in the type of the result. */
  compute(batch: Batch | DeviceBatch, options?: ComputeOptions): Promise<ResultOf<K, M>>;
  compute(batch: Batch | DeviceBatch, options?: ComputeOptions): Promise<ResultOf<K, M>> {
    return takeLater(this.#compute(batch, options), options);
  }

  /** Synchronous version of {@link compute}, for small batches and scripts. Its results have the same bits. */
  computeSync<R extends Pick<Requests, 'grad' | 'part'>>(
    batch: Batch | DeviceBatch,
    options: Requesting<R, ComputeSyncOptions>,
  ): ResultOf<K, M> & RequestedOf<K, R>;
  /** Synchronous version of {@link compute}. */
  computeSync(batch: Batch | DeviceBatch, options?: ComputeSyncOptions): ResultOf<K, M>;
  computeSync(batch: Batch | DeviceBatch, options?: ComputeSyncOptions): ResultOf<K, M> {
    return takeNow(this.#compute(batch, options));
  }

  *#compute(given: Batch | DeviceBatch, options: ComputeOptions | undefined): Steps<ResultOf<K, M>> {
    const attended = this.#attended;
    const batch = attended ? heldInput(given, this.#mapper) : given;
    const isPart = options?.normalizer !== undefined || options?.part === true;
    const evaluator = isPart ? this.#partEvaluator : this.#evaluator;
    const result: Result<Metrics> = yield* evaluator.compute(batch, options, () => ({}));
    if (attended && !isPart && !(batch instanceof DeviceBatch)) {
      const metrics = yield* this.#overAttention(attended, batch, options);
      Object.assign(result.metrics, metrics);
    }
    return result as ResultOf<K, M>;
  }

  *#overAttention(
    { evaluator, inputs }: { evaluator: Evaluator; inputs: readonly InputName[] },
    batch: Batch,
    { device, stream }: ComputeOptions = {},
  ): Steps<Metrics> {
    const hasMask = find(batch, this.#mapper.keys('attention_mask')) !== undefined;
    const mask = hasMask ? 'attention_mask' : 'action_mask';
    const reader = new BatchReader(this.#mapper, { inputs: [...inputs, mask] });
    const input = yield* readInput(reader, batch, device);
    const call = { input, gradients: {}, options: { stream }, coefficients: {} };
    return (yield* evaluator.evaluate<Metrics>(call)).metrics;
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
   * Computes the loss and the metrics of a whole batch from its parts. They have the same bits however the batch is
   * divided, and in whatever order the parts are given.
   * @param parts the property `part` of each part's result. compute() returns it if the option `part` is true.
   * @param normalizer the counts of the whole batch, as for compute().
   * @throws LossError `ERR_INVALID_INPUT`, `ERR_INVALID_OPTION`
   */
  merge(parts: readonly ArrayLike<number>[], normalizer: Normalizer): Pick<Result<M>, 'loss' | 'metrics'> {
    return this.#partEvaluator.merge(parts, normalizer);
  }
}

function specOf(program: LossProgram, aggregation: LossAggMode): NativeFunctionSpec {
  return { policyLoss: { program, metrics: program.metrics, aggregation } };
}

/**
 * A loss of a critic's values. Its gradient, `gradValues`, has one number per token. The class is abstract.
 */
export abstract class ValueLossFn<M = Metrics> extends ColumnLossFn<'gradValues', M> {}

/**
 * A loss of a reward model, over pairs of rows: a chosen one, and after it a rejected one. It reads no tokens, so a batch
 * needs no shape. Its gradient, `gradRewards`, has one number per row, in float32 in host memory. The class is abstract.
 */
export abstract class RewardLossFn<M = Metrics> extends ColumnLossFn<'gradRewards', M> {}

type AnyMetrics = Partial<Record<string, number>>;
/** The registry of the value losses, by name. */
export const VALUE_LOSS_FN = new Registry<ValueLossFn<AnyMetrics>>('value loss');
/** The registry of the losses of reward models, by name. */
export const REWARD_LOSS_FN = new Registry<RewardLossFn<AnyMetrics>>('reward loss');
