// From logits to a loss and, if wanted, back to the gradient with respect to the logits, in one call.
import type { NativeLogits } from '../../binding.js';
import { bitsOfFloat16Array, checkApart } from '../base/arrays.js';
import { allocate, describeValue, LossError } from '../base/errors.js';
import { native } from '../base/native.js';
import { inSlices, type Steps, takeCall, takeForCaller, takeLater } from '../base/steps.js';
import { type Batch, find } from '../batch/batch.js';
import { heldColumn } from '../batch/convert.js';
import { copyIntegers } from '../batch/integers.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import { readLayout } from '../batch/layout.js';
import { readActionMask } from '../batch/reader.js';
import type {
  GradientRequest,
  LossComputeOptions,
  LossComputeSyncOptions,
  LossResult,
  Requested,
  RequestOf,
  Requests,
} from '../call/calls.js';
import type { ReadLoss } from '../call/evaluator.js';
import { withHeldRequests } from '../call/gradients.js';
import { cudaIndex } from '../device/device.js';
import { DeviceBatch } from '../device/device-batch.js';
import { checkStream } from '../device/stream.js';
import {
  type AsyncLogitsBlocks,
  type Block,
  ignored,
  type LogitsBlocks,
  type LogitsSource,
  readSource,
} from './blocks.js';
import type { NativeDeviceOut } from './device-logits.js';
import {
  type DeviceLogits,
  IGNORED,
  type Logits,
  type LogitsOptions,
  type NativeOut,
  type NativeRows,
  onePer,
  readOut,
  readRows,
  takeNowOnCpu,
} from './inputs.js';

/** The logits of a batch, which replace its log-probabilities and entropies. Each token has one row of logits. */
export interface LogitsColumns<Source>
  extends Pick<LogitsOptions, 'temperature' | 'softcap' | 'support' | 'rowStride'> {
  /** Shape [B, T, V]: the logits from which the model chose each token. Those of masked tokens are not read. */
  logits: Source;
  /** Shape [B, T]: the tokens that were sampled. Those that are masked may be any whole numbers. */
  targets: LogitsOptions['targets'];
  /** V. If the logits are one array without a `rowStride`, the default is its length divided by the number of tokens. */
  vocabulary?: number | undefined;
}

/** A batch for fromLogitsSync(), without log-probabilities and entropies. Only the batch's own properties are read. */
export type LogitsBatchSync = Omit<Batch, 'logprob' | 'log_prob' | 'entropy'> &
  LogitsColumns<Logits | LogitsBlocks>;

/** A batch for fromLogits(), without log-probabilities and entropies. Only the batch's own properties are read. */
export type LogitsBatch = Omit<Batch, 'logprob' | 'log_prob' | 'entropy'> &
  LogitsColumns<Logits | DeviceLogits | AsyncLogitsBlocks>;

/** Options of fromLogitsSync(). */
export interface FromLogitsSyncOptions extends LossComputeSyncOptions {
  /** true returns the entropies, and passes them to an objective that could do without them. */
  entropy?: boolean | undefined;
  /**
   * Requests the gradient of the loss with respect to the logits: true for a new Float32Array of shape [B, T, V], or an
   * array that receives it, as `out` of logprobsBackward() does. It may be the logits' own memory. Logits that come in
   * blocks need a function instead. Each block is overwritten by its gradient. The function then receives the block and the
   * index of the block's first token. It is computed from the gradients that `grad` and `gradEntropy` request. With
   * gradLogits, these must therefore be float32 in host memory: true, false or a Float32Array.
   */
  gradLogits?: boolean | Logits | ((gradient: Logits, firstToken: number) => unknown) | undefined;
}

/**
 * Options of fromLogits(). If `gradLogits` is a function that returns a promise, the call waits for it. After an abort,
 * the call still waits for the next block and for this function, which must therefore react to the signal themselves.
 */
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

/** The options of fromLogits() that request something; see {@link Requests}. */
export interface LogitsRequests extends Requests, Pick<FromLogitsOptions, 'gradLogits' | 'entropy'> {}

/** What fromLogits() certainly returns for the requests R; see {@link Requested}. */
export type RequestedLogits<R> = Requested<R> &
  (RequestOf<R, 'gradLogits'> extends true
    ? { gradLogits: Float32Array }
    : RequestOf<R, 'gradLogits'> extends Logits
      ? { gradLogits: RequestOf<R, 'gradLogits'> }
      : unknown) &
  (RequestOf<R, 'entropy'> extends true ? { entropy: Float32Array } : unknown);

