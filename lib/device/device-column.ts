// Columns that already are in the memory of a CUDA device.
import type { NativeBatch, NativeDeviceArray } from '../../binding.js';
import { describeValue, LossError } from '../base/errors.js';
import { isUint8Array } from '../base/kinds.js';
import { DTYPE_CODES, PER_ROW } from '../batch/convert.js';
import { describeShape, type Layout } from '../batch/layout.js';
import type { SetColumn } from '../batch/reader.js';
import { cudaIndex } from './device.js';
import { DeviceGradient } from './device-gradient.js';

/**
 * A float column in the memory of a CUDA device, which upload() and DeviceBatch.update() accept instead of a host array.
 * They copy it on the device. The caller owns the memory, and must neither free nor change it before the promise
 * settles. All writes to it must have ended before the call: synchronize the stream that writes it, or pass it as `stream`. A DeviceGradient is
 * such a column too.
 */
export interface DeviceColumn {
  /** The address of the first value, as CUDA's runtime or a tensor's `data_ptr()` gives it. */
  readonly pointer: bigint;
  /** The type of the values, which lie one after another. */
  readonly dtype: 'float32' | 'float16' | 'bfloat16';
  /** The device that has the memory: 'cuda:0', …. It must be the device of the batch. */
  readonly device: string;
  /** [B, T] or [tokens] for one value per token; [B] for one per row, where a column may have that. */
  readonly shape: readonly number[];
}

/**
 * A float column in memory that another process has exported, which upload() and DeviceBatch.update() accept instead of a
 * host array. They open the memory, copy the column on the device, and close the memory. All writes must have ended
 * before the call, and the other process must keep the memory until the promise settles. CUDA does not open memory of
 * the process itself. But the handle of a {@link DeviceGradient} of the same thread stands for the gradient until its
 * dispose(). Only Linux has such memory.
 */
export interface IpcColumn extends Omit<DeviceColumn, 'pointer'> {
  /** The 64 bytes of the cudaIpcMemHandle_t: what cudaIpcGetMemHandle() or {@link DeviceGradient.ipcHandle} returned. */
  readonly ipc: Uint8Array;
  /** The offset of the first value in the exported memory, in bytes; 0 by default. */
  readonly offset?: number;
}

/** A float column in the memory of a CUDA device. */
export type OnDevice = DeviceColumn | IpcColumn;

const IPC_BYTES = 64;

/** Returns whether a value of a batch is meant as a column on a device. */
export function isDeviceColumn(value: unknown): value is OnDevice {
  if (value === null || typeof value !== 'object') return false;
  return 'pointer' in value || 'ipc' in value;
}

/** A column on a device that was checked. */
export interface DeviceMemory {
  /** The address of the first value; its offset in the memory of `handle` if there is a handle. */
  pointer: bigint;
  dtype: DeviceColumn['dtype'];
  /** The shape as the caller gave it, which was not checked. */
  shape: readonly number[];
  /** The handle of memory of another process. */
  handle?: Uint8Array | undefined;
  /** What has the memory, if the caller could otherwise free it. */
  array?: NativeDeviceArray | undefined;
}

/**
 * Checks all of a column on a device but its shape.
 * @param index the index of the device that computes.
 * @param reader what computes there, for the message of the error.
 * @param isEmpty whether the column has no values.
 * @throws LossError `ERR_INVALID_INPUT` if the pointer, the dtype or the device is wrong.
 */
export function readDeviceMemory(
  key: string,
  column: OnDevice,
  index: number,
  reader: string,
  isEmpty: boolean,
): DeviceMemory {
  const refuse = (expected: string, received: string): never => {
    throw new LossError('ERR_INVALID_INPUT', { key, expected, received });
  };
  const handle = 'ipc' in column ? checkedHandle(column, refuse) : undefined;
  const gradient = handle ? DeviceGradient.withHandle(handle) : column;
  const { pointer, dtype, device, shape } = handle
    ? exportedColumn(column as IpcColumn, gradient as DeviceGradient | undefined)
    : (column as DeviceColumn);
  if (!Object.hasOwn(DTYPE_CODES, dtype))
    refuse('dtype float32, float16 or bfloat16', `dtype ${describeValue(dtype)}`);
  if (typeof device !== 'string' || device === 'cpu' || cudaIndex(device) !== index)
    refuse(`a column on cuda:${index}, the device of the ${reader}`, `one on ${describeValue(device)}`);
  const size = dtype === 'float32' ? 4n : 2n;
  const isOffset = handle !== undefined && gradient === undefined;
  const isAddress = typeof pointer === 'bigint' && pointer >= 0n && pointer < 2n ** 64n;
  if (!isAddress || pointer % size !== 0n || (pointer === 0n && !isEmpty && !isOffset))
    refuse(
      `${isOffset ? 'an offset of' : 'a pointer to'} ${dtype} values, a bigint that ${size} divides`,
      isAddress ? `0x${pointer.toString(16)}` : describeValue(pointer),
    );
  return {
    pointer,
    dtype,
    shape,
    handle: isOffset ? handle : undefined,
    array: gradient instanceof DeviceGradient ? gradient.array() : undefined,
  };
}

