// The arrays that calls return. They are not cleared, because clearing a large array blocks the event loop for
// milliseconds. Native code writes every element.
import { Buffer, constants } from 'node:buffer';
import { allocate } from './errors.js';

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
    if (bytes === 0 || bytes > constants.MAX_LENGTH) return new type(length);
    // A Buffer of this kind is not cleared, and has an ArrayBuffer of its own, of exactly its size.
    return new type(Buffer.allocUnsafeSlow(bytes).buffer);
  });
}
