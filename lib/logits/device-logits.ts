// Logits, and their gradient, in the memory of a CUDA device.
import type { NativeLogits } from '../../binding.js';
import { describeValue, LossError } from '../base/errors.js';
import { DTYPE_CODES } from '../batch/convert.js';
import { type DeviceMemory, type OnDevice, readDeviceMemory } from '../device/device-column.js';

type Size = Pick<NativeLogits, 'rows' | 'vocabulary'>;

/** Logits in the memory of a device, for native code. */
export type NativeDeviceLogits = Pick<NativeLogits, 'data' | 'dtype' | 'dataHandle' | 'arrays'>;

/** The memory of a device that receives a gradient, for native code. */
export type NativeDeviceOut = Required<Pick<NativeLogits, 'outDtype' | 'outStride'>> &
  Pick<NativeLogits, 'outHandle' | 'arrays'> & { out: bigint };

/**
 * Reads logits in the memory of a device.
 * @param key the caller's name of the logits, for errors.
 * @param device the index of the device that computes the call; undefined for the CPU.
 * @throws LossError `ERR_INVALID_INPUT` if the pointer, the dtype or the device is wrong, `ERR_SHAPE_MISMATCH` if the
 * shape is.
 */
export function readDeviceLogits(
  key: string,
  logits: OnDevice,
  size: Size,
  rowStride: number,
  device: number | undefined,
): NativeDeviceLogits {
  const memory = read(key, logits, size, device);
  checkShape(key, memory.shape, size.rows, rowStride);
  return {
    data: memory.pointer,
    dtype: DTYPE_CODES[memory.dtype],
    dataHandle: memory.handle,
    arrays: memory.array ? [memory.array] : [],
  };
}

/**
 * Reads the memory of a device that receives the gradient.
 * @param key the caller's name of the memory, for errors.
 * @throws LossError as readDeviceLogits() does, and `ERR_INVALID_INPUT` if the memory overlaps with the logits but is not
 * exactly theirs.
 */
export function readDeviceOut(
  key: string,
  out: OnDevice,
  input: NativeDeviceLogits & Pick<NativeLogits, 'rows' | 'vocabulary' | 'rowStride' | 'device'>,
): NativeDeviceOut {
  const { rows, vocabulary, rowStride, dtype, arrays = [] } = input;
  const memory = read(key, out, input, input.device);
  const outDtype = DTYPE_CODES[memory.dtype];
  const wrong = (expected: string, received: string) =>
    new LossError('ERR_INVALID_INPUT', { key, expected, received });
  if (outDtype !== dtype && outDtype !== DTYPE_CODES.float32)
    throw wrong('dtype float32 or that of the logits', `dtype ${memory.dtype}`);
  const isApart =
    typeof input.data !== 'bigint' ||
    areApart(
      { address: memory.pointer, handle: memory.handle, bytes: bytesOf(input, vocabulary, outDtype) },
      { address: input.data, handle: input.dataHandle, bytes: bytesOf(input, rowStride, dtype) },
    );
  if (!isApart && (memory.pointer !== input.data || outDtype !== dtype))
    throw wrong(
      "exactly the logits' memory and dtype, or other memory",
      'memory that overlaps with the logits',
    );
  const outStride = isApart ? vocabulary : rowStride;
  checkShape(key, memory.shape, rows, outStride);
  return {
    out: memory.pointer,
    outDtype,
    outStride,
    outHandle: memory.handle,
    arrays: memory.array ? [...arrays, memory.array] : arrays,
  };
}

/**
 * Checks that the memory of a device that receives a gradient is apart from other logits there.
 * @param name the caller's name of these.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function checkDeviceApart(
  key: string,
  { out, outDtype, outStride, outHandle }: NativeDeviceOut,
  size: Size,
  name: string,
  { data, dtype, dataHandle }: NativeDeviceLogits & { data: bigint },
  rowStride: number,
): void {
  const written = { address: out, handle: outHandle, bytes: bytesOf(size, outStride, outDtype) };
  if (areApart(written, { address: data, handle: dataHandle, bytes: bytesOf(size, rowStride, dtype) }))
    return;
  throw new LossError('ERR_INVALID_INPUT', {
    key,
    expected: `other memory than ${name}`,
    received: `memory that overlaps with ${name}`,
  });
}

function read(
  key: string,
  value: OnDevice,
  { rows, vocabulary }: Size,
  device: number | undefined,
): DeviceMemory {
  if (device !== undefined) return readDeviceMemory(key, value, device, 'call', rows * vocabulary === 0);
  throw new LossError('ERR_INVALID_INPUT', {
    key,
    expected: 'memory of the host, because the CPU computes the call',
    received: 'memory of a device',
    hint: 'Pass the name of the device as `device` to an asynchronous call',
  });
}

// The rows may have further dimensions, such as those of a batch.
function checkShape(key: string, shape: unknown, rows: number, rowStride: number): void {
  const dimensions: readonly unknown[] = Array.isArray(shape) ? shape : [];
  const isWhole = dimensions.every((n) => Number.isSafeInteger(n) && (n as number) >= 0);
  const size = isWhole ? (dimensions as number[]).reduce((product, n) => product * n, 1) : Number.NaN;
  const fits = dimensions.length === 1 || (dimensions.length > 1 && dimensions.at(-1) === rowStride);
  if (fits && size === rows * rowStride) return;
  throw new LossError('ERR_SHAPE_MISMATCH', {
    key,
    expected: `[${rows}, ${rowStride}] = ${rows * rowStride} values`,
    received: isWhole && dimensions.length > 0 ? `shape [${dimensions.join(', ')}]` : describeValue(shape),
  });
}

// Some bytes in the memory of a device. Their address is an offset in the memory of `handle` if there is one.
interface Bytes {
  readonly address: bigint;
  readonly handle: Uint8Array | undefined;
  readonly bytes: bigint;
}

// Returns whether no byte is in both.
function areApart(a: Bytes, b: Bytes): boolean {
  return (
    !isSameMemory(a.handle, b.handle) || a.address >= b.address + b.bytes || b.address >= a.address + a.bytes
  );
}

function isSameMemory(a: Uint8Array | undefined, b: Uint8Array | undefined): boolean {
  return a === undefined || b === undefined ? a === b : Buffer.compare(a, b) === 0;
}

// Returns the number of bytes from the first number to the end of the last row.
function bytesOf({ rows, vocabulary }: Size, rowStride: number, dtype: number): bigint {
  if (rows === 0) return 0n;
  return offsetOf((rows - 1) * rowStride + vocabulary, dtype);
}

/** Returns how many bytes the numbers before an index take. */
export function offsetOf(index: number, dtype: number): bigint {
  return BigInt(index) * (dtype === DTYPE_CODES.float32 ? 4n : 2n);
}