/** @internal A loss or an objective, as fromLogits() needs it. */
export interface LossOfLogits<R> {
  readonly mapper: KeyMapper;
  /** Whether it reads entropies. */
  readonly needsEntropy: boolean;
  /** Whether a call with `grad` must request `gradEntropy` too. */
  readonly requestsGradEntropy: boolean;
  /** Whether `gradEntropy` is the gradient with respect to another column than the entropies, which come from the logits. */
  readonly gradEntropyIsOther: boolean;
  /** Returns whether something is computed from the log-probabilities of all tokens before the loss itself. */
  needsLogprobFirst(batch: Batch): boolean;
  /**
   * Returns the batch that is computed for one without log-probabilities. Its mask says which logits are read.
   * @param hasEntropy whether the batch will have entropies.
   */
  prepared(batch: Batch, options: LossComputeOptions, hasEntropy: boolean): Steps<Batch>;
  read(batch: Batch, options: LossComputeOptions): Steps<ReadLoss<R>>;
}

/** @internal Implements fromLogits() of losses and objectives. */
export function fromLogits<R extends LossResult<unknown>>(
  loss: LossOfLogits<R>,
  batch: LogitsBatch,
  options: FromLogitsOptions | undefined,
): Promise<R & LogitsResult> {
  return takeLater(evaluateLogits(loss, batch, options), options);
}

/** @internal Implements fromLogitsSync() of losses and objectives. */
export function fromLogitsSync<R extends LossResult<unknown>>(
  loss: LossOfLogits<R>,
  batch: LogitsBatchSync,
  options: FromLogitsSyncOptions | undefined,
): R & LogitsResult {
  return takeNowOnCpu(options, () => evaluateLogits(loss, batch, options));
}

function* evaluateLogits<R extends LossResult<unknown>>(
  loss: LossOfLogits<R>,
  given: LogitsBatch,
  options: FromLogitsOptions | undefined,
): Steps<R & LogitsResult> {
  const { logits, vocabulary, rowStride, ...batch } = checkBatch(given, 'logits');
  const { gradLogits, ...others } = options ?? {};
  return yield* evaluate(loss, batch, others, (tokens, device) => {
    const source = readSource(logits, tokens, vocabulary, rowStride, device);
    return { source, out: readGradLogits(gradLogits, source) };
  });
}

/** Where the logits of a call come from, and where the gradient with respect to them goes, if it is wanted. */
export interface LogitsEnds {
  source: LogitsSource;
  out: LogitsOut | undefined;
}

/** The columns of a call and what says how its logits are read, without the logits. */
type ColumnsOfLogits = Omit<Batch, 'logprob' | 'log_prob' | 'entropy'> &
  Omit<LogitsColumns<unknown>, 'logits' | 'vocabulary' | 'rowStride'>;

// A call whose arguments were read.
interface Call {
  // The batch with arrays to which the log-probabilities and entropies are written.
  batch: Batch;
  logprob: Float32Array;
  entropy: Float32Array | undefined;
  rows: NativeRows;
  source: LogitsSource;
  out: LogitsOut | undefined;
  lossOptions: LossComputeOptions;
  // Arrays that must not overlap with the gradient.
  others: Record<string, ArrayBufferView | undefined>;
  // Whether the caller requests the gradients with respect to log-probabilities and entropies.
  returns: { grad: boolean; gradEntropy: boolean };
}

/** Where the gradient goes: to memory for all logits, or to the logits of each block. */
export interface LogitsOut {
  native?: NativeOut | NativeDeviceOut | undefined;
  /** Takes the gradient of a block, which has replaced its logits. */
  receive?(block: Block): Steps<void>;
  /** The arrays that are written, by their keys in the options. */
  written: Record<string, ArrayBufferView | bigint>;
  /** The further properties of the call's result. */
  result: object;
}

