import { allocate, describeValue, guarded, LossError } from '../base/errors.js';
import type { TrinityArgs } from '../base/options.js';
import { Registry } from '../base/registry.js';
import { inSlices, type Steps, takeLater, takeNow } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import { COLUMNS, type InputName, ROW_DATA } from '../batch/columns.js';
import { float32Of, type NativeColumn, PER_ROW, readMask } from '../batch/convert.js';
import { type Counts, type Normalizer, toNativeCounts } from '../batch/counts.js';
import { copyIntegers } from '../batch/integers.js';
import { KeyMapper } from '../batch/key-mapper.js';
import type { Layout } from '../batch/layout.js';
import { BatchReader, type HostInput, heldBatch, missingInput } from '../batch/reader.js';
import { nextInGroups } from '../batch/row-data.js';
import type { ComputeOptions, ComputeSyncOptions, Metrics } from '../call/calls.js';
import { countBatch } from '../call/count-batch.js';
import { Evaluator } from '../call/evaluator.js';
import { withHeldRequests } from '../call/gradients.js';
import { cudaIndex } from '../device/device.js';
import { DeviceBatch } from '../device/device-batch.js';
import { checkStream } from '../device/stream.js';
import { isOnDevice, type Logits, onePer, readOut, takeNowOnCpu } from '../logits/inputs.js';
import {
  checkIds,
  findLogitsInput,
  LOGITS_INPUT_NAMES,
  type LogitsInput,
  needed,
  readTokenLogits,
} from '../logits/loss-inputs.js';
import { maskOfOnes } from '../logits/vocabulary.js';
import type { LossProgram } from '../program/loss-program.js';
import { type Entries, isList, MARKS, TOKEN_NUMBERS } from './entries.js';
import type {
  LogitsLossBatch,
  LogitsLossBatchSync,
  LogitsLossComputeOptions,
  LogitsLossComputeSyncOptions,
  LogitsLossResult,
} from './logits-call.js';
import { type LogitsLossForm, overLists, overVocabulary, type ReadCall } from './logits-evaluation.js';
import { type HasInput, hasInput, splitParts } from './logits-parts.js';

/** The formulas and the inputs of a loss. */
export interface LogitsLossParts {
  /** The input by which the loss is differentiated. */
  readonly variable: 'logits' | 'probs';
  /** Returns the form for a batch. */
  readonly form: (has: HasInput) => LogitsLossForm;
  /** The programs whose derivatives by logprob are the weights of the tokens. */
  readonly weights: readonly LossProgram[];
  /** The columns with one value per token or row that the loss reads of a batch, and those that it reads if there are any. */
  readonly columns: readonly InputName[];
  readonly optional: readonly InputName[];
  /** The metrics that the parts of a batch lack. */
  readonly ofWholeBatch: readonly string[];
  /** The inputs that the loss reads. */
  readonly reads: readonly string[];
  /** Changes which tokens count, and may return a number for each. */
  readonly mask: ((mask: Uint8Array, inputs: MaskInputs) => Float32Array | undefined) | undefined;
}

/** The inputs from which a loss decides which tokens count. */
export interface MaskInputs {
  readonly layout: Layout;
  readonly batch: Batch;
  readonly mapper: KeyMapper;
  /** Returns a copy of the targets. */
  readonly targets: () => Int32Array;
  /** Returns a mask of the batch, one byte per token or row; undefined if the batch lacks it. */
  readonly flags: (name: LogitsInput, per: 'token' | 'row') => Uint8Array | undefined;
}

/**
 * A loss that is computed from logits, with the gradient with respect to them. It computes a loss for each token from its
 * logits, and aggregates these to one number. The class is abstract.
 */
export abstract class LogitsLossFn<M = Metrics> {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's. */
  readonly backend: string;
  /** @internal Whether the loss reduces over all rows, so that a batch cannot be computed in parts. */
  readonly readsWholeBatch: boolean;
  /** @internal The input by which the loss is differentiated. */
  readonly variable: 'logits' | 'probs';
  readonly #mapper: KeyMapper;
  readonly #selectKeys: readonly string[];
  readonly #made: LogitsLossParts;
  readonly #reader: BatchReader;
  readonly #counter: BatchReader;
  readonly #weights: readonly Evaluator[];
  readonly #evaluators = new Map<LossProgram, Evaluator>();

