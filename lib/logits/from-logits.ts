// From logits to a loss and, if wanted, back to the gradient with respect to the logits, in one call.
import type { NativeLogits } from '../../binding.js';
import { abortable, fromNative } from '../core/abortable.js';
import { type Batch, find } from '../core/batch.js';
import { findInput } from '../core/batch-reader.js';
import type { LossComputeOptions, LossComputeSyncOptions, LossResult } from '../core/calls.js';
import { readMask } from '../core/columns.js';
import { cudaIndex } from '../core/device.js';
import { DeviceBatch } from '../core/device-batch.js';
import { allocate, describeValue, guarded, guardedAsync, LossError } from '../core/errors.js';
import type { ReadLoss } from '../core/evaluator.js';
import { copyIntegers } from '../core/integers.js';
import type { KeyMapper } from '../core/key-mapper.js';
import { readLayout } from '../core/layout.js';
import { native } from '../core/native.js';
import { finish, finishInTurns, inSlices, type Sliced } from '../core/slices.js';
import { checkStream } from '../core/stream.js';
import {
  type AsyncLogitsBlocks,
  type Block,
  type LogitsBlocks,
  type LogitsSource,
  readSource,
} from './blocks.js';
import type { NativeDeviceOut } from './device-logits.js';
import {
  checkApart,
  type DeviceLogits,
  IGNORED,
  type Logits,
  type LogitsOptions,
  type NativeOut,
  type NativeRows,
  readOut,
  readRows,
  refuseDevice,
} from './inputs.js';
import { perform, type Step, type Steps, takeLater, takeNow } from './steps.js';

/** What a batch has in place of log-probabilities and entropies. There is one row of logits for each token. */
export interface LogitsColumns<Source>
  extends Pick<LogitsOptions, 'temperature' | 'softcap' | 'support' | 'rowStride'> {
  /** Shape [B, T, V]: the logits from which the model chose each token. Those of masked tokens are not read. */
  logits: Source;
  /** Shape [B, T]: the tokens that were sampled. Those that are masked may be any whole numbers. */
  targets: LogitsOptions['targets'];
  /** V. If the logits are one array without a `rowStride`, the default is its length divided by the number of tokens. */
  vocabulary?: number | undefined;
}

/** A batch for fromLogitsSync(), without log-probabilities and entropies. */
export type LogitsBatchSync = Omit<Batch, 'logprob' | 'log_prob' | 'entropy'> &
  LogitsColumns<Logits | LogitsBlocks>;

/** A batch for fromLogits(), without log-probabilities and entropies. */
export type LogitsBatch = Omit<Batch, 'logprob' | 'log_prob' | 'entropy'> &
  LogitsColumns<Logits | DeviceLogits | AsyncLogitsBlocks>;

/** Options of fromLogitsSync(). */
export interface FromLogitsSyncOptions extends LossComputeSyncOptions {
  /** true returns the entropies, and passes them to an objective that could do without them. */
  entropy?: boolean | undefined;
  /**
   * Requests the gradient of the loss with respect to the logits: true for a new Float32Array of shape [B, T, V], or an
   * array that receives it, as `out` of logprobsBackward() does. It may be the logits' own memory. Logits that come in
   * blocks need a function instead: the gradient of each block replaces the block's logits, and then the function is
   * called with the block and the index of its first token.
   */
  gradLogits?: boolean | Logits | ((gradient: Logits, firstToken: number) => unknown) | undefined;
}

/** Options of fromLogits(). If `gradLogits` is a function that returns a promise, the call waits for it. */
export interface FromLogitsOptions
  extends Omit<FromLogitsSyncOptions, 'gradLogits'>,
    Pick<LossComputeOptions, 'device' | 'stream' | 'signal'> {
  /** As in {@link FromLogitsSyncOptions}. On a device, it may also be memory of the device, such as that of the logits. */
  gradLogits?: FromLogitsSyncOptions['gradLogits'] | DeviceLogits;
}