// Reads the properties of all arguments before it first yields, because the caller may put others in their place
// afterwards.
function* read<R>(
  loss: LossOfLogits<R>,
  given: ColumnsOfLogits,
  options: Omit<FromLogitsOptions, 'gradLogits'>,
  open: (tokens: number, device: number | undefined) => LogitsEnds,
): Steps<Call> {
  const { entropy: wantsEntropy, device, signal, stream, ...wanted } = withHeldRequests(options);
  const index = cudaIndex(device);
  checkStream(stream, index);
  const { targets, temperature, softcap, support, ...others } = given;
  const held = heldColumns(others);
  const kept = support ? { tokenIds: support.tokenIds, offsets: support.offsets } : undefined;
  for (const name of ['logprob', 'entropy']) checkAbsent(held, loss.mapper.keys(name));
  const layout = yield* readLayout(held);
  const { tokens } = layout;
  const { source, out } = open(tokens, index);
  const ids = yield* copyIntegers('targets', targets, -(2 ** 31), onePer('token', tokens));
  const hasEntropy = loss.needsEntropy || wantsEntropy === true;
  const call = { ...wanted, ...(stream !== undefined && { stream }) };
  const batch = yield* loss.prepared(held, call, hasEntropy);
  const mask = yield* readActionMask(batch, loss.mapper, layout);
  yield* ignoreMasked(ids, mask, source.vocabulary);
  const rows = yield* readRows(ids, tokens, source.vocabulary, { temperature, softcap, support: kept });
  const column = () => allocate(`a column of ${tokens} values`, () => new Float32Array(tokens));
  const logprob = column();
  const entropy = hasEntropy ? column() : undefined;
  const apart = { ...arraysOf({ ...held, ...wanted, temperature }), 'support.tokenIds': rows.tokenIds };
  for (const [key, array] of Object.entries(out?.written ?? {})) checkApart(key, array, apart);
  // With `grad`, an objective also returns the gradient with respect to the entropies.
  const byDefault = isWanted(wanted.grad) && !loss.requestsGradEntropy;
  const returns = { grad: isWanted(wanted.grad), gradEntropy: isWanted(wanted.gradEntropy ?? byDefault) };
  if (out) for (const key of ['grad', 'gradEntropy'] as const) checkOnHost(key, wanted[key]);
  const lossOptions: LossComputeOptions = {
    ...wanted,
    ...(device !== undefined && { device }),
    ...(stream !== undefined && { stream }),
    ...(signal && { signal }),
  };
  if (out && !returns.grad) lossOptions.grad = true;
  if (out && loss.requestsGradEntropy) lossOptions.gradEntropy ||= true;
  // The gradient with respect to the logits may need it even if the caller does not want it.
  if (out && lossOptions.gradEntropy === false) delete lossOptions.gradEntropy;
  const columns = { logprob, ...(entropy && { entropy }) };
  return {
    batch: { ...batch, ...columns },
    logprob,
    entropy,
    rows,
    source,
    out,
    others: apart,
    lossOptions,
    returns,
  };
}

const isWanted = (request: GradientRequest | undefined) => request !== undefined && request !== false;

function checkOnHost(key: string, request: GradientRequest | undefined): void {
  const isFloat16 = bitsOfFloat16Array(request) !== undefined;
  if (request === undefined || typeof request === 'boolean') return;
  if (ArrayBuffer.isView(request) && !isFloat16) return;
  throw new LossError('ERR_INVALID_INPUT', {
    key,
    expected:
      'true, false or a Float32Array, because the gradient with respect to the logits is computed from it',
    received: describeValue(request),
  });
}

/** @internal Checks that a batch is an object. `what` names what the logits come from. */
export function checkBatch<B>(batch: B, what: string): B {
  const isResident = batch instanceof DeviceBatch;
  if (typeof batch === 'object' && batch !== null && !isResident) return batch;
  throw new LossError('ERR_INVALID_INPUT', {
    at: 'batch',
    expected: `an object with ${what} and targets, whose ${what} may be in memory of a device`,
    received: isResident ? 'an uploaded batch' : describeValue(batch),
  });
}

// Returns a copy of a batch whose columns stay as they are when the caller changes the objects that were passed.
function heldColumns<B extends object>(batch: B): B {
  return Object.fromEntries(Object.entries(batch).map(([key, value]) => [key, heldColumn(value)])) as B;
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

// Makes the masked tokens ignored rows, and checks the targets of the others.
function* ignoreMasked(targets: Int32Array, mask: Uint8Array, vocabulary: number): Steps<void> {
  yield* inSlices(mask.length, (begin, end) => {
    for (let i = begin; i < end; i++) {
      const target = targets[i]!;
      if (mask[i] === 0) targets[i] = IGNORED;
      else if (target < 0 || target >= vocabulary)
        throw new LossError('ERR_INVALID_INPUT', {
          key: 'targets',
          index: i,
          expected: `a token id from 0 to ${vocabulary - 1}, because the mask keeps the token`,
          received: String(target),
        });
    }
  });
}

// Returns where the gradient goes, or undefined if it is not requested.
function readGradLogits(
  wanted: FromLogitsOptions['gradLogits'],
  { whole, vocabulary }: LogitsSource,
): LogitsOut | undefined {
  if (wanted === undefined || wanted === false) return undefined;
  if (typeof wanted === 'function')
    return { receive: (block) => pass(wanted, block), written: {}, result: {} };
  if (!whole)
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'gradLogits',
      expected: 'a function that receives the gradient of each block, because the logits come in blocks',
      received: describeValue(wanted),
    });
  const array = wanted === true ? undefined : wanted;
  const written = readOut(array, { ...whole.matrix, rows: whole.rows, vocabulary }, 'gradLogits');
  const onHost = typeof written.out !== 'bigint' && { gradLogits: array ?? written.out };
  return { native: written, written: { gradLogits: written.out }, result: { ...onHost } };
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

