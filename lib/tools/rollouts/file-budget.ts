// Limits what reading a file takes. A small file can name the same bytes, objects and rows again and again.
import { badFile } from './source.js';

/** The memory and the work that a file may still take, together with all files inside it. */
export class FileBudget {
  readonly #file: string;
  readonly #work: number;
  #held = 0;
  #worked = 0;

  /** @param size the size of the file in bytes. */
  constructor(file: string, size: number) {
    this.#file = file;
    this.#work = WORK_PER_BYTE * size + Math.min(MORE_WORK, MORE_WORK_PER_BYTE * size);
  }

  /**
   * Adds bytes of objects and copies that stay in memory. Call it before they are made.
   * @throws LossError `ERR_INVALID_INPUT` if they are too many.
   */
  hold(bytes: number): void {
    this.#held += bytes;
    if (this.#held > MAX_HELD)
      throw badFile(this.#file, {
        expected: `objects and copies of at most ${MAX_HELD} bytes in memory`,
        received: 'more',
      });
  }

  /**
   * Counts bytes that are read, copied or converted.
   * @throws LossError `ERR_INVALID_INPUT` if they are too many for the size of the file.
   */
  work(bytes: number): void {
    this.#worked += bytes;
    if (this.#worked > this.#work)
      throw badFile(this.#file, {
        expected: `rows and objects of at most ${this.#work} bytes, for the size of the file`,
        received: 'more, which share the same bytes',
      });
  }
}

// Ten tensors for each of several thousand rollouts fit.
const MAX_HELD = 3 * 2 ** 26;
// Most bytes are read once for each column that needs them. A tensor that repeats its elements takes less in the file.
const WORK_PER_BYTE = 64;
const MORE_WORK_PER_BYTE = 1024;
const MORE_WORK = 2 ** 28;
