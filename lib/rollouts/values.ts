// The values that readers return for a row's columns, in addition to plain JSON values.

/** A list of numbers as a typed array. */
export type NumberArray =
  | Float32Array
  | Float64Array
  | Uint8Array
  | Int8Array
  | Uint16Array
  | Int16Array
  | Uint32Array
  | Int32Array;

/** Returns whether a value is an array or a typed array of numbers. */
export function isList(value: unknown): value is readonly unknown[] | NumberArray {
  if (!ArrayBuffer.isView(value)) return Array.isArray(value);
  return !(value instanceof DataView || value instanceof BigInt64Array || value instanceof BigUint64Array);
}

/** Converts an integer to a number, or to text if a number could not represent it exactly. */
export function numberOrText(integer: bigint): number | string {
  const number = Number(integer);
  return Number.isSafeInteger(number) ? number : String(integer);
}
