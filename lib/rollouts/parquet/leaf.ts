// Reads a stored column of a row group entry by entry, across its pages. An entry has levels, and a value if it is not
// null.
import { type RowLimits, tooManyTokens } from '../limits.js';
import { BadCell } from '../table.js';
import type { Budget } from './budget.js';
import { converterOf } from './convert.js';
import type { Chunk, ParquetFile } from './file.js';
import { Malformed } from './malformed.js';
import { PageReader } from './pages.js';
import type { Page } from './slices.js';
import type { Numbers } from './values.js';

/** A stored column of a row group. */
export class LeafReader {
  readonly #reader: PageReader;
  readonly #pages: Iterator<Page, void>;
  readonly #name: string;
  readonly #max: number;
  #page: Page | undefined;

  constructor(file: ParquetFile, chunk: Chunk, limits: RowLimits, budget: Budget) {
    this.#reader = new PageReader(file, chunk, converterOf(chunk.leaf.element, limits), budget);
    this.#pages = this.#reader.pages();
    this.#name = chunk.leaf.element.name;
    this.#max = chunk.leaf.definition;
  }

  /** Prepares the next entries, so that less memory is needed to read them. */
  prepare(): Promise<void> {
    return this.#reader.prepare();
  }

  /** Returns whether all entries were read. */
  get ended(): boolean {
    while (!this.#page || this.#page.left === 0) {
      // The memory of this page is free before the next one takes any.
      this.#page = undefined;
      const { value, done } = this.#pages.next();
      if (done) return true;
      this.#page = value as Page;
    }
    return false;
  }

  /** The repetition level of the next entry, or 0 at the end. */
  get repetition(): number {
    return this.ended ? 0 : this.#page!.repetitions.peek();
  }

  /** The definition level of the next entry. */
  get definition(): number {
    return this.#open().definitions.peek();
  }

  /** Checks that the next entry begins a row. */
  beginRow(): void {
    this.#open();
    if (this.repetition !== 0) throw this.#malformed('the first value of a row', 'a later one');
  }

  /** Checks that all entries were read. */
  end(): void {
    if (!this.ended) throw this.#malformed('as many rows as the row group states', 'more');
  }

  /** Reads an entry. Returns its value, or null. */
  next(): unknown {
    const page = this.#open();
    page.left--;
    page.repetitions.next();
    return page.definitions.next() === this.#max ? page.values.next() : null;
  }

  /** Reads an entry without converting its value. */
  skip(): void {
    const page = this.#open();
    page.left--;
    page.repetitions.next();
    if (page.definitions.next() === this.#max) page.values.skip(1);
  }

  /**
   * Reads a list of numbers, which is a row.
   * @param present the definition level from which on an entry is an element.
   */
  numbers(present: number, limits: RowLimits): Numbers | readonly unknown[] | BadCell {
    const list = new NumberList(limits.maxRowTokens);
    do {
      const page = this.#open();
      const first = list.length === 0 ? 1 : 0;
      if (first) page.repetitions.next();
      const entries = first + page.repetitions.take(1, page.left - first);
      page.left -= entries;
      for (let left = entries; left > 0; ) {
        const values = page.definitions.take(this.#max, left);
        list.append(page, values);
        left -= values;
        if (left === 0) break;
        if (page.definitions.next() < present) throw this.#malformed('an element of a list', 'none');
        list.push(null);
        left--;
      }
    } while (this.repetition === 1);
    if (list.length > limits.maxRowTokens) return new BadCell(tooManyTokens(limits, list.length));
    return list.values;
  }

  #open(): Page {
    if (this.ended) throw this.#malformed('as many rows as the row group states', 'fewer');
    return this.#page!;
  }

  #malformed(expected: string, received: string): Malformed {
    return new Malformed({ key: this.#name, expected, received });
  }
}

/** A list of numbers that is being read. Elements above the limit are counted only. */
class NumberList {
  length = 0;
  readonly #max: number;
  #numbers: Numbers = new Float64Array();
  /** All values, if one of them is not a number, or if they are converted one by one. */
  #others: unknown[] | undefined;

  constructor(max: number) {
    this.#max = max;
  }

  get values(): Numbers | readonly unknown[] {
    return this.#others ?? this.#numbers.subarray(0, this.length);
  }

  /** Appends the next values of a page. */
  append({ values }: Page, count: number): void {
    if (count === 0) return;
    const end = this.length + count;
    const { empty } = values;
    if (end > this.#max) {
      values.skip(count);
      this.length = end;
    } else if (empty && !this.#others && this.#makeRoom(end, empty)) {
      values.copyTo!(this.#numbers, this.length, count);
      this.length = end;
    } else for (let i = 0; i < count; i++) this.push(values.next());
  }

  push(value: unknown): void {
    if (this.length < this.#max) {
      this.#others ??= Array.from(this.#numbers.subarray(0, this.length));
      this.#others.push(value);
    }
    this.length++;
  }

  /** Makes room for as many numbers. Returns false if the pages have numbers of different types. */
  #makeRoom(length: number, like: Numbers): boolean {
    if (this.length > 0 && this.#numbers.constructor !== like.constructor) return false;
    if (length > this.#numbers.length || this.length === 0) {
      const capacity = this.length === 0 ? length : Math.max(length, 2 * this.length);
      const grown = new (like.constructor as new (length: number) => Numbers)(capacity);
      grown.set(this.#numbers.subarray(0, this.length));
      this.#numbers = grown;
    }
    return true;
  }
}
