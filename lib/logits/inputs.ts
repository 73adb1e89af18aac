// Reads and checks the arguments of the calls that compute from logits.
import type { NativeLogits } from '../../binding.js';
import {
  bitsOfFloat16Array,
  checkApart,
  checkAttached,
  type Float16ArrayLike,
  fixedLength,
  isResizable,
  overlapOf,
} from '../base/arrays.js';
import { allocate, describeValue, guarded, LossError } from '../base/errors.js';
import { isFloat32Array, isInt32Array } from '../base/kinds.js';
import { resultArray } from '../base/result-arrays.js';
import { inSlices, SLICE, type Steps, takeNow } from '../base/steps.js';
import { DTYPE_CODES, readRowNumbers, type TaggedFloats, taggedFloats } from '../batch/convert.js';
import { copyIntegers, decreasingOffset } from '../batch/integers.js';
import type { HalfColumn, RowNumbers } from '../batch/values.js';
import { cudaIndex } from '../device/device.js';
import { isDeviceColumn, type OnDevice } from '../device/device-column.js';
import {
  checkDeviceApart,
  type NativeDeviceLogits,
  type NativeDeviceOut,
  readDeviceLogits,
  readDeviceOut,
} from './device-logits.js';

/** Logits, or their gradient, as float32, float16 or bfloat16. They are read in place. */
export type Logits = Float32Array | HalfColumn | Float16ArrayLike;

/**
 * Logits, or their gradient, in the memory of a CUDA device, where they are read and written in place. Their shape is
 * [N, V], or [N, rowStride] if the call has a rowStride. N may be the product of several dimensions, as in [B, T, V].
 */
export type DeviceLogits = OnDevice;

/** The tokens of each row that take part in its softmax, such as those that top-p or top-k sampling kept. */
export interface LogitsSupport {
  /** The token ids of all rows, row after row, each at most once per row. An Int32Array is read in place. */
  tokenIds: Int32Array | readonly number[];
  /** Shape [N + 1]: the ids of row i are those from offsets[i] up to, but not including, offsets[i + 1]. */
  offsets: Int32Array | readonly number[];
}

/** Options that all calls share that compute from logits. */
export interface LogitsOptions {
  /** The number of rows N, and the number of logits per row V (the size of the vocabulary). */
  shape: readonly [rows: number, vocabulary: number];
  /** Shape [N]: the token id of each row whose log-probability is computed. −100 ignores the row. */
  targets: Int32Array | readonly number[];
  /** The temperature divides the logits: a positive number, or one per row, shape [N]. The default is 1. */
  temperature?: number | RowNumbers | undefined;
  /** Limits the logits: softcap·tanh(x/softcap) replaces each logit x, before the temperature is applied. By default, they have no limit. */
  softcap?: number | undefined;
  /** The tokens that take part. All others have probability 0 and gradient 0. The default is all tokens. */
  support?: LogitsSupport | undefined;
  /** The distance between the first logits of two rows, in numbers. The default is V. */
  rowStride?: number | undefined;
  /**
   * The device that computes the call: 'cpu' (the default), 'cuda', 'cuda:1', …. Synchronous calls are computed on the CPU
   * only. Logits in the memory of a device need the name of this device.
   */
  device?: string | undefined;
}

/** The target of a row that is ignored. */
export const IGNORED = -100;
const MOST_TOKENS = 2 ** 31 - 1;

/** The inputs that all calls share, for native code. */
export type NativeLogitsInput = Omit<NativeLogits, 'logprob' | 'logsumexp' | 'entropy'>;

/**
 * Reads the inputs that all calls share.
 * @throws LossError as logprobs() does.
 */
export function* readLogits(logits: unknown, options: LogitsOptions): Steps<NativeLogitsInput> {
  // All options are read before the first yield, because the caller may change them afterwards.
  const { shape, targets, rowStride, temperature, softcap, support, device } = options;
  const ids = support ? { tokenIds: support.tokenIds, offsets: support.offsets } : undefined;
  const index = cudaIndex(device ?? undefined);
  const [rows, vocabulary] = readShape(shape);
  const given = readMatrix(logits, rows, vocabulary, rowStride, index);
  const copied = yield* copyIntegers('targets', targets, IGNORED, onePer('row', rows));
  return { ...given, ...(yield* readRows(copied, rows, vocabulary, { temperature, softcap, support: ids })) };
}

/** The logits of a call and the device that computes it, for native code. */
export type NativeMatrix = NativeDeviceLogits & Pick<NativeLogits, 'rowStride' | 'device'>;

/** The rows of a call without their logits, for native code. */
export type NativeRows = Omit<NativeLogitsInput, keyof NativeMatrix>;