  /**
   * @internal
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  constructor(backend: string, made: LogitsLossParts) {
    const mapper = KeyMapper.get(backend);
    const ofWeights = made.weights.flatMap(({ columns, rowColumns }) => [...columns, ...rowColumns]);
    const optional = made.optional.filter((name) => !ofWeights.includes(name as never));
    const inputs = new Set<InputName>([...ofWeights, ...made.columns]);
    inputs.delete('logprob');
    inputs.delete(MARKS);
    this.backend = backend;
    this.#mapper = mapper;
    this.variable = made.variable;
    this.#made = made;
    this.#selectKeys = Object.freeze(made.reads.map((input) => mapper.fromTrinity(input)));
    this.#reader = new BatchReader(mapper, { inputs: [...inputs, 'action_mask'], optional, perToken: [] });
    this.#counter = new BatchReader(mapper, { inputs: ['action_mask'] });
    this.#weights = made.weights.map((program) => new Evaluator(specOf(program), this.#reader, 'gradValues'));
    this.readsWholeBatch = made.weights.some(({ readsWholeBatch }) => readsWholeBatch);
  }

  /** The batch keys that the loss reads in addition to its own input, under the names that the backend uses. */
  get selectKeys(): readonly string[] {
    return this.#selectKeys;
  }

  /** Returns the default arguments of the class, with their names in snake_case. */
  static defaultArgs(): TrinityArgs {
    return {};
  }