/**
 * @internal Computes a call. If the gradient of a token depends on its own logits only, it is written while these are in
 * the cache. Otherwise the logits are read twice.
 * @param open returns where the logits of a number of tokens come from, on a device or on the CPU.
 */
export function* evaluate<R extends LossResult<unknown>>(
  loss: LossOfLogits<R>,
  given: ColumnsOfLogits,
  options: Omit<FromLogitsOptions, 'gradLogits'>,
  open: (tokens: number, device: number | undefined) => LogitsEnds,
): Steps<R & LogitsResult> {
  const call = yield* read(loss, given, options, open);
  const { batch, logprob, entropy, source, out, lossOptions, returns } = call;
  const isFused = out && source.device === undefined && !loss.needsLogprobFirst(batch);
  const early = isFused ? yield* loss.read(batch, lossOptions) : undefined;
  const direct = early?.logitsGradients();
  if (out && !direct && !source.canRepeat) throw mustRepeat(source);
  const logsumexp = out && !direct ? float64(logprob.length) : undefined;
  yield* source.each(call.rows.targets, function* (block) {
    const outputs = subarraysOf({ logprob, logsumexp, entropy }, block);
    const logits = { ...block.matrix, ...rowsOf(call.rows, block), ...outputs };
    if (!direct) return void (yield* run(call, logits));
    yield* direct({ ...logits, ...outOf(call, block), firstToken: block.first });
    if (out?.receive) yield* out.receive(block);
  });
  const computation = early ?? (yield* loss.read(batch, lossOptions));
  const result: LossResult<unknown> = yield* computation.compute();
  if (out && !direct) {
    const { grad, gradEntropy } = computation.gradients as Partial<Record<string, Float32Array>>;
    yield* source.each(call.rows.targets, function* (block) {
      yield* run(call, {
        ...block.matrix,
        ...rowsOf(call.rows, block),
        ...subarraysOf({ logsumexp, entropy }, block),
        gradLogprob: widened(grad!, block),
        gradEntropy:
          entropy && gradEntropy && !loss.gradEntropyIsOther ? widened(gradEntropy, block) : undefined,
        ...outOf(call, block),
      });
      if (out.receive) yield* out.receive(block);
    });
  }
  if (!returns.grad) delete result.grad;
  if (!returns.gradEntropy) delete result.gradEntropy;
  const more: LogitsResult = {
    logprob,
    ...(entropy && { entropy }),
    ...out?.result,
  };
  return Object.assign(result as R, more);
}

function mustRepeat({ device }: LogitsSource): LossError {
  const why =
    device === undefined ? 'the gradient of a token depends on other tokens' : 'a device computes the call';
  return new LossError('ERR_INVALID_INPUT', {
    key: 'logits',
    expected: `a function that returns the blocks, because ${why} and the logits are read twice`,
    received: 'blocks that can be read only once',
  });
}

const float64 = (length: number) => allocate(`${length} values`, () => new Float64Array(length));

// Returns the gradient of the rows of a block, as float64.
function widened(gradient: Float32Array, { first, rows }: Block): Float64Array {
  const numbers = float64(rows);
  numbers.set(gradient.subarray(first, first + rows));
  return numbers;
}

// Returns arrays with one number per row, for the rows of a block.
function subarraysOf<T extends Record<string, Float32Array | Float64Array | undefined>>(
  arrays: T,
  { first, rows }: Block,
): T {
  const entries = Object.entries(arrays).map(([key, array]) => [key, array?.subarray(first, first + rows)]);
  return Object.fromEntries(entries) as T;
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
    offsets: offsets?.subarray(first, last + 1).map((offset, _, all) => offset - all[0]!),
  };
}

// Returns the memory for the gradient of a block.
function outOf(
  { out, rows, others }: Call,
  { given, matrix, rows: count }: Block,
): NativeOut | NativeDeviceOut {
  if (out?.native) return out.native;
  const own = readOut(given, { ...matrix, rows: count, vocabulary: rows.vocabulary }, 'gradLogits');
  checkApart('logits', own.out, others);
  return own;
}

function run({ lossOptions: { stream } }: Call, logits: NativeLogits): Steps<unknown> {
  return takeCall(native.logits, { ...logits, stream });
}

// Passes the gradient of a block on to the caller.
function* pass(
  receive: (gradient: Logits, firstToken: number) => unknown,
  { given, first }: Block,
): Steps<void> {
  yield* takeForCaller('gradLogits failed', ({ later }) => {
    const received = receive(given, first);
    if (later || !ignored(received)) return received;
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'gradLogits',
      expected: 'a function that returns no promise, because the call is synchronous',
      received: 'a promise',
    });
  });
}
