// Decodes the values of a page. Nulls have no value. hyparquet decodes all values except for Booleans and for indices of a
// dictionary, which are stored in runs.
import type { SchemaElement } from 'hyparquet';
import type { Convert } from './convert.js';
import { decodeValues } from './decode.js';
import { Malformed } from './malformed.js';
import { Runs, walkDeltas } from './runs.js';

export const [PLAIN, RLE] = [0, 3];
const [PLAIN_DICTIONARY, DELTA, DELTA_LENGTH, DELTA_BYTES, RLE_DICTIONARY] = [2, 5, 6, 7, 8];
const LENGTH_BYTES = 4;
// What the values of a page that repeat the beginning of their predecessor may take in all.
const MAX_PREFIXES = 2 ** 28;
// How many values of a page are decoded at a time: MAX_COUNT, or fewer if they have more than MAX_BYTES.
const MAX_COUNT = 2 ** 16;
const MAX_BYTES = 2 ** 22;
const FEW = { count: MAX_COUNT, bytes: 0 };
// The number of bytes of the types of fixed length.
const WIDTHS: { [type in NonNullable<SchemaElement['type']>]?: number } = {
  INT32: 4,
  INT64: 8,
  INT96: 12,
  FLOAT: 4,
  DOUBLE: 8,
};

/** The values of a page, in order. */
export interface PageValues {
  /** Returns how many entries to read next, and the size of their values in the page, or 0 if it is small. */
  next(): { count: number; bytes: number };
  /** Decodes and converts the next values, at least one. */
  take(count: number): Promise<ArrayLike<unknown>>;
}

/** @param dictionary the values of the chunk's dictionary. */
export function valuesOf(
  bytes: Uint8Array,
  encoding: unknown,
  element: SchemaElement,
  dictionary: ArrayLike<unknown>,
  convert: Convert | undefined,
): PageValues {
  if (encoding === PLAIN_DICTIONARY || encoding === RLE_DICTIONARY) return indexed(bytes, dictionary);
  if (element.type === 'BOOLEAN') return booleans(bytes, encoding);
  const decode = async (count: number, stored: Uint8Array) => {
    const values = await decodeValues(element, encoding as number, count, stored);
    return convert ? Array.from(values, (value) => convert(value)) : values;
  };
  if (encoding !== PLAIN) {
    const take = (count: number) => {
      checkDeltas(bytes, encoding, count);
      return decode(count, bytes);
    };
    return { next: () => ({ count: Number.POSITIVE_INFINITY, bytes: bytes.length }), take };
  }
  let at = 0;
  const walk = walkerOf(bytes, element);
  const next = () => {
    const { count, end } = walk(at, MAX_COUNT, MAX_BYTES);
    return end - at < MAX_BYTES ? FEW : { count, bytes: Math.min(end, bytes.length) - at };
  };
  const take = (count: number) => {
    const start = at;
    at = walk(at, count, Number.POSITIVE_INFINITY).end;
    return decode(count, bytes.subarray(start, at));
  };
  return { next, take };
}

/** Returns a function that walks through plain values until they are enough or have enough bytes. */
function walkerOf(bytes: Uint8Array, { type, type_length }: SchemaElement) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const width = type === 'BYTE_ARRAY' ? undefined : (WIDTHS[type!] ?? type_length);
  return (start: number, maxCount: number, maxBytes: number) => {
    let count = 0;
    let end = start;
    if (width !== undefined) {
      count = Math.min(maxCount, Math.ceil(maxBytes / width));
      return { count, end: start + count * width };
    }
    for (; count < maxCount && end - start < maxBytes && end + LENGTH_BYTES <= bytes.length; count++)
      end += LENGTH_BYTES + view.getUint32(end, true);
    return { count, end };
  };
}

function indexed(bytes: Uint8Array, dictionary: ArrayLike<unknown>): PageValues {
  if (dictionary.length === 0) throw new Malformed('a dictionary', 'none');
  const [width = 255] = bytes;
  if (width > 32) throw new Malformed('indices of at most 32 bits', width);
  const runs = new Runs(bytes.subarray(1), width, dictionary.length - 1);
  const made = dictionary.constructor as new (length: number) => unknown[];
  const take = async (count: number) => {
    const values = new made(count);
    const indices = runs.read(new Uint32Array(count));
    for (let i = 0; i < count; i++) values[i] = dictionary[indices[i]!];
    return values;
  };
  return { next: () => FEW, take };
}

function booleans(bytes: Uint8Array, encoding: unknown): PageValues {
  if (encoding !== PLAIN && encoding !== RLE)
    throw new Malformed('an encoding of Booleans', `number ${encoding}`);
  const runs = encoding === PLAIN ? Runs.ofBits(bytes) : new Runs(bytes.subarray(LENGTH_BYTES), 1, 1);
  const take = async (count: number) => Array.from(runs.read(new Uint8Array(count)), (bit) => bit === 1);
  return { next: () => FEW, take };
}

/** Checks differences, for which hyparquet could take any time and memory. */
function checkDeltas(bytes: Uint8Array, encoding: unknown, count: number): void {
  if (encoding !== DELTA && encoding !== DELTA_LENGTH && encoding !== DELTA_BYTES) return;
  const { end, sum } = walkDeltas(bytes, 0, count);
  if (encoding !== DELTA_BYTES) return;
  if (sum > MAX_PREFIXES) throw new Malformed(`at most ${MAX_PREFIXES} repeated bytes`, 'more');
  walkDeltas(bytes, end, count);
}
