// Limits what the pages of a Parquet file take.
import type { RowLimits } from '../source.js';
import { Malformed } from './malformed.js';

/** What is left for one file. */
export class Budget {
  /** The memory for the open pages. Each column has one open page and a dictionary. */
  readonly #memory: number;
  /** The size to which all pages together may unpack. It is as much as in gzip. */
  readonly #unpacked: number;
  #held = 0;
  #total = 0;

  constructor(fileSize: number, { maxRowTokens }: RowLimits) {
    this.#memory = Math.max(600e6, 64 * maxRowTokens);
    this.#unpacked = 2 ** 30 + 1024 * fileSize;
  }

  /** Adds bytes of memory. Call it before they are allocated. */
  take(bytes: number): void {
    this.#held += bytes;
    if (this.#held > this.#memory)
      throw new Malformed(`pages that take at most ${this.#memory} bytes together`, 'more', {
        hint: (spell) =>
          `If the file is correct, write it with smaller pages or row groups, or raise ${spell('maxRowTokens')}`,
      });
  }

  release(bytes: number): void {
    this.#held -= bytes;
  }

  /** Counts bytes that are unpacked. */
  unpack(bytes: number): void {
    this.#total += bytes;
    if (this.#total > this.#unpacked)
      throw new Malformed(`pages that unpack to at most ${this.#unpacked} bytes`, 'more');
  }
}
