// Checks a caller's typed arrays before native code reads or writes their memory.
import { LossError } from './errors.js';

/**
 * Checks that an array still has its memory.
 * @throws LossError `ERR_INVALID_INPUT` if the array's ArrayBuffer is detached: its memory was transferred to another
 * thread or buffer.
 */
export function checkAttached(key: string, array: ArrayBufferView): void {
  if (array.byteLength > 0) return;
  try {
    new Uint8Array(array.buffer);
  } catch {
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'an array with memory',
      received: 'one whose ArrayBuffer is detached (transferred)',
    });
  }
}

/** Returns the array itself, or a copy if its memory could shrink while native code reads it. */
export function fixedLength<T extends Float32Array | Float64Array | Uint8Array | Uint16Array>(array: T): T {
  if (!isResizable(array)) return array;
  const Type = [Float32Array, Float64Array, Uint8Array, Uint16Array].find((type) => array instanceof type)!;
  return new Type(array) as T;
}

/**
 * Returns whether an array's memory can shrink, which only a resizable ArrayBuffer allows. Shared memory can only grow.
 */
export function isResizable({ buffer }: ArrayBufferView): boolean {
  return (buffer as ArrayBuffer & { resizable?: boolean }).resizable === true;
}