  /**
   * Computes the loss, its metrics and, if asked for with `gradLogits` or `grad`, its gradient with respect to the logits.
   * The work runs on a pool of threads, without blocking the event loop. Do not change, transfer or resize the batch's
   * arrays before the promise settles. On a device, logits in its memory have the same results as those in host memory.
   *
   * @returns the result. The promise rejects with a LossError of one of these codes: `ERR_MISSING_INPUT`,
   * `ERR_SHAPE_MISMATCH`, `ERR_INVALID_INPUT`, `ERR_INVALID_OPTION`, `ERR_DEVICE_UNAVAILABLE`, `ERR_OUT_OF_MEMORY`,
   * `ERR_ABORTED`.
   */
  compute(batch: LogitsLossBatch, options?: LogitsLossComputeOptions): Promise<LogitsLossResult<M>>;
  /** The same for a loss of any kind, of which TypeScript does not know what the batch must have. */
  compute(batch: Batch | DeviceBatch, options?: ComputeOptions): Promise<LogitsLossResult<M>>;
  compute(
    batch: Batch | DeviceBatch | LogitsLossBatch,
    options?: ComputeOptions | LogitsLossComputeOptions,
  ): Promise<LogitsLossResult<M>> {
    return takeLater(this.#compute(batch as LogitsLossBatch, options as LogitsLossComputeOptions), options);
  }

  /** Synchronous version of {@link compute}, for small batches and scripts. Its results have the same bits. */
  computeSync(batch: LogitsLossBatchSync, options?: LogitsLossComputeSyncOptions): LogitsLossResult<M>;
  /** The same for a loss of any kind. */
  computeSync(batch: Batch | DeviceBatch, options?: ComputeSyncOptions): LogitsLossResult<M>;
  computeSync(
    batch: Batch | DeviceBatch | LogitsLossBatchSync,
    options?: ComputeSyncOptions | LogitsLossComputeSyncOptions,
  ): LogitsLossResult<M> {
    return takeNowOnCpu(options, () =>
      this.#compute(batch as LogitsLossBatch, options as LogitsLossComputeOptions),
    );
  }

  /**
   * Counts a batch's tokens and rows. To compute a batch in several parts, count each part, add up the counts with
   * sumCounts(), and pass the sum as `normalizer` to the computation of every part.
   */
  count(batch: Batch): Promise<Counts> {
    return takeLater(this.#count(batch));
  }

  /** Synchronous version of {@link count}. */
  countSync(batch: Batch): Counts {
    return takeNow(this.#count(batch));
  }

  *#count(given: Batch): Steps<Counts> {
    if (!this.#made.mask) return yield* countBatch(this.#counter, given);
    checkHost(given);
    const batch = heldBatch(given, this.#mapper, LOGITS_INPUT_NAMES);
    const input = yield* this.#counter.read(batch);
    return yield* countBatch(this.#counter, batch, { mask: this.#changedMask(input, batch).mask });
  }

  // Returns the mask that the loss makes of the batch's, and its numbers for the tokens.
  #changedMask({ native: view, layout }: HostInput, batch: Batch) {
    const mask = allocate(`a mask of ${layout.tokens} tokens`, () => Uint8Array.from(view.mask!));
    return { mask, marks: this.#made.mask?.(mask, maskInputs(layout, batch, this.#mapper)) };
  }

  /**
   * Computes the loss and the metrics of a whole batch from its parts. They have the same bits however the batch is
   * divided, and in whatever order the parts are given.
   * @param parts the property `part` of each part's result. compute() returns it if the option `part` is true.
   * @param normalizer the counts of the whole batch, as for compute().
   * @throws LossError `ERR_INVALID_INPUT`, `ERR_INVALID_OPTION`
   */
  merge(
    parts: readonly ArrayLike<number>[],
    normalizer: Normalizer,
  ): Pick<LogitsLossResult<M>, 'loss' | 'metrics'> {
    return guarded(() => {
      this.#checkWhole({ part: true });
      const { tokens } = this.#checkedCounts(normalizer);
      const { has, width, sums } = splitParts(parts);
      const { program } = this.#made.form(has);
      const counts = { rows: tokens, tokens: tokens * width, columns: width };
      return this.#withoutMetricsOfWhole(this.#evaluatorOf(program).merge<M>(sums, counts));
    });
  }

  #withoutMetricsOfWhole<R extends { readonly metrics: unknown }>(result: R): R {
    const { ofWholeBatch } = this.#made;
    const kept = Object.entries(result.metrics as Metrics).filter(([name]) => !ofWholeBatch.includes(name));
    return { ...result, metrics: Object.fromEntries(kept) };
  }

  #checkedCounts(normalizer: Normalizer): Normalizer {
    toNativeCounts(normalizer, { rows: 0, rowLength: 0, tokens: 0, offsets: undefined }, false);
    return normalizer;
  }

  *#compute(given: LogitsLossBatch, options: LogitsLossComputeOptions = {}): Steps<LogitsLossResult<M>> {
    const call = yield* this.#read(given, withHeldRequests(options as object) as LogitsLossComputeOptions);
    const computed = isList(call.form.entries) ? yield* overLists(call) : yield* overVocabulary(call);
    const key = this.#made.variable === 'logits' ? 'gradLogits' : 'gradProbs';
    const isPart = call.wantsPart || call.normalizer !== undefined;
    const result: LogitsLossResult<Metrics> = isPart ? this.#withoutMetricsOfWhole(computed) : computed;
    if (call.out && !isOnDevice(call.out)) result[key] = resultOf(options, call.out.out);
    return result as LogitsLossResult<M>;
  }

  *#read(given: LogitsLossBatch, options: LogitsLossComputeOptions): Steps<ReadCall> {
    const mapper = this.#mapper;
    const { variable, form: formOf } = this.#made;
    const { device, stream, normalizer, part = false } = options;
    checkHost(given);
    this.#checkWhole(options);
    const index = cudaIndex(device);
    checkStream(stream, index);
    const batch = heldBatch(given, mapper, LOGITS_INPUT_NAMES);
    const { key } = needed(batch, mapper, variable);
    const input = yield* this.#reader.read(batch);
    const { layout } = input;
    const { tokens } = layout;
    const student = readTokenLogits(batch, mapper, variable, tokens, index);
    const vocabulary = student.width;
    const matrix = { ...student, rowStride: vocabulary, device: index };
    const form = formOf((name) => hasInput(batch, mapper, name));
    checkNamed(form.entries, vocabulary);
    for (const name of this.#made.optional)
      if (form.program.columns.includes(name as never) && !hasInput(batch, mapper, name))
        throw missingInput(mapper, name);
    const targets = form.entries.target ? yield* readTargets(batch, mapper, tokens) : undefined;
    const pairs = form.entries.pairs?.({
      ...maskInputs(layout, batch, mapper),
      mask: input.native.mask!,
      studentWidth: vocabulary,
      teacherWidth: readTokenLogits(batch, mapper, 'teacher_logits', tokens, index).width,
      ids: (name, width) => takeNow(readIds(batch, mapper, name, width)),
    });
    if (this.#made.mask) {
      const { mask, marks } = this.#changedMask(input, batch);
      input.native.mask = mask;
      if (marks) input.native.data[COLUMNS.indexOf(MARKS)] = marks;
    }
    const { weights, kept, count } = yield* this.#weigh(input, normalizer);
    if (targets) yield* checkIds('targets', targets, 1, { isCounted: kept, vocabulary, least: 0 });
    const numbers: (Float64Array | undefined)[] = new Array(ROW_DATA.length).fill(undefined);
    const set = (name: keyof typeof TOKEN_NUMBERS, of: Float64Array | undefined) => {
      numbers[ROW_DATA.indexOf(TOKEN_NUMBERS[name])] = of;
    };
    const filled = (x: number) => allocate(`${tokens} numbers`, () => new Float64Array(tokens).fill(x));
    set('weight', weights[0]);
    set('otherWeight', weights[1]);
    set('thirdWeight', weights[2]);
    set('tokens', filled(normalizer?.tokens ?? count));
    set('sequences', filled(normalizer?.rows ?? layout.rows));
    set('target', targets && Float64Array.from(targets));
    set('entropy', filled(0));
    if (form.program.rowColumns.includes('group_ids'))
      numbers[ROW_DATA.indexOf('group_ids')] = yield* nextInGroups(rowOfTokens(layout));
    return {
      batch,
      mapper,
      student,
      studentKey: key,
      matrix,
      tokens,
      vocabulary,
      kept,
      targets,
      pairs,
      stream,
      device: index,
      layout,
      form,
      evaluator: this.#evaluatorOf(form.program),
      columns: this.#columnsOf(input),
      numbers,
      normalizer,
      wantsPart: part,
      out: this.#outOf(options, { ...matrix, rows: tokens, vocabulary }, key),
    };
  }

  #outOf(
    { grad, gradLogits = grad }: LogitsLossComputeOptions,
    input: Parameters<typeof readOut>[1],
    key: string,
  ): ReadCall['out'] {
    if (gradLogits === undefined || gradLogits === false) return undefined;
    return readOut(gradLogits === true ? undefined : gradLogits, input, `grad of ${key}`);
  }

  // Computes the weights of the tokens in the batch. A token whose weights are all 0 is left out.
  *#weigh(
    { native: view, layout }: HostInput,
    normalizer: Normalizer | undefined,
  ): Steps<{ weights: Float64Array[]; kept: Uint32Array; count: number }> {
    const { tokens } = layout;
    const zeros = allocate(`${tokens} numbers`, () => new Float32Array(tokens));
    const batch = { ...view, data: view.data.with(0, zeros) };
    const input = { native: batch, layout, device: undefined, step: undefined };
    const weights: Float64Array[] = [];
    for (const evaluator of this.#weights) {
      const grad = allocate(`${tokens} numbers`, () => new Float32Array(tokens));
      yield* evaluator.evaluate({ input, gradients: { grad }, options: { normalizer }, coefficients: {} });
      weights.push(Float64Array.from(grad));
    }
    const kept = allocate(`${tokens} numbers`, () => new Uint32Array(tokens));
    const mask = view.mask!;
    let count = 0;
    yield* inSlices(tokens, (begin, end) => {
      for (let i = begin; i < end; i++) {
        if (mask[i] === 0) continue;
        count++;
        if (weights.some((weight) => weight[i] !== 0)) kept[i] = 1;
      }
    });
    return { weights, kept, count };
  }

