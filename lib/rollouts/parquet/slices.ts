// Divides a long page, of which only a piece is in memory at a time, into shorter ones.
import type { SchemaElement } from 'hyparquet';
import type { HybridReader } from './hybrid.js';
import type { PageBytes } from './page-bytes.js';
import {
  type Convert,
  type Dictionary,
  indexedValues,
  isIndexed,
  isPlain,
  type PageValues,
  valuesOf,
  wholeValues,
} from './values.js';

/** A page of data, or a slice of it. Levels and values are read from it in order. */
export interface Page {
  /** The number of entries that were not read yet. An entry has levels, and a value if it is not null. */
  left: number;
  repetitions: HybridReader;
  definitions: HybridReader;
  values: PageValues;
}

/** A page whose values are not decoded yet. */
export interface OpenedPage extends Omit<Page, 'values'> {
  /** The number of entries that are in no slice yet. */
  left: number;
  /** The bytes of the values. */
  bytes: PageBytes;
  encoding: unknown;
}

/**
 * Yields a page in slices: a short one as a whole. A slice is valid until the next one is asked for.
 * @param max the definition level of values that are not null.
 */
export function* slicesOf(
  page: OpenedPage,
  max: number,
  element: SchemaElement,
  convert: Convert,
  dictionary: Dictionary | undefined,
): Generator<Page, void> {
  const { repetitions, definitions, bytes, encoding } = page;
  const slice = (left: number, values: PageValues): Page => {
    page.left -= left;
    return { left, repetitions, definitions, values };
  };
  const decode = (from: Uint8Array, count: number) =>
    valuesOf(from, count, encoding, element, convert, dictionary);
  const present = presentIn(definitions, max, page.left);
  if (bytes.isWhole || (present > 0 && !isPlain(encoding))) {
    const isRead = !bytes.isWhole && isIndexed(encoding);
    const values = isRead ? indexedValues(bytes, dictionary) : decode(bytes.keep(bytes.left), present);
    yield slice(page.left, values);
  } else {
    const walked = definitions.restart();
    for (let left = present; page.left > 0; ) {
      const { count, length } = left > 0 ? wholeValues(bytes, left, element) : NOTHING;
      const entries = count < left ? entriesOf(walked, max, count) : page.left;
      yield slice(entries, decode(bytes.peek(0), count));
      bytes.skip(length);
      left -= count;
    }
  }
}

const NOTHING = { count: 0, length: 0 };

/** Counts the entries of a page that are not null. */
function presentIn(definitions: HybridReader, max: number, count: number): number {
  if (max === 0) return count;
  const levels = definitions.restart();
  let present = 0;
  for (let left = count; left > 0; ) {
    const taken = levels.take(max, left);
    present += taken;
    left -= taken;
    if (left > 0) left -= levels.take(levels.peek(), left);
  }
  return present;
}

/** Reads the levels of `values` values and of the nulls between them. Returns the number of levels. */
function entriesOf(levels: HybridReader, max: number, values: number): number {
  let entries = 0;
  for (let left = values; left > 0; ) {
    const taken = levels.take(max, left);
    left -= taken;
    entries += taken;
    if (left > 0) entries += levels.take(levels.peek(), Number.POSITIVE_INFINITY);
  }
  return entries;
}
