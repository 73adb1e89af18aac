// The values that file readers return for the columns of a row: JSON values, and typed arrays for lists of numbers.
import { typedArrayName } from '../../base/kinds.js';

/** A typed array that holds a list of numbers. */
export type NumberArray =
  | Float32Array
  | Float64Array
  | Uint8Array
  | Int8Array
  | Uint16Array
  | Int16Array
  | Uint32Array
  | Int32Array;

/** Returns whether a value is an array, or a typed array of numbers (not of bigints). */
export function isList(value: unknown): value is readonly unknown[] | NumberArray {
  const name = typedArrayName(value);
  return name === undefined ? Array.isArray(value) : !name.startsWith('Big');
}

/** Converts an integer to a number, or to text if it is too large for an exact number. */
export function numberOrText(integer: bigint): number | string {
  const number = Number(integer);
  return Number.isSafeInteger(number) ? number : String(integer);
}