/**
 * Reads the logits of a call.
 * @param device the index of the device that computes the call; undefined for the CPU.
 * @throws LossError as logprobs() does.
 */
export function readMatrix(
  logits: unknown,
  rows: number,
  vocabulary: number,
  rowStride: number | undefined,
  device: number | undefined,
): NativeMatrix {
  const stride = readStride(rowStride, vocabulary);
  const memory = isDeviceColumn(logits)
    ? readDeviceLogits('logits', logits, { rows, vocabulary }, stride, device)
    : readHostLogits(logits, rows, vocabulary, stride);
  return { ...memory, rowStride: stride, device };
}

/**
 * Reads the rows of a call without their logits.
 * @throws LossError as logprobs() does.
 */
export function* readRows(
  targets: Int32Array,
  rows: number,
  vocabulary: number,
  { temperature, softcap, support }: Pick<LogitsOptions, 'temperature' | 'softcap' | 'support'>,
): Steps<NativeRows> {
  yield* checkTargets(targets, vocabulary);
  return {
    rows,
    vocabulary,
    targets,
    ...(yield* readTemperature(temperature ?? 1, targets)),
    softcap: softcap == null ? 0 : checkSoftcap(softcap),
    ...(support && (yield* readSupport(support.tokenIds, support.offsets, targets, vocabulary))),
  };
}

function readHostLogits(
  logits: unknown,
  rows: number,
  vocabulary: number,
  stride: number,
): Pick<NativeLogits, 'data' | 'dtype'> {
  const { data, dtype } = floatsOf('logits', logits);
  checkLength(data.length, rows, vocabulary, stride);
  return { data: fixedLength(data), dtype: DTYPE_CODES[dtype] };
}

function readShape(shape: unknown): [rows: number, vocabulary: number] {
  const isShape =
    Array.isArray(shape) &&
    shape.length === 2 &&
    shape.every((n) => Number.isSafeInteger(n) && n >= 0) &&
    shape[1] <= MOST_TOKENS;
  if (isShape) return shape as [number, number];
  throw new LossError(shape == null ? 'ERR_MISSING_INPUT' : 'ERR_INVALID_INPUT', {
    key: 'shape',
    expected: '[N, V], the numbers of rows and of logits per row',
    received:
      Array.isArray(shape) && shape.length === 2 ? `[${shape.map(describe).join(', ')}]` : describe(shape),
  });
}

const describe = (value: unknown) => (typeof value === 'number' ? String(value) : describeValue(value));

/** Returns the distance between the first logits of two rows. */
export function readStride(rowStride: number | undefined, vocabulary: number): number {
  if (rowStride == null) return vocabulary;
  if (Number.isSafeInteger(rowStride) && rowStride >= vocabulary) return rowStride;
  throw new LossError('ERR_INVALID_INPUT', {
    key: 'rowStride',
    expected: `a whole number of at least ${vocabulary}`,
    received: describe(rowStride),
  });
}

/** Returns logits as floats of a dtype. */
export function floatsOf(key: string, value: unknown): TaggedFloats {
  const bits = bitsOfFloat16Array(value);
  const floats: TaggedFloats | undefined = isFloat32Array(value)
    ? { data: value, dtype: 'float32' }
    : bits
      ? { data: bits, dtype: 'float16' }
      : taggedFloats(key, value);
  if (!floats)
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'a Float32Array, a Float16Array or { data: Uint16Array, dtype }',
      received: describeValue(value),
    });
  checkAttached(key, floats.data);
  return floats;
}

// The last row need not be followed by the numbers between two rows.
function checkLength(length: number, rows: number, vocabulary: number, stride: number): void {
  const least = rows === 0 ? 0 : (rows - 1) * stride + vocabulary;
  const most = rows === 0 ? 0 : least + stride - vocabulary;
  if (length >= least && length <= most) return;
  throw new LossError('ERR_SHAPE_MISMATCH', {
    key: 'logits',
    expected:
      stride === vocabulary
        ? `[${rows}, ${vocabulary}] = ${least} values`
        : `${rows} rows of ${vocabulary} values that begin every ${stride}: ${least} to ${most} values`,
    received: String(length),
  });
}

/** Returns a check of the number of targets. It throws a LossError. */
export function onePer(what: 'row' | 'token', count: number): (length: number) => void {
  return (length) => {
    if (length !== count)
      throw new LossError('ERR_SHAPE_MISMATCH', {
        key: 'targets',
        expected: `[${count}], one token id per ${what}`,
        received: String(length),
      });
  };
}

/**
 * Checks that each target is a token of the vocabulary.
 * @throws LossError with the index of the bad target.
 */
