/** Fills the memory of results before native code writes them. */
import { Buffer } from 'node:buffer';

const { allocUnsafeSlow } = Buffer;

/**
 * Calls `compute` with results in memory that is full of the given byte. The float32 and 16-bit numbers of 255 are NaN.
 * @throws Error if the call takes no memory for a result.
 */
export async function inMemoryOf<T>(byte: number, compute: () => T | Promise<T>): Promise<T> {
  let taken = 0;
  Buffer.allocUnsafeSlow = (bytes) => {
    taken++;
    return Buffer.from(new Uint8Array(bytes).fill(byte).buffer);
  };
  try {
    const result = await compute();
    if (taken === 0) throw new Error('expected results in new memory, got none');
    return result;
  } finally {
    Buffer.allocUnsafeSlow = allocUnsafeSlow;
  }
}
