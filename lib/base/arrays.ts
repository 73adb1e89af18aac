// Checks a caller's typed arrays before native code reads or writes their memory.
import type { NativeDeviceArray } from '../../binding.js';
import { LossError } from './errors.js';
import {
  getterOf,
  isArrayBuffer,
  isFloat32Array,
  isFloat64Array,
  isInt32Array,
  isUint8Array,
  TYPED_ARRAY,
  typedArrayName,
} from './kinds.js';

/**
 * Checks that an array still has its memory.
 * @throws LossError `ERR_INVALID_INPUT` if the array's ArrayBuffer is detached: its memory was transferred to another
 * thread or buffer.
 */
export function checkAttached(key: string, array: ArrayBufferView): void {
  if (array.byteLength > 0) return;
  try {
    new Uint8Array(bufferOf.call(array));
  } catch {
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'an array with memory',
      received: 'one whose ArrayBuffer is detached (transferred)',
    });
  }
}

/** Returns the array itself, or a copy if its memory could shrink while native code reads it. */
export function fixedLength<T extends Float32Array | Float64Array | Int32Array | Uint8Array | Uint16Array>(
  array: T,
): T {
  if (!isResizable(array)) return array;
  if (isInt32Array(array)) return new Int32Array(array) as T;
  if (isFloat32Array(array)) return new Float32Array(array) as T;
  if (isFloat64Array(array)) return new Float64Array(array) as T;
  return (isUint8Array(array) ? new Uint8Array(array) : new Uint16Array(array)) as T;
}

/**
 * Returns whether an array's memory can shrink, which only a resizable ArrayBuffer allows. Shared memory can only grow.
 */
export function isResizable(array: ArrayBufferView): boolean {
  const buffer = bufferOf.call(array);
  return isArrayBuffer(buffer) && resizableOf.call(buffer);
}

/** An array of float16 numbers, which newer versions of JavaScript have. */
export interface Float16ArrayLike extends ArrayBufferView {
  /** The number of elements. */
  readonly length: number;
  /** The name of the class. */
  readonly [Symbol.toStringTag]: 'Float16Array';
}

/** Returns the bits of a Float16Array, in the same memory. Returns undefined for any other value. */
export function bitsOfFloat16Array(value: unknown): Uint16Array | undefined {
  if (typedArrayName(value) !== 'Float16Array') return undefined;
  const at = offsetOf.call(value);
  return new Uint16Array(bufferOf.call(value), at, lengthOf.call(value));
}

/** Tells how two arrays lie in memory: apart, in exactly the same memory, or partly in the same. */
export function overlapOf(a: ArrayBufferView, b: ArrayBufferView): 'none' | 'same' | 'partial' {
  if (bufferOf.call(a) !== bufferOf.call(b) || a.byteLength === 0 || b.byteLength === 0) return 'none';
  if (a.byteOffset === b.byteOffset && a.byteLength === b.byteLength) return 'same';
  const apart = a.byteOffset + a.byteLength <= b.byteOffset || b.byteOffset + b.byteLength <= a.byteOffset;
  return apart ? 'none' : 'partial';
}

/**
 * Checks that the memory to which native code writes is apart from other memory of the call. Device memory that is given
 * as an address, a bigint, always passes.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function checkApart(
  key: string,
  written: ArrayBufferView | NativeDeviceArray | bigint | undefined,
  others: Record<string, ArrayBufferView | NativeDeviceArray | undefined>,
): void {
  if (written === undefined) return;
  for (const [name, other] of Object.entries(others)) {
    const areOnHost = ArrayBuffer.isView(written) && ArrayBuffer.isView(other);
    const isApart = areOnHost ? overlapOf(written, other) === 'none' : written !== other;
    if (isApart) continue;
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: `other memory than ${name}`,
      received: `memory that overlaps with ${name}`,
    });
  }
}

// The getters themselves, because an array or its buffer may have no prototype, or another property of the same name.
const bufferOf = getterOf<ArrayBufferLike>(TYPED_ARRAY, 'buffer');
const offsetOf = getterOf<number>(TYPED_ARRAY, 'byteOffset');
const lengthOf = getterOf<number>(TYPED_ARRAY, 'length');
const resizableOf = getterOf<boolean>(ArrayBuffer.prototype, 'resizable');
