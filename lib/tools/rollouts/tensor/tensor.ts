// The interface of files that hold named tensors. The elements of each tensor are read in order.
import type { Dtype } from './dtype.js';

/** Reads bytes in order, from the first to the last. */
export interface ByteReader {
  /**
   * Returns the next bytes, in memory that belongs to the caller. A malicious file may claim to hold more than it does,
   * so a reader must not allocate more memory than the file's actual contents need.
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
  /** Opens a reader of the tensor's elements, in row-major order. */
  open(): Promise<ByteReader>;
}

/** A file of tensors. */
export interface TensorFile {
  names: readonly string[];
  /**
   * Returns the tensor with one of the `names`.
   * @throws LossError if the tensor's dtype or layout is not supported.
   */
  tensor(name: string): Promise<Tensor>;
  close(): Promise<void>;
}

/** Returns the number of elements of a tensor with this shape. */
export function sizeOfShape(shape: readonly number[]): number {
  return shape.reduce((product, n) => product * n, 1);
}

/** Returns a shape as text for messages, such as '[2, 3]'. */
export function describeShape(shape: readonly number[]): string {
  return `[${shape.join(', ')}]`;
}
