// Limits the memory that the pages of a Parquet file take, and what they unpack to in all.
import type { RowLimits } from '../limits.js';
import { Malformed } from './malformed.js';

// What the pages that are open at the same time may take. Each column has one page open, and a dictionary.
const MEMORY = 600e6;
const BYTES_PER_TOKEN = 64;
// What all pages together may unpack to, as in gzip.
const MIN_UNPACKED = 2 ** 30;
const UNPACKED_PER_BYTE = 1024;

/** What is left for one file. */
export class Budget {
  readonly #memory: number;
  readonly #unpacked: number;
  #held = 0;
  #total = 0;

  constructor(fileSize: number, { maxRowTokens }: RowLimits) {
    this.#memory = Math.max(MEMORY, BYTES_PER_TOKEN * maxRowTokens);
    this.#unpacked = MIN_UNPACKED + UNPACKED_PER_BYTE * fileSize;
  }

  /** Adds bytes of memory. Call it before they are allocated. */
  take(bytes: number): void {
    this.#held += bytes;
    if (this.#held > this.#memory)
      throw new Malformed({
        expected: `pages that take at most ${this.#memory} bytes together`,
        received: 'more',
        hint: 'If the file is whole, write row groups of fewer rows, or smaller pages',
      });
  }

  release(bytes: number): void {
    this.#held -= bytes;
  }

  /** Returns whether unpack() would accept the bytes. */
  canUnpack(bytes: number): boolean {
    return this.#total + bytes <= this.#unpacked;
  }

  /** Counts bytes that were unpacked. */
  unpack(bytes: number): void {
    const isWithin = this.canUnpack(bytes);
    this.#total += bytes;
    if (!isWithin)
      throw new Malformed({
        expected: `pages that unpack to at most ${this.#unpacked} bytes`,
        received: 'more',
      });
  }
}
