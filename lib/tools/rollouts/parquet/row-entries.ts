// Cuts the entries of a stored column into rows, and reads the entries of a row one by one.
import { BadCell } from '../table.js';
import { Malformed } from './malformed.js';
import type { Entries } from './pages.js';

/** The entries of a row, which are read in order. */
export class Row {
  /** The number of entries. If there are too many, none of them can be read. */
  readonly length: number;
  /** What is wrong with a value that was read; undefined if nothing is. */
  flaw: BadCell | undefined;
  readonly #entries: Entries;
  /** The definition level of a value that is not null. */
  readonly #max: number;
  /** The index of the next entry, and the one after the last entry. */
  #at: number;
  readonly #end: number;
  /** The index of the next value. */
  #value: number;

  constructor(length: number, entries: Entries, max: number, at: number, end: number, value: number) {
    this.length = length;
    this.#entries = entries;
    this.#max = max;
    this.#at = at;
    this.#end = end;
    this.#value = value;
  }

  get isAtEnd(): boolean {
    return this.#at === this.#end;
  }

  /** The repetition level of the next entry; 0 at the end. */
  get repetition(): number {
    return this.isAtEnd ? 0 : this.#entries.repetitions[this.#at]!;
  }

  /** The definition level of the next entry. */
  get definition(): number {
    if (this.isAtEnd) throw wrongLevels();
    return this.#entries.definitions[this.#at]!;
  }

  /** Reads an entry. Returns its value, or null. */
  next(): unknown {
    const isPresent = this.definition === this.#max;
    this.#at++;
    if (!isPresent) return null;
    const value = this.#entries.values[this.#value++];
    if (value instanceof BadCell) this.flaw ??= value;
    return value;
  }

  /** Reads all entries if none of them is null. Otherwise returns undefined. */
  all(): ArrayLike<unknown> | undefined {
    const { values } = this.#entries;
    const end = this.#value + this.#end - this.#at;
    if (presentIn(this.#entries, this.#max, this.#at, this.#end) < end - this.#value) return undefined;
    this.#at = this.#end;
    const some = sliceOf(values, this.#value, end);
    if (Array.isArray(some)) this.flaw = some.find((value) => value instanceof BadCell);
    return some;
  }
}

/**
 * Cuts entries into rows. Yields some rows at a time.
 * @param max the definition level of a value that is not null.
 * @param maxLength the number of entries above which those of a row are not kept.
 */
export async function* rowsOf(
  source: AsyncIterable<Entries>,
  max: number,
  maxLength: number,
): AsyncGenerator<Row[], void> {
  let entries: Entries = { repetitions: new Uint8Array(), definitions: new Uint8Array(), values: [] };
  // The beginning of the row whose end was not seen, its first value, and the number of its entries that were not kept.
  let [start, value, dropped] = [0, 0, 0];
  const rowUntil = (end: number): Row => {
    const row = new Row(dropped + end - start, entries, max, start, end, value);
    value += presentIn(entries, max, start, end);
    [start, dropped] = [end, 0];
    return row;
  };
  for await (const more of source) {
    const length = entries.repetitions.length - start;
    if (dropped + length === 0 && more.repetitions[0] !== 0) throw wrongLevels();
    if (length > maxLength) {
      dropped += length;
      entries = more;
    } else
      entries = {
        repetitions: joined(entries.repetitions, start, more.repetitions) as Uint8Array,
        definitions: joined(entries.definitions, start, more.definitions) as Uint8Array,
        values: joined(entries.values, value, more.values),
      };
    [start, value] = [0, 0];
    const rows: Row[] = [];
    for (;;) {
      const end = entries.repetitions.indexOf(0, dropped > 0 ? start : start + 1);
      if (end < 0) break;
      rows.push(rowUntil(end));
    }
    yield rows;
  }
  if (dropped > 0 || start < entries.repetitions.length) yield [rowUntil(entries.repetitions.length)];
}

/** Counts the entries that have a value. */
function presentIn({ definitions, values }: Entries, max: number, start: number, end: number): number {
  if (values.length === definitions.length) return end - start;
  let present = 0;
  for (let i = start; i < end; i++) if (definitions[i] === max) present++;
  return present;
}

/** Joins the elements of an array from `start` on and those of another one. */
function joined(array: ArrayLike<unknown>, start: number, more: ArrayLike<unknown>): ArrayLike<unknown> {
  const rest = sliceOf(array, start, array.length);
  if (rest.length === 0) return more;
  if (more.length === 0) return rest;
  if (!ArrayBuffer.isView(rest) || rest.constructor !== more.constructor)
    return Array.from(rest).concat(Array.from(more));
  const whole = new (rest.constructor as typeof Uint8Array)(rest.length + more.length);
  whole.set(rest as unknown as Uint8Array);
  whole.set(more as Uint8Array, rest.length);
  return whole;
}

function sliceOf(array: ArrayLike<unknown>, start: number, end: number): ArrayLike<unknown> {
  if (ArrayBuffer.isView(array)) return (array as unknown as Uint8Array).subarray(start, end);
  return (array as unknown[]).slice(start, end);
}

export function wrongLevels(): Malformed {
  return new Malformed('levels that fit together', 'others');
}
