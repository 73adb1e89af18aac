// Recognises arrays, buffers, errors and promises of any realm, such as a context of node:vm in which a test runner runs
// the tests. `instanceof` would recognise only those of the package's own realm. A Proxy of an array, a buffer or an
// error is not recognised, because native code could not read it.

/** Returns the name of a typed array's class, also for an instance of a subclass; undefined for any other value. */
export function typedArrayName(value: unknown): string | undefined {
  return nameOf.call(value);
}

export function isFloat32Array(value: unknown): value is Float32Array {
  return nameOf.call(value) === 'Float32Array';
}

export function isFloat64Array(value: unknown): value is Float64Array {
  return nameOf.call(value) === 'Float64Array';
}

export function isInt32Array(value: unknown): value is Int32Array {
  return nameOf.call(value) === 'Int32Array';
}

export function isUint8Array(value: unknown): value is Uint8Array {
  return nameOf.call(value) === 'Uint8Array';
}

export function isUint16Array(value: unknown): value is Uint16Array {
  return nameOf.call(value) === 'Uint16Array';
}

/** Returns whether a value is an ArrayBuffer, detached or not. A SharedArrayBuffer is not one. */
export function isArrayBuffer(value: unknown): value is ArrayBuffer {
  try {
    byteLengthOf.call(value);
    return true;
  } catch {
    return false;
  }
}

/** Returns whether a value is an error of JavaScript. Without Error.isError(), one with a Symbol.toStringTag is not. */
export function isError(value: unknown): value is Error {
  if (ownIsError) return ownIsError(value);
  try {
    return tagged.call(value) === '[object Error]' && !(Symbol.toStringTag in (value as object));
  } catch {
    return false; // a Proxy that throws, or that was revoked
  }
}

export function isPromise(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as PromiseLike<unknown> | null | undefined)?.then === 'function';
}

/** Returns the getter of a property, which also works for objects without a prototype or with another property. */
export function getterOf<T>(prototype: object, name: string | symbol): (this: unknown) => T {
  return Object.getOwnPropertyDescriptor(prototype, name)!.get!;
}

/** The prototype of the prototypes of all typed arrays. */
export const TYPED_ARRAY: object = Object.getPrototypeOf(Uint8Array.prototype);
const nameOf = getterOf<string | undefined>(TYPED_ARRAY, Symbol.toStringTag);
const byteLengthOf = getterOf<number>(ArrayBuffer.prototype, 'byteLength');
const { toString: tagged } = Object.prototype;
const { isError: ownIsError } = Error as ErrorConstructor & { isError?(value: unknown): boolean };
