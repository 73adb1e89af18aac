// Reads a range of a file's bytes in order.
import type { FileHandle } from 'node:fs/promises';
import { badFile } from '../source.js';
import type { ByteReader } from './tensor.js';

/**
 * Returns a reader of the bytes of an open file from `begin` to before `end`. Closing the reader does not close the file.
 * The range must be within the file, so that a reader can allocate all requested bytes at once.
 */
export function rangeReader(file: string, handle: FileHandle, begin: number, end: number): ByteReader {
  let position = begin;
  const tooShort = (missing: number) =>
    badFile(file, { expected: `${missing} more bytes at ${position}`, received: 'the end of the file' });
  return {
    async read(bytes) {
      if (bytes > end - position) throw tooShort(bytes);
      const target = new Uint8Array(bytes);
      for (let done = 0; done < bytes; ) {
        const { bytesRead } = await handle.read(target, done, bytes - done, position);
        if (bytesRead === 0) throw tooShort(bytes - done);
        done += bytesRead;
        position += bytesRead;
      }
      return target;
    },
    close: async () => {},
  };
}
