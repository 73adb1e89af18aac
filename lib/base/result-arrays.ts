// The arrays that calls return. They are not cleared, because native code writes every element.
import { allocate } from './errors.js';
import { unclearedMemory } from './node.js';

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
  type: { new (memory: ArrayBuffer): A; readonly BYTES_PER_ELEMENT: number },
  what: string,
  length: number,
): A {
  return allocate(what, () => new type(unclearedMemory(length * type.BYTES_PER_ELEMENT)));
}
