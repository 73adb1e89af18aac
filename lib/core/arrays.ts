// Checks a caller's typed arrays before native code reads or writes their memory.
//
// All of lib/ recognises typed arrays by node:util's types, and not by instanceof. So it also accepts arrays of another
// realm, such as a context of node:vm in which a test runner runs the tests.
import { types } from 'node:util';
import { LossError } from './errors.js';

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
export function fixedLength<T extends Float32Array | Float64Array | Uint8Array | Uint16Array>(array: T): T {
  if (!isResizable(array)) return array;
  if (types.isFloat32Array(array)) return new Float32Array(array) as T;
  if (types.isFloat64Array(array)) return new Float64Array(array) as T;
  return (types.isUint8Array(array) ? new Uint8Array(array) : new Uint16Array(array)) as T;
}

/**
 * Returns whether an array's memory can shrink, which only a resizable ArrayBuffer allows. Shared memory can only grow.
 */
export function isResizable(array: ArrayBufferView): boolean {
  const buffer = bufferOf.call(array);
  return types.isArrayBuffer(buffer) && resizableOf.call(buffer);
}

// The getters themselves, because an array or its buffer may have no prototype, or another property of the same name.
const bufferOf = getterOf<ArrayBufferLike>(Object.getPrototypeOf(Uint8Array.prototype), 'buffer');
const resizableOf = getterOf<boolean>(ArrayBuffer.prototype, 'resizable');

function getterOf<T>(prototype: object, name: string): (this: object) => T {
  return Object.getOwnPropertyDescriptor(prototype, name)!.get!;
}