/** What fromLogits() returns in addition to the result of the loss. */
export interface LogitsResult {
  /** Shape [B, T]: the log-probability of each target; 0 if the token is masked. */
  logprob: Float32Array;
  /** Shape [B, T]: the entropies, if the loss reads them or the call requested them; 0 if the token is masked. */
  entropy?: Float32Array;
  /** Shape [B, T, V]: the gradient with respect to the logits, if the call requested it in one array of the host. */
  gradLogits?: Logits;
}

/** @internal A loss or an objective, as fromLogits() needs it. */
export interface LossOfLogits<R> {
  readonly mapper: KeyMapper;
  /** Whether it reads entropies. */
  readonly needsEntropy: boolean;
  /** Whether a call with `grad` must request `gradEntropy` too. */
  readonly requestsGradEntropy: boolean;
  /** Returns whether something is computed from the log-probabilities of all tokens before the loss itself. */
  needsLogprobFirst(batch: Batch): boolean;
  read(batch: Batch, options: LossComputeOptions): Promise<ReadLoss<R>>;
  readSync(batch: Batch, options: LossComputeSyncOptions): ReadLoss<R>;
}

/** @internal Implements fromLogits() of losses and objectives. */
export function fromLogits<R extends LossResult<unknown>>(
  loss: LossOfLogits<R>,
  batch: LogitsBatch,
  options: FromLogitsOptions | undefined,
): Promise<R & LogitsResult> {
  return guardedAsync(() => {
    const signal = options?.signal;
    return finishInTurns(read(loss, batch, options ?? {}), signal, (call) => call);
  }).then((call) => takeLater(compute(loss, call)));
}

/** @internal Implements fromLogitsSync() of losses and objectives. */
export function fromLogitsSync<R extends LossResult<unknown>>(
  loss: LossOfLogits<R>,
  batch: LogitsBatchSync,
  options: FromLogitsSyncOptions | undefined,
): R & LogitsResult {
  const call = guarded(() => {
    refuseDevice((options as FromLogitsOptions | undefined)?.device);
    return finish(read(loss, batch, options ?? {}));
  });
  return takeNow(compute(loss, call));
}

// A call whose arguments were read.
interface Call {
  // The batch with arrays to which the log-probabilities and entropies are written.
  batch: Batch;
  logprob: Float32Array;
  entropy: Float32Array | undefined;
  rows: NativeRows;
  source: LogitsSource;
  out: Out | undefined;
  lossOptions: LossComputeOptions;
  // Whether the caller wants the gradients with respect to the log-probabilities.
  returnsGrad: boolean;
}

// Where the gradient goes: to an array for all logits, or to the logits of each block, which are then passed on.
type Out =
  | { native: NativeOut | NativeDeviceOut; result: Logits | undefined; receive?: undefined }
  | { native?: undefined; receive: (gradient: Logits, firstToken: number) => unknown };

// Reads all arguments before it first yields, because the caller may change them afterwards.
function* read<R>(loss: LossOfLogits<R>, given: LogitsBatch, options: FromLogitsOptions): Sliced<Call> {
  const { gradLogits, entropy: wantsEntropy, device, signal, stream, ...wanted } = options;
  const index = cudaIndex(device);
  checkStream(stream, index);
  const { logits, targets, vocabulary, temperature, softcap, support, rowStride, ...batch } =
    checkBatch(given);
  const kept = support ? { tokenIds: support.tokenIds, offsets: support.offsets } : undefined;
  for (const name of ['logprob', 'entropy']) checkAbsent(batch, loss.mapper.keys(name));
  const mask = findInput(batch, loss.mapper, 'action_mask');
  const layout = yield* readLayout(batch);
  const { tokens } = layout;
  const source = readSource(logits, tokens, vocabulary, rowStride, index);
  const ids = yield* copyIntegers('targets', targets, -(2 ** 31));
  yield* ignoreMasked(ids, yield* readMask(mask.key, mask.value, layout, 'token'));
  const rows = yield* readRows(ids, tokens, source.vocabulary, { temperature, softcap, support: kept });
  const column = () => allocate(`a column of ${tokens} values`, () => new Float32Array(tokens));
  const logprob = column();
  const entropy = loss.needsEntropy || wantsEntropy === true ? column() : undefined;
  const out = readGradLogits(gradLogits, source);
  if (out?.native) checkApart(out.native.out, arraysOf({ ...batch, ...wanted, temperature }), 'gradLogits');
  const returnsGrad = wanted.grad !== undefined && wanted.grad !== false;
  const lossOptions: LossComputeOptions = {
    ...wanted,
    ...(device !== undefined && { device }),
    ...(stream !== undefined && { stream }),
    ...(signal && { signal }),
  };
  if (out && !returnsGrad) lossOptions.grad = true;
  if (out && loss.requestsGradEntropy) lossOptions.gradEntropy ||= true;
  const columns = { logprob, ...(entropy && { entropy }) };
  return { batch: { ...batch, ...columns }, logprob, entropy, rows, source, out, lossOptions, returnsGrad };
}

