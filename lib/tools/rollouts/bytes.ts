// Random access to bytes: of a file, or of a value that another file holds. Nothing is read before it is asked for.
import { readSync } from 'node:fs';
import { FileBudget } from './file-budget.js';
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
  /** What all ranges of the file may take together. */
  readonly budget: FileBudget;
  readonly #source: ByteSource;
  #kept: Uint8Array | undefined;

  constructor(
    file: string,
    source: ByteSource,
    size: number,
    start = 0,
    budget = new FileBudget(file, size),
  ) {
    this.file = file;
    this.start = start;
    this.size = size;
    this.budget = budget;
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

  /**
   * Returns the bytes of an array.
   * @param budget that of the file that the array is from, if it is not a file of its own.
   */
  static ofArray(file: string, array: Uint8Array, budget?: FileBudget): Bytes {
    const read = (position: number, target: Uint8Array) => {
      target.set(array.subarray(position, position + target.length));
      return target.length;
    };
    return new Bytes(file, { read }, array.length, 0, budget);
  }

  /**
   * Returns a part of the range.
   * @throws LossError if the range does not have these bytes.
   */
  slice(start: number, size = this.size - start): Bytes {
    this.#check(start, size);
    return new Bytes(this.file, this.#source, size, this.start + start, this.budget);
  }

  /**
   * Reads bytes into memory of their own, which is aligned for typed arrays.
   * @throws LossError if the range does not have these bytes, before any memory is allocated, or if they cannot be read.
   */
  read(start = 0, size = this.size - start): Uint8Array {
    this.#check(start, size);
    this.budget.work(READ_WORK + size);
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

  /** Returns all bytes, which stay in memory. Further calls return the same array. */
  kept(): Uint8Array {
    if (!this.#kept) {
      this.budget.hold(this.size);
      this.#kept = this.read();
    }
    return this.#kept;
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

// A read of a few bytes takes as long as a copy of this many.
const READ_WORK = 256;
