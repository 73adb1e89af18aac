// The arrays that calls return. Allocating a large array of zeros blocks the event loop for milliseconds, so these arrays
// are not cleared, and their memory is used again when JavaScript has dropped them. Native code writes every element.
import { Buffer, constants } from 'node:buffer';
import { setTimeout } from 'node:timers';
import { allocate } from './errors.js';
import { native } from './native.js';

/** The number of bytes from which memory is recycled. A smaller array is faster to allocate and clear. */
export const LEAST_RECYCLED = 65_536;

/** The time in milliseconds after the last call that returned such an array, until unused memory is freed. */
const KEPT = 5000;

let clearing: NodeJS.Timeout | undefined;

/**
 * Returns an array with any content. The caller must write all of its elements before a user can see it.
 * @param what the contents of the array, for the error message.
 * @throws LossError `ERR_OUT_OF_MEMORY`
 */
export function resultArray(what: string, length: number): Float32Array<ArrayBuffer> {
  return newArray(Float32Array, what, length);
}

/** Does the same as {@link resultArray} for numbers of 16 bits. */
export function halfResultArray(what: string, length: number): Uint16Array<ArrayBuffer> {
  return newArray(Uint16Array, what, length);
}

function newArray<A>(
  type: { new (from: number | ArrayBuffer): A; readonly BYTES_PER_ELEMENT: number },
  what: string,
  length: number,
): A {
  const bytes = length * type.BYTES_PER_ELEMENT;
  return allocate(what, () => {
    if (bytes < LEAST_RECYCLED || bytes > constants.MAX_LENGTH) return new type(length);
    if (native.takeRecycled) clearing = clearing?.refresh() ?? setTimeout(clear, KEPT).unref();
    // The buffer of a Buffer of this kind belongs to it alone, has its size, and is not cleared.
    return new type(native.takeRecycled?.(bytes) ?? Buffer.allocUnsafeSlow(bytes).buffer);
  });
}

function clear(): void {
  clearing = undefined;
  native.clearRecycled?.();
}
