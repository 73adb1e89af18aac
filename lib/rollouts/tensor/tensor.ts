// The interface of tensor files: tensors by name, each read sequentially.
import type { Dtype } from './dtype.js';

/** Reads bytes sequentially. */
export interface ByteReader {
  /**
   * Returns the next bytes, in memory of their own. The file's actual length bounds the allocation.
   * @throws LossError if the file ends too early.
   */
  read(bytes: number): Promise<Uint8Array>;
  close(): Promise<void>;
}

/** A tensor in a file. */
export interface Tensor {
  name: string;
  shape: readonly number[];
  dtype: Dtype;
  /** Opens a reader of the elements, in row-major order. */
  open(): Promise<ByteReader>;
}

/** A file of tensors. */
export interface TensorFile {
  names: readonly string[];
  /** @throws LossError if the tensor's dtype or layout is not supported. */
  tensor(name: string): Promise<Tensor>;
  close(): Promise<void>;
}

/** Returns the number of elements of a shape. */
export function sizeOfShape(shape: readonly number[]): number {
  return shape.reduce((product, n) => product * n, 1);
}

/** Returns a shape as messages show it: [2, 3]. */
export function describeShape(shape: readonly number[]): string {
  return `[${shape.join(', ')}]`;
}
