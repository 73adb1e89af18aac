// What files of tensors have in common: tensors by name, each read from its first byte to its last.
import type { Dtype } from './dtype.js';

/** Reads bytes one after another. */
export interface ByteReader {
  /**
   * The next so many, in memory of their own. No more is allocated than what the file really has.
   * @throws LossError where the file ends before.
   */
  read(bytes: number): Promise<Uint8Array>;
  close(): Promise<void>;
}

/** A tensor in a file. */
export interface Tensor {
  name: string;
  shape: readonly number[];
  dtype: Dtype;
  /** A reader of its elements, row-major. */
  open(): Promise<ByteReader>;
}

/** A file of tensors. */
export interface TensorFile {
  names: readonly string[];
  /** @throws LossError where it is of a type that is not read. */
  tensor(name: string): Promise<Tensor>;
  close(): Promise<void>;
}

/** How many elements a shape has. */
export function sizeOfShape(shape: readonly number[]): number {
  return shape.reduce((product, n) => product * n, 1);
}