export function* checkTargets(targets: Int32Array, vocabulary: number): Steps<void> {
  yield* inSlices(targets.length, (begin, end) => {
    for (let row = begin; row < end; row++) {
      const target = targets[row]!;
      if (target !== IGNORED && (target < 0 || target >= vocabulary))
        throw badTarget(row, vocabulary, target);
    }
  });
}

/** Returns the error about a target that is not a token of the vocabulary. */
export function badTarget(row: number, vocabulary: number, target: number | string): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    key: 'targets',
    index: row,
    expected: `a token id from 0 to ${vocabulary - 1}, or ${IGNORED} to ignore the row`,
    received: String(target),
  });
}

function* readTemperature(
  value: number | RowNumbers,
  targets: Int32Array,
): Steps<Pick<NativeLogits, 'temperature' | 'temperatures'>> {
  if (typeof value === 'number') {
    checkTemperature(value);
    return { temperature: value, temperatures: undefined };
  }
  const temperatures = yield* readRowNumbers('temperature', value, targets.length);
  yield* inSlices(targets.length, (begin, end) => {
    for (let row = begin; row < end; row++)
      if (targets[row] !== IGNORED) checkTemperature(temperatures[row]!, row);
  });
  return { temperature: 1, temperatures };
}

// The inverse of a temperature must be a float32 number.
function checkTemperature(temperature: number, index?: number): void {
  const inverse = Math.fround(1 / temperature);
  if (inverse > 0 && inverse < Infinity && Number.isFinite(temperature)) return;
  throw new LossError('ERR_INVALID_OPTION', {
    key: 'temperature',
    index,
    expected: 'a positive number',
    received: String(temperature),
  });
}

function checkSoftcap(softcap: number): number {
  if (typeof softcap === 'number' && Math.fround(softcap) > 0 && Math.fround(softcap) < Infinity)
    return softcap;
  throw new LossError('ERR_INVALID_OPTION', {
    key: 'softcap',
    expected: 'a positive number',
    received: describe(softcap),
  });
}

function* readSupport(
  ids: unknown,
  starts: unknown,
  targets: Int32Array,
  vocabulary: number,
): Steps<{ tokenIds: Int32Array; offsets: Int32Array }> {
  const rows = targets.length;
  const offsets = yield* copyIntegers('support.offsets', starts, 0, (length) => {
    if (length !== rows + 1)
      throw new LossError('ERR_SHAPE_MISMATCH', {
        key: 'support.offsets',
        expected: `[${rows} + 1], the places in tokenIds where rows begin, and the end of the last row`,
        received: String(length),
      });
  });
  yield* checkSupportOffsets(offsets);
  const checkCount = (length: number) => {
    if (offsets[rows] !== length) throw wrongOffset(offsets, rows, `${length}, the length of tokenIds`);
  };
  if (isInt32Array(ids)) {
    checkAttached('support.tokenIds', ids);
    checkCount(ids.length);
  }
  const tokenIds = isInt32Array(ids)
    ? fixedLength(ids)
    : yield* copyIntegers('support.tokenIds', ids, -MOST_TOKENS, checkCount);
  yield* checkTokenIds(tokenIds, offsets, targets, vocabulary);
  return { tokenIds, offsets };
}

function wrongOffset(offsets: Int32Array, index: number, expected: string): LossError {
  return new LossError('ERR_SHAPE_MISMATCH', {
    key: 'support.offsets',
    index,
    expected,
    received: String(offsets[index]),
  });
}

function* checkSupportOffsets(offsets: Int32Array): Steps<void> {
  if (offsets[0] !== 0) throw wrongOffset(offsets, 0, '0');
  yield* inSlices(offsets.length - 1, (begin, end) => {
    for (let row = begin; row < end; row++)
      if (offsets[row + 1]! < offsets[row]!) throw decreasingOffset('support.offsets', offsets, row + 1);
  });
}

function* checkTokenIds(
  tokenIds: Int32Array,
  offsets: Int32Array,
  targets: Int32Array,
  vocabulary: number,
): Steps<void> {
  // The last row, counted from 1, that had each token.
  const lastRow = allocate(`the support of ${vocabulary} tokens`, () => new Int32Array(vocabulary));
  let inSlice = 0;
  for (let row = 0; row < targets.length; row++) {
    const target = targets[row]!;
    const [begin, end] = [offsets[row]!, offsets[row + 1]!];
    if (target !== IGNORED) {
      for (let at = begin; at < end; at++) {
        const id = tokenIds[at]!;
        if (!(id >= 0 && id < vocabulary) || lastRow[id] === row + 1) {
          const repeated = id >= 0 && id < vocabulary;
          throw new LossError('ERR_INVALID_INPUT', {
            key: 'support.tokenIds',
            index: at,
            expected: repeated
              ? `each token at most once in row ${row}`
              : `a token id from 0 to ${vocabulary - 1} in row ${row}`,
            received: repeated ? `${id} twice` : String(id),
          });
        }
        lastRow[id] = row + 1;
        if (++inSlice % SLICE === 0) yield;
      }
      if (lastRow[target] !== row + 1)
        throw new LossError('ERR_INVALID_INPUT', {
          key: 'targets',
          index: row,
          expected: `one of the ${end - begin} tokens in the support of row ${row}`,
          received: String(target),
        });
    }
    if (++inSlice % SLICE === 0) yield;
  }
}