  // Returns the columns of the batch with one value per token.
  #columnsOf({ native: view, layout }: HostInput): (NativeColumn | undefined)[] {
    return COLUMNS.map((_, i) => {
      const data = view.data[i];
      if (data === undefined) return undefined;
      const dtype = view.dtypes[i]!;
      if ((dtype & PER_ROW) === 0) return { data, dtype: dtype + PER_ROW };
      const values = float32Of({ data, dtype: dtype - PER_ROW }, 0, layout.rows);
      const perToken = allocate(`${layout.tokens} numbers`, () => new Float32Array(layout.tokens));
      for (let row = 0; row < layout.rows; row++) {
        const begin = layout.offsets?.[row] ?? row * layout.rowLength;
        const end = layout.offsets?.[row + 1] ?? begin + layout.rowLength;
        perToken.fill(values[row]!, begin, end);
      }
      return { data: perToken, dtype: PER_ROW };
    });
  }

  #evaluatorOf(program: LossProgram): Evaluator {
    const known = this.#evaluators.get(program);
    if (known) return known;
    const evaluator = new Evaluator(specOf(program), this.#reader, 'gradValues');
    this.#evaluators.set(program, evaluator);
    return evaluator;
  }

  #checkWhole({ normalizer, part }: LogitsLossComputeOptions): void {
    if (!this.readsWholeBatch || (normalizer === undefined && !part)) return;
    throw new LossError('ERR_INVALID_OPTION', {
      option: normalizer === undefined ? 'part' : 'normalizer',
      expected: 'the whole batch in one call, because the loss reduces over all rows',
      received: 'a part of a batch',
    });
  }
}