function checkBatch(batch: LogitsBatch): LogitsBatch {
  const isResident = batch instanceof DeviceBatch;
  if (typeof batch === 'object' && batch !== null && !isResident) return batch;
  throw new LossError('ERR_INVALID_INPUT', {
    at: 'batch',
    expected: 'an object with logits and targets, which may be in memory of a device',
    received: isResident ? 'an uploaded batch' : describeValue(batch),
  });
}

function checkAbsent(batch: object, keys: readonly string[]): void {
  const found = find(batch, keys);
  if (!found) return;
  throw new LossError('ERR_INVALID_INPUT', {
    key: found.key,
    expected: 'a batch without it, because it is computed from the logits',
    received: describeValue(found.value),
  });
}

// Makes the masked tokens ignored rows.
function* ignoreMasked(targets: Int32Array, mask: Uint8Array): Sliced<void> {
  if (targets.length !== mask.length)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key: 'targets',
      expected: `[${mask.length}], one token id per token`,
      received: String(targets.length),
    });
  yield* inSlices(mask.length, (begin, end) => {
    for (let i = begin; i < end; i++)
      if (mask[i] === 0) targets[i] = IGNORED;
      else if (targets[i] === IGNORED)
        throw new LossError('ERR_INVALID_INPUT', {
          key: 'targets',
          index: i,
          expected: 'a token id, because the mask keeps the token',
          received: String(IGNORED),
        });
  });
}

// Returns where the gradient goes, or undefined if it is not requested.
function readGradLogits(
  wanted: FromLogitsOptions['gradLogits'],
  { whole, vocabulary }: LogitsSource,
): Out | undefined {
  if (wanted === undefined || wanted === false) return undefined;
  if (typeof wanted === 'function') return { receive: wanted };
  if (!whole)
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'gradLogits',
      expected: 'a function that receives the gradient of each block, because the logits come in blocks',
      received: describeValue(wanted),
    });
  const array = wanted === true ? undefined : wanted;
  const written = readOut(array, { ...whole.matrix, rows: whole.rows, vocabulary }, 'gradLogits');
  if (typeof written.out === 'bigint') return { native: written, result: undefined };
  return { native: written, result: (array as Logits | undefined) ?? (written.out as Float32Array) };
}

// Returns the arrays among some inputs, for checkApart().
function arraysOf(inputs: Record<string, unknown>): Record<string, ArrayBufferView> {
  const found: Record<string, ArrayBufferView> = {};
  for (const [key, value] of Object.entries(inputs)) {
    const array = (value as { data?: unknown } | null | undefined)?.data ?? value;
    if (ArrayBuffer.isView(array)) found[key] = array;
  }
  return found;
}

