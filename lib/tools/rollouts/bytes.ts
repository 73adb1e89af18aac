// Random access to bytes: of a file, or of a value that another file holds. Nothing is read before it is asked for.
import { readSync } from 'node:fs';
import { badFile, cannotRead } from './source.js';

/** What holds the bytes. */
export interface ByteSource {
  /** Fills `target` with the bytes from `position` on. Returns how many bytes there were. */
  read(position: number, target: Uint8Array): number;
}

/** A range of bytes. */
export class Bytes {
  /** The name of the file, for error messages. */
  readonly file: string;
  /** Where the range begins in its file. */
  readonly start: number;
  readonly size: number;
  readonly #source: ByteSource;

  constructor(file: string, source: ByteSource, size: number, start = 0) {
    this.file = file;
    this.start = start;
    this.size = size;
    this.#source = source;
  }

  /** Returns the bytes of an open file. The caller closes the file. */
  static ofFile(file: string, descriptor: number, size: number): Bytes {
    const read = (position: number, target: Uint8Array) => {
      let done = 0;
      while (done < target.length) {
        const count = readSync(descriptor, target, done, target.length - done, position + done);
        if (count === 0) break;
        done += count;
      }
      return done;
    };
    return new Bytes(file, { read }, size);
  }

  /** Returns the bytes of an array. */
  static ofArray(file: string, array: Uint8Array): Bytes {
    const read = (position: number, target: Uint8Array) => {
      target.set(array.subarray(position, position + target.length));
      return target.length;
    };
    return new Bytes(file, { read }, array.length);
  }

  /**
   * Returns a part of the range.
   * @throws LossError if the range does not have these bytes.
   */
  slice(start: number, size = this.size - start): Bytes {
    this.#check(start, size);
    return new Bytes(this.file, this.#source, size, this.start + start);
  }

  /**
   * Reads bytes into memory of their own, which is aligned for typed arrays.
   * @throws LossError if the range does not have these bytes, before any memory is allocated, or if they cannot be read.
   */
  read(start = 0, size = this.size - start): Uint8Array {
    this.#check(start, size);
    const target = new Uint8Array(size);
    let count: number;
    try {
      count = this.#source.read(this.start + start, target);
    } catch (error) {
      throw cannotRead(this.file, error);
    }
    if (count < size) throw this.#tooShort(start, size);
    return target;
  }

  #check(start: number, size: number): void {
    if (!(start >= 0 && size >= 0 && start + size <= this.size)) throw this.#tooShort(start, size);
  }

  #tooShort(start: number, size: number) {
    return badFile(this.file, {
      expected: `${size} bytes at byte ${this.start + start}`,
      received: `${Math.max(0, this.size - start)}`,
      hint: 'The file may be truncated',
    });
  }
}