// Returns the row of each token.
function rowOfTokens({ tokens, rows, rowLength, offsets }: Layout): Int32Array {
  const rowOf = allocate(`${tokens} numbers`, () => new Int32Array(tokens));
  for (let row = 0; row < rows; row++) {
    const begin = offsets?.[row] ?? row * rowLength;
    rowOf.fill(row, begin, offsets?.[row + 1] ?? begin + rowLength);
  }
  return rowOf;
}

function specOf(program: LossProgram) {
  return { policyLoss: { program, metrics: program.metrics, aggregation: 'token-sum' } };
}

function resultOf({ gradLogits }: LogitsLossComputeOptions, out: Float32Array | Uint16Array): Logits {
  const isNew = gradLogits === undefined || typeof gradLogits === 'boolean';
  return isNew ? (out as Float32Array) : (gradLogits as Logits);
}

function maskInputs(layout: Layout, batch: Batch, mapper: KeyMapper): MaskInputs {
  return {
    layout,
    batch,
    mapper,
    targets: () => takeNow(readTargets(batch, mapper, layout.tokens)),
    flags: (name, per) => {
      const given = findLogitsInput(batch, mapper, name);
      return given && takeNow(readMask(given.key, given.value, layout, per));
    },
  };
}

// Reads token ids that are less than `width`.
function* readIds(
  batch: Batch,
  mapper: KeyMapper,
  name: LogitsInput,
  width: number,
): Steps<{ key: string; ids: Int32Array }> {
  const { key, value } = needed(batch, mapper, name);
  const ids = yield* copyIntegers(key, value, 0, () => {});
  yield* checkIds(key, ids, 1, { isCounted: maskOfOnes(ids.length), vocabulary: width, least: 0 });
  return { key, ids };
}

function checkNamed({ named }: Entries, vocabulary: number): void {
  const id = named?.ids.find((each) => each >= vocabulary);
  if (id !== undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      option: named!.option,
      expected: `token ids from 0 to ${vocabulary - 1}`,
      received: String(id),
    });
}

function readTargets(batch: Batch, mapper: KeyMapper, tokens: number): Steps<Int32Array> {
  const { key, value } = needed(batch, mapper, 'targets');
  return copyIntegers(key, value, -(2 ** 31), onePer('token', tokens));
}

function checkHost(batch: unknown): void {
  const isResident = batch instanceof DeviceBatch;
  if (typeof batch === 'object' && batch !== null && !isResident) return;
  throw new LossError('ERR_INVALID_INPUT', {
    at: 'batch',
    expected: 'an object with logits in host memory',
    received: isResident ? 'an uploaded batch' : describeValue(batch),
  });
}

type AnyMetrics = Partial<Record<string, number>>;
/** The registry of the losses that are computed from logits, by name. */
export const LOGITS_LOSS_FN = new Registry<LogitsLossFn<AnyMetrics>>('loss of logits');