// Computes a call. If the gradient of a token depends on its own logits only, it is written while these are in the
// cache. Otherwise the logits are read twice.
function* compute<R extends LossResult<unknown>>(loss: LossOfLogits<R>, call: Call): Steps<R & LogitsResult> {
  const { batch, logprob, entropy, source, out, lossOptions } = call;
  const read: Step<ReadLoss<R>> = {
    now: () => guarded(() => loss.readSync(batch, lossOptions)),
    later: () => guardedAsync(() => loss.read(batch, lossOptions)),
  };
  const isFused = out && source.device === undefined && !loss.needsLogprobFirst(batch);
  const early = isFused ? yield* perform(read) : undefined;
  const direct = early?.logitsGradients();
  if (out && !direct && !source.canRepeat) throw mustRepeat();
  const logsumexp = out && !direct ? new Float64Array(logprob.length) : undefined;
  yield* source.each(function* (block) {
    const outputs = partsOf({ logprob, logsumexp, entropy }, block);
    const logits = { ...block.matrix, ...rowsOf(call.rows, block), ...outputs };
    if (!direct) return yield* run(call, logits);
    const written = { ...logits, ...outOf(call, block), firstToken: block.first };
    yield* perform({
      now: () => direct.writeSync(written),
      later: () => direct.write(written, lossOptions.signal),
    });
    if (out) yield* pass(out, block);
  });
  const { gradients, computeSync, compute } = early ?? (yield* perform(read));
  const result: LossResult<unknown> = yield* perform({ now: computeSync, later: compute });
  if (out && !direct) {
    const gradLogprob = new Float64Array(gradients.grad as Float32Array);
    const gradEntropy =
      entropy && gradients.gradEntropy && new Float64Array(gradients.gradEntropy as Float32Array);
    yield* source.each(function* (block) {
      const inputs = partsOf({ gradLogprob, gradEntropy, logsumexp, entropy }, block);
      yield* run(call, { ...block.matrix, ...rowsOf(call.rows, block), ...inputs, ...outOf(call, block) });
      yield* pass(out, block);
    });
  }
  if (!call.returnsGrad) {
    delete result.grad;
    delete result.gradEntropy;
  }
  const more: LogitsResult = {
    logprob,
    ...(entropy && { entropy }),
    ...(out?.native && out.result && { gradLogits: out.result }),
  };
  return Object.assign(result as R, more);
}

function mustRepeat(): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    key: 'logits',
    expected:
      'a function that returns the blocks, because the gradient of a token depends on other tokens and the logits are read twice',
    received: 'blocks that can be read only once',
  });
}

// Returns the parts of arrays with one number per row that belong to the rows of a block.
function partsOf<T extends Record<string, Float32Array | Float64Array | undefined>>(
  arrays: T,
  { first, rows }: Block,
): T {
  const parts = Object.entries(arrays).map(([key, array]) => [key, array?.subarray(first, first + rows)]);
  return Object.fromEntries(parts) as T;
}

// Returns what native code needs to know of the rows of a block.
function rowsOf(all: NativeRows, { first, rows }: Block): NativeRows {
  if (rows === all.rows) return all;
  const last = first + rows;
  const { targets, temperatures, tokenIds, offsets } = all;
  return {
    ...all,
    rows,
    targets: targets.subarray(first, last),
    temperatures: temperatures?.subarray(first, last),
    tokenIds: tokenIds?.subarray(offsets![first], offsets![last]),
    offsets: offsets?.subarray(first, last + 1).map((offset, _, part) => offset - part[0]!),
  };
}

// Returns the memory for the gradient of a block.
function outOf({ out, rows }: Call, { given, matrix, rows: count }: Block): NativeOut | NativeDeviceOut {
  if (out?.native) return out.native;
  return readOut(given, { ...matrix, rows: count, vocabulary: rows.vocabulary }, 'gradLogits');
}

function* run({ lossOptions: { signal, stream } }: Call, logits: NativeLogits): Steps<void> {
  yield* perform({
    now: () => {
      try {
        native.logitsSync(logits);
      } catch (error) {
        throw fromNative(error);
      }
    },
    later: async () => void (await abortable(signal, (abort) => native.logits({ ...logits, abort, stream }))),
  });
}

// Passes the gradient of a block on.
function* pass({ receive }: Out, { given, first }: Block): Steps<void> {
  if (!receive) return;
  const step = () => receive(given, first);
  yield* perform({ now: step, later: step });
}