/**
 * Checks a column on a device and stores its address and its dtype code in a native batch.
 * @param slot the index of the column in NativeBatch.data.
 * @param index the index of the device of the batch.
 * @throws LossError `ERR_INVALID_INPUT` if the pointer, the dtype or the device is wrong, `ERR_SHAPE_MISMATCH` if the
 * shape is.
 */
export function setDeviceColumn(
  batch: NativeBatch,
  slot: number,
  key: string,
  column: OnDevice,
  layout: Layout,
  mayBePerRow: boolean,
  index: number,
): void {
  const memory = readDeviceMemory(key, column, index, 'batch', layout.tokens === 0);
  const perRow = isPerRow(key, memory.shape, layout, mayBePerRow);
  batch.pointers ??= [];
  batch.pointers[slot] = memory.pointer;
  batch.dtypes[slot] = DTYPE_CODES[memory.dtype] + (perRow ? PER_ROW : 0);
  if (memory.handle) {
    batch.handles ??= [];
    batch.handles[slot] = memory.handle;
  }
  if (memory.array) {
    batch.arrays ??= [];
    batch.arrays[slot] = memory.array;
  }
}

/** Returns what stores columns on a device in the native batches that are uploaded to it. */
export function deviceColumnSetter(index: number): SetColumn {
  return (native, slot, key, value, layout, mayBePerRow) => {
    if (!isDeviceColumn(value)) return false;
    setDeviceColumn(native, slot, key, value, layout, mayBePerRow, index);
    return true;
  };
}

// Returns a copy of the handle of a column.
function checkedHandle(
  { ipc, offset = 0 }: IpcColumn,
  refuse: (expected: string, received: string) => never,
): Uint8Array {
  if (!isUint8Array(ipc) || ipc.length !== IPC_BYTES)
    refuse(`ipc with the ${IPC_BYTES} bytes of a cudaIpcMemHandle_t`, describeValue(ipc));
  if (!Number.isSafeInteger(offset) || offset < 0)
    refuse('an offset that is a whole number of bytes', describeValue(offset));
  return new Uint8Array(ipc);
}

// Returns a column in exported memory with its pointer if it is in the memory of a gradient of this process, and with its
// offset instead of the pointer otherwise.
function exportedColumn(
  { offset = 0, dtype, device, shape }: IpcColumn,
  gradient: DeviceGradient | undefined,
): DeviceColumn {
  return { pointer: (gradient?.pointer ?? 0n) + BigInt(offset), dtype, device, shape };
}

function isPerRow(key: string, shape: readonly number[], layout: Layout, mayBePerRow: boolean): boolean {
  const { rows, rowLength, tokens, offsets } = layout;
  const given = Array.isArray(shape) && shape.length <= 2 ? shape : [];
  const is = (...wanted: number[]) =>
    given.length === wanted.length && given.every((n, i) => n === wanted[i]);
  if (is(tokens) || (!offsets && is(rows, rowLength))) return false;
  if (mayBePerRow && is(rows)) return true;
  throw new LossError('ERR_SHAPE_MISMATCH', {
    key,
    expected: `${describeShape(layout)}${mayBePerRow ? `, or [${rows}]` : ''}`,
    received:
      given.length > 0 ? `shape [${given.map((n) => describeNumber(n)).join(', ')}]` : describeValue(shape),
  });
}

const describeNumber = (n: unknown) => (typeof n === 'number' ? String(n) : describeValue(n));
