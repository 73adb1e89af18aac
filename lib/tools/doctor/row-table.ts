// What the doctor remembers of each row, in a few bytes: its place in the files and its group.
import { Growing } from '../parts/growing.js';
import type { Place } from '../rollouts/index.js';

/** A set of rows, by their indices. It takes one bit per row. */
export class RowSet {
  /** The number of rows in the set. */
  size = 0;
  #bits = new Uint8Array(0);

  add(row: number): void {
    if (this.has(row)) return;
    const byte = row >> 3;
    if (byte >= this.#bits.length) {
      const grown = new Uint8Array(Math.max(128, 2 * byte));
      grown.set(this.#bits);
      this.#bits = grown;
    }
    this.#bits[byte]! |= 1 << (row & 7);
    this.size++;
  }

  has(row: number): boolean {
    return ((this.#bits[row >> 3] ?? 0) & (1 << (row & 7))) !== 0;
  }
}

// What the number of a place counts.
const NOTHING = 0;
const LINES = 1;
const ROWS = 2;

/** The place and the ids of every row. */
export class RowTable {
  readonly #files: string[] = [];
  readonly #fileNumbers = new Map<string, number>();
  readonly #file = new Growing((length) => new Uint32Array(length));
  readonly #number = new Growing((length) => new Float64Array(length));
  readonly #counted = new Growing((length) => new Uint8Array(length));
  readonly #group = new Growing((length) => new Float64Array(length));
  readonly #run = new Growing((length) => new Float64Array(length));

  /** The number of rows. */
  get length(): number {
    return this.#file.length;
  }

  /**
   * Adds the next row.
   * @param group the number of the row's group; NaN without groups.
   * @param run the number of the row's run_id; NaN without run ids.
   */
  add({ file, line, row }: Place, group: number, run: number): void {
    let fileNumber = this.#fileNumbers.get(file);
    if (fileNumber === undefined) {
      fileNumber = this.#files.push(file) - 1;
      this.#fileNumbers.set(file, fileNumber);
    }
    this.#file.push(fileNumber);
    this.#number.push(line ?? row ?? 0);
    this.#counted.push(line !== undefined ? LINES : row !== undefined ? ROWS : NOTHING);
    this.#group.push(group);
    this.#run.push(run);
  }

  /** The names of the files. */
  get files(): readonly string[] {
    return this.#files;
  }

  /** For each row, the index of its file, the number of its place, what this number counts, and its ids. */
  get columns() {
    return {
      fileNumbers: this.#file.values,
      numbers: this.#number.values,
      counted: this.#counted.values,
      groups: this.#group.values,
      runs: this.#run.values,
    };
  }

  placeOf(index: number): Place {
    const number = this.#number.values[index]!;
    return RowTable.place(this.fileOf(index), number, this.#counted.values[index]!);
  }

  /** Returns the place with a number. */
  static place(file: string, number: number, counted: number): Place {
    if (counted === NOTHING) return { file };
    return counted === LINES ? { file, line: number } : { file, row: number };
  }

  fileOf(index: number): string {
    return this.#files[this.#file.values[index]!]!;
  }

  /** Returns the number of the row's group; NaN without groups. */
  groupOf(index: number): number {
    return this.#group.values[index]!;
  }

  /** Returns the number of the row's run_id; NaN without run ids. */
  runOf(index: number): number {
    return this.#run.values[index]!;
  }

  /** Returns the rows whose groups are in a set. */
  rowsOf(groups: ReadonlySet<number>): RowSet {
    const rows = new RowSet();
    this.#group.values.forEach((group, index) => {
      if (groups.has(group)) rows.add(index);
    });
    return rows;
  }
}
