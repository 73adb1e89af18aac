// Columns that already are in the memory of a CUDA device.
import type { NativeBatch } from '../../binding.js';
import { DTYPE_CODES, PER_ROW } from './columns.js';
import { cudaIndex } from './device.js';
import { describeValue, LossError } from './errors.js';
import { describeShape, type Layout } from './layout.js';

/**
 * A float column in the memory of a CUDA device, which upload() and DeviceBatch.update() accept instead of a host array.
 * They copy it on the device. The caller owns the memory, and must neither free nor change it before the promise
 * settles. All writes to it must have ended before the call: synchronize the stream that writes it. A DeviceGradient is
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

/** Returns whether a value of a batch is meant as a column on a device. */
export function isDeviceColumn(value: unknown): value is DeviceColumn {
  return value !== null && typeof value === 'object' && 'pointer' in value;
}

/**
 * Checks a column on a device and stores its address and its dtype code in a native batch.
 * @param slot the index of the column in NativeBatch.data.
 * @param index the index of the device of the batch.
 * @throws LossError `ERR_INVALID_INPUT` if the pointer, the dtype or the device is wrong, `ERR_SHAPE_MISMATCH` if the
 * shape is.
 */
export function setDeviceColumn(
  native: NativeBatch,
  slot: number,
  key: string,
  { pointer, dtype, device, shape }: DeviceColumn,
  layout: Layout,
  mayBePerRow: boolean,
  index: number,
): void {
  const refuse = (expected: string, received: string): never => {
    throw new LossError('ERR_INVALID_INPUT', { key, expected, received });
  };
  if (!Object.hasOwn(DTYPE_CODES, dtype))
    refuse('dtype float32, float16 or bfloat16', `dtype ${describeValue(dtype)}`);
  if (typeof device !== 'string' || device === 'cpu' || cudaIndex(device) !== index)
    refuse(`a column on cuda:${index}, the device of the batch`, `one on ${describeValue(device)}`);
  const perRow = isPerRow(key, shape, layout, mayBePerRow);
  const size = dtype === 'float32' ? 4n : 2n;
  const isAddress = typeof pointer === 'bigint' && pointer >= 0n && pointer < 2n ** 64n;
  if (!isAddress || pointer % size !== 0n || (pointer === 0n && layout.tokens > 0))
    refuse(
      `a pointer to ${dtype} values, a bigint that ${size} divides`,
      isAddress ? `0x${pointer.toString(16)}` : describeValue(pointer),
    );
  native.pointers ??= [];
  native.pointers[slot] = pointer;
  native.dtypes[slot] = DTYPE_CODES[dtype] + (perRow ? PER_ROW : 0);
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