/**
 * Checks that a synchronous call is not asked to run on a device.
 * @throws LossError `ERR_DEVICE_UNAVAILABLE`
 */
export function refuseDevice(device: unknown): void {
  if ((device ?? 'cpu') === 'cpu') return;
  throw new LossError('ERR_DEVICE_UNAVAILABLE', {
    option: 'device',
    expected: "'cpu', because only the asynchronous calls run on a device",
    received: describeValue(device),
  });
}

/**
 * Takes all steps of a synchronous call, which the CPU computes.
 * @throws LossError `ERR_DEVICE_UNAVAILABLE` if the options name a device, and those of the call
 */
export function takeNowOnCpu<R>(options: object | undefined, begin: () => Steps<R>): R {
  return guarded(() => {
    refuseDevice((options as { device?: unknown } | undefined)?.device);
    return takeNow(begin());
  });
}

/** The array that receives a gradient, for native code. */
export interface NativeOut {
  out: Float32Array | Uint16Array;
  outDtype: number;
  outStride: number;
}

/** Returns whether a gradient goes to memory of a device. */
export function isOnDevice(out: NativeOut | NativeDeviceOut): out is NativeDeviceOut {
  return typeof out.out === 'bigint';
}

/**
 * Checks that the gradient goes to other memory than further logits of the call.
 * @param name the caller's name of these.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function checkOutApart(
  key: string,
  out: NativeOut | NativeDeviceOut,
  size: Pick<NativeRows, 'rows' | 'vocabulary'>,
  name: string,
  other: NativeDeviceLogits,
  rowStride: number,
): void {
  const { data } = other;
  if (!isOnDevice(out)) checkApart(key, out.out, typeof data === 'bigint' ? {} : { [name]: data });
  else if (typeof data === 'bigint') checkDeviceApart(key, out, size, name, { ...other, data }, rowStride);
}

/**
 * Returns the array to which the gradient is written: a new Float32Array, or the caller's own.
 * @param key the caller's name of the array, for errors.
 * @throws LossError `ERR_INVALID_INPUT` if the array has another dtype, is resizable or overlaps with an input;
 * `ERR_SHAPE_MISMATCH` if its length is wrong; `ERR_OUT_OF_MEMORY`.
 */
export function readOut(
  out: unknown,
  input: NativeMatrix & Pick<NativeRows, 'rows' | 'vocabulary'>,
  key = 'out',
): NativeOut | NativeDeviceOut {
  const { rows, vocabulary, rowStride, data, dtype } = input;
  const size = rows * vocabulary;
  if (out === undefined) {
    const grad = resultArray(`a gradient of ${size} values`, size);
    return { out: grad, outDtype: DTYPE_CODES.float32, outStride: vocabulary };
  }
  if (isDeviceColumn(out)) return readDeviceOut(key, out, input);
  const floats = floatsOf(key, out);
  const outDtype = DTYPE_CODES[floats.dtype];
  const wrong = (expected: string, received: string) =>
    new LossError('ERR_INVALID_INPUT', { key, expected, received });
  if (outDtype !== dtype && outDtype !== DTYPE_CODES.float32)
    throw wrong('dtype float32 or that of the logits', `dtype ${floats.dtype}`);
  if (isResizable(floats.data))
    throw wrong('an array whose ArrayBuffer has a fixed length', 'a resizable one');
  const overlap = typeof data === 'bigint' ? 'none' : overlapOf(floats.data, data);
  const inPlace = outDtype === dtype && overlap === 'same';
  if (!inPlace && overlap !== 'none')
    throw wrong(
      "exactly the logits' memory and dtype, or other memory",
      'memory that overlaps with the logits',
    );
  if (!inPlace && floats.data.length !== size)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: `[${rows}, ${vocabulary}] = ${size} values`,
      received: String(floats.data.length),
    });
  return { out: floats.data, outDtype, outStride: inPlace ? rowStride : vocabulary };
}
