// Decodes the values of a page. Numbers are decoded at once into an array of their type. Bytes are decoded one by one,
// because a value may take more memory than its place in the page.
import type { SchemaElement } from 'hyparquet';
import { deltaBinaryUnpack } from 'hyparquet/src/delta.js';
import { type Convert, decimal, meaningOf, type Stored } from './convert.js';
import { HybridReader } from './hybrid.js';
import { decoding, Malformed } from './malformed.js';
import { PageBytes } from './page-bytes.js';

export type { Convert } from './convert.js';

/** An array of numbers that need no conversion. */
export type Numbers = Float32Array | Float64Array | Int32Array | Uint32Array;

/** The values of a page that are not null, in order. */
export interface PageValues {
  next(): unknown;
  skip(count: number): void;
  /** Copies the next values to an array. Only a page whose values are all numbers has this function. */
  copyTo?(target: Numbers, at: number, count: number): void;
  /** An array of the type that holds all values exactly. Only if `copyTo` exists. */
  empty?: Numbers;
}

/** The different values of a chunk. Pages refer to them by index. */
export interface Dictionary {
  length: number;
  valueAt(index: number): unknown;
  /** All values, if they are numbers. */
  numbers?: Numbers;
}

const [PLAIN, PLAIN_DICTIONARY, RLE, DELTA, DELTA_LENGTH, DELTA_BYTES, RLE_DICTIONARY, STREAM_SPLIT] = [
  0, 2, 3, 5, 6, 7, 8, 9,
];

/** Returns whether decoding a page takes memory for each of its values, whatever the size of the page. */
export function isDelta(encoding: unknown): boolean {
  return encoding === DELTA || encoding === DELTA_LENGTH || encoding === DELTA_BYTES;
}

/**
 * Decodes the values of a page.
 * @param count the number of values that are not null.
 */
export function valuesOf(
  bytes: Uint8Array,
  count: number,
  encoding: unknown,
  element: SchemaElement,
  convert: Convert,
  dictionary: Dictionary | undefined,
): PageValues {
  const { type } = element;
  if (count === 0) return new ArrayValues([]);
  if (isIndexed(encoding)) return indexedValues(PageBytes.whole(bytes), dictionary);
  if (type === 'BOOLEAN') return booleans(bytes, encoding);
  if (type === 'INT32' || type === 'INT64' || type === 'FLOAT' || type === 'DOUBLE') {
    if (encoding === PLAIN && type !== 'INT64' && isDirect(element))
      return new PlainValues(bytes, count, type);
    const stored =
      encoding === DELTA ? deltas(bytes, count, type).values : numbersIn(bytes, count, encoding, type);
    const numbers = exactNumbers(stored, element);
    return numbers ? new NumberValues(numbers) : new ArrayValues(stored, convert);
  }
  return new ByteValues(byteArrays(bytes, count, encoding, element), convert);
}

/** Returns whether each value can be decoded without the others. */
export function isPlain(encoding: unknown): boolean {
  return encoding === PLAIN;
}

/** Returns whether the values of a page are indices of a dictionary. */
export function isIndexed(encoding: unknown): boolean {
  return encoding === PLAIN_DICTIONARY || encoding === RLE_DICTIONARY;
}

/** Decodes the indices of a page. */
export function indexedValues(bytes: PageBytes, dictionary: Dictionary | undefined): PageValues {
  if (!dictionary?.length) throw new Malformed({ expected: 'a dictionary', received: 'none' });
  const [width = 255] = bytes.peek(1);
  if (width > 32) throw new Malformed({ expected: 'indices of at most 32 bits', received: `${width}` });
  bytes.skip(1);
  return new IndexedValues(new HybridReader(bytes, width, dictionary.length - 1), dictionary);
}

/**
 * Finds out how many values of a plain page can be decoded without the rest of the page.
 * @param most the number of values that are left.
 * @returns the number of values, at least 1, and of their bytes, which bytes.peek(0) returns.
 */
export function wholeValues(
  bytes: PageBytes,
  most: number,
  element: SchemaElement,
): { count: number; length: number } {
  const { type } = element;
  if (type === 'BYTE_ARRAY') return wholeArrays(bytes, most);
  const bits =
    type === 'BOOLEAN' ? 1 : 8 * (ARRAYS[type as NumberType]?.BYTES_PER_ELEMENT ?? widthOf(element)!);
  const window = bytes.peek(Math.ceil(bits / 8));
  const count = Math.min(most, Math.floor((8 * window.length) / bits));
  if (count === 0) throw ended();
  return { count, length: Math.ceil((count * bits) / 8) };
}

function wholeArrays(bytes: PageBytes, most: number): { count: number; length: number } {
  let window = bytes.peek(LENGTH_BYTES);
  let count = 0;
  let length = 0;
  for (; count < most; count++) {
    const start = length + LENGTH_BYTES;
    const end = start > window.length ? start : start + uint32(window, length);
    if (end > window.length) {
      if (count > 0) break;
      if (end > bytes.left) throw ended();
      window = bytes.peek(end);
    }
    length = end;
  }
  return { count, length };
}

/** Returns an unsigned integer of four bytes. */
export function uint32({ buffer, byteOffset, byteLength }: Uint8Array, at: number): number {
  return new DataView(buffer, byteOffset, byteLength).getUint32(at, true);
}

/** Decodes a dictionary. */
export function dictionaryOf(
  bytes: Uint8Array,
  count: number,
  element: SchemaElement,
  convert: Convert,
): Dictionary {
  const { type } = element;
  if (type === 'INT32' || type === 'INT64' || type === 'FLOAT' || type === 'DOUBLE') {
    const stored = numbersIn(bytes, count, PLAIN, type);
    const numbers = exactNumbers(stored, element);
    if (numbers) return { length: count, valueAt: (index) => numbers[index], numbers };
    return { length: count, valueAt: (index) => convert(stored[index]!) };
  }
  const least = widthOf(element) ?? LENGTH_BYTES;
  checkSize(bytes, count, least);
  const offsets = new Uint32Array(count + 1);
  const values = byteArrays(bytes, count, PLAIN, element);
  const starts = widthOf(element) === undefined ? LENGTH_BYTES : 0;
  for (let i = 0; i < count; i++) offsets[i + 1] = offsets[i]! + starts + values.next().length;
  const known = new Map<number, unknown>();
  const valueAt = (index: number) => {
    let value = known.get(index);
    if (value === undefined) {
      value = convert(bytes.subarray(offsets[index]! + starts, offsets[index + 1]!));
      known.set(index, value);
    }
    return value;
  };
  return { length: count, valueAt };
}

class NumberValues implements PageValues {
  readonly #numbers: Numbers;
  #at = 0;

  constructor(numbers: Numbers) {
    this.#numbers = numbers;
  }

  get empty(): Numbers {
    return this.#numbers.subarray(0, 0);
  }

  next(): unknown {
    return this.#numbers[this.#at++];
  }

  skip(count: number): void {
    this.#at += count;
  }

  copyTo(target: Numbers, at: number, count: number): void {
    target.set(this.#numbers.subarray(this.#at, this.#at + count), at);
    this.#at += count;
  }
}

/** Numbers that are copied from the page when they are asked for, because they may lie at any byte of it. */
class PlainValues implements PageValues {
  readonly empty: Numbers;
  readonly #bytes: Uint8Array;
  readonly #width: number;
  readonly #one: Numbers;
  #at = 0;

  constructor(bytes: Uint8Array, count: number, type: 'INT32' | 'FLOAT' | 'DOUBLE') {
    const made = ARRAYS[type];
    checkSize(bytes, count, made.BYTES_PER_ELEMENT);
    this.empty = new made();
    this.#bytes = bytes;
    this.#width = made.BYTES_PER_ELEMENT;
    this.#one = new made(1);
  }

  next(): unknown {
    this.copyTo(this.#one, 0, 1);
    return this.#one[0];
  }

  skip(count: number): void {
    this.#at += count * this.#width;
  }

  copyTo(target: Numbers, at: number, count: number): void {
    const end = this.#at + count * this.#width;
    const place = target.byteOffset + at * this.#width;
    new Uint8Array(target.buffer, place, count * this.#width).set(this.#bytes.subarray(this.#at, end));
    this.#at = end;
  }
}

class ArrayValues implements PageValues {
  readonly #values: ArrayLike<Stored>;
  readonly #convert: Convert;
  #at = 0;

  constructor(values: ArrayLike<Stored>, convert: Convert = (value) => value) {
    this.#values = values;
    this.#convert = convert;
  }

  next(): unknown {
    return this.#convert(this.#values[this.#at++]!);
  }

  skip(count: number): void {
    this.#at += count;
  }
}

class IndexedValues implements PageValues {
  readonly #indices: HybridReader;
  readonly #dictionary: Dictionary;
  readonly copyTo?: NonNullable<PageValues['copyTo']>;
  readonly empty?: Numbers;

  constructor(indices: HybridReader, dictionary: Dictionary) {
    this.#indices = indices;
    this.#dictionary = dictionary;
    const { numbers } = dictionary;
    if (numbers) {
      this.copyTo = (target, at, count) => indices.lookUp(numbers, target, at, count);
      this.empty = numbers.subarray(0, 0);
    }
  }

  next(): unknown {
    return this.#dictionary.valueAt(this.#indices.next());
  }

  skip(count: number): void {
    this.#indices.skip(count);
  }
}

class ByteValues implements PageValues {
  readonly #arrays: ByteArrays;
  readonly #convert: Convert;

  constructor(arrays: ByteArrays, convert: Convert) {
    this.#arrays = arrays;
    this.#convert = convert;
  }

  next(): unknown {
    return this.#convert(this.#arrays.next());
  }

  skip(count: number): void {
    for (let i = 0; i < count; i++) this.#arrays.next();
  }
}

/** Booleans are packed, or run-length encoded after the length of the runs. */
function booleans(bytes: Uint8Array, encoding: unknown): PageValues {
  let next: () => boolean;
  if (encoding === RLE) {
    const runs = new HybridReader(bytes.subarray(LENGTH_BYTES), 1, 1);
    next = () => runs.next() === 1;
  } else if (encoding === PLAIN) {
    let at = 0;
    next = () => {
      const byte = bytes[at >> 3];
      if (byte === undefined) throw ended();
      return (byte & (1 << (at++ & 7))) !== 0;
    };
  } else throw unknownEncoding(encoding);
  const skip = (count: number) => {
    for (let i = 0; i < count; i++) next();
  };
  return { next, skip };
}

type NumberType = 'INT32' | 'INT64' | 'FLOAT' | 'DOUBLE';
const ARRAYS = { INT32: Int32Array, INT64: BigInt64Array, FLOAT: Float32Array, DOUBLE: Float64Array };

type StoredNumbers = Int32Array | BigInt64Array | Float32Array | Float64Array;

function numbersIn(bytes: Uint8Array, count: number, encoding: unknown, type: NumberType): StoredNumbers {
  const made = ARRAYS[type];
  const width = made.BYTES_PER_ELEMENT;
  checkSize(bytes, count, width);
  if (encoding === STREAM_SPLIT) return new made(joined(bytes, count, width).buffer);
  if (encoding !== PLAIN) throw unknownEncoding(encoding);
  const isAligned = bytes.byteOffset % width === 0;
  const { buffer, byteOffset } = isAligned ? bytes : new Uint8Array(bytes.subarray(0, count * width));
  return new made(buffer as ArrayBuffer, byteOffset, count);
}

/** Joins the bytes of values of which the page has first all first bytes, then all second bytes, and so on. */
function joined(bytes: Uint8Array, count: number, width: number): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(count * width);
  for (let byte = 0; byte < width; byte++)
    for (let i = 0; i < count; i++) whole[i * width + byte] = bytes[byte * count + i]!;
  return whole;
}

/** Returns whether the numbers of a column are stored as they are, in 32 bits or as a float64. */
function isDirect(element: SchemaElement): boolean {
  const meaning = meaningOf(element);
  return meaning.kind === 'number' || (meaning.kind === 'integer' && !meaning.unsigned);
}

/** Converts stored numbers to numbers. Returns undefined if they are not numbers, or if numbers are not exact. */
function exactNumbers(stored: StoredNumbers, element: SchemaElement): Numbers | undefined {
  const meaning = meaningOf(element);
  if (meaning.kind === 'decimal') {
    const numbers = new Float64Array(stored.length);
    for (let i = 0; i < stored.length; i++) {
      const value = decimal(stored[i], meaning.scale);
      if (typeof value !== 'number') return undefined;
      numbers[i] = value;
    }
    return numbers;
  }
  if (meaning.kind !== 'number' && meaning.kind !== 'integer') return undefined;
  const isUnsigned = meaning.kind === 'integer' && meaning.unsigned;
  if (!(stored instanceof BigInt64Array)) {
    if (!isUnsigned) return stored;
    return new Uint32Array(stored.buffer, stored.byteOffset, stored.length);
  }
  const numbers = new Float64Array(stored.length);
  for (let i = 0; i < stored.length; i++) {
    const number = Number(stored[i]);
    // An unsigned integer that is stored as a negative one is above 2^63.
    if (!Number.isSafeInteger(number) || (isUnsigned && number < 0)) return undefined;
    numbers[i] = number;
  }
  return numbers;
}

/** Decodes differences of integers. Returns the values, and the place after them. */
function deltas(
  bytes: Uint8Array,
  count: number,
  type: 'INT32' | 'INT64' | 'FLOAT' | 'DOUBLE',
): { values: Int32Array | BigInt64Array; end: number } {
  if (type !== 'INT32' && type !== 'INT64') throw unknownEncoding(DELTA);
  // The library allocates an array per block, of the size that the page states.
  const head = { at: 0 };
  const [block, parts, values] = [varint(bytes, head), varint(bytes, head), varint(bytes, head)] as const;
  if (block > MAX_BLOCK || parts === 0 || block % parts !== 0 || (block / parts) % 32 !== 0)
    throw new Malformed({ expected: 'blocks of whole parts', received: `${block} values in ${parts} parts` });
  if (values !== count)
    throw new Malformed({ expected: `${count} differences, as there are values`, received: `${values}` });
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const reader = { view, offset: 0 };
  const decoded = type === 'INT32' ? new Int32Array(count) : new BigInt64Array(count);
  decoding('the differences', () => deltaBinaryUnpack(reader, count, decoded));
  return { values: decoded, end: reader.offset };
}

const MAX_BLOCK = 2 ** 16;

function varint(bytes: Uint8Array, head: { at: number }): number {
  let value = 0;
  for (let shift = 0; shift < 35; shift += 7) {
    const byte = bytes[head.at++];
    if (byte === undefined) throw ended();
    value += (byte & 127) * 2 ** shift;
    if (byte < 128) return value;
  }
  throw new Malformed({ expected: 'a number of at most 32 bits', received: 'more' });
}

/** Byte arrays in order. Each is valid until the next one is asked for. */
interface ByteArrays {
  next(): Uint8Array;
}

const LENGTH_BYTES = 4;

/** Returns the length of a column's values if it is fixed. */
function widthOf({ type, type_length }: SchemaElement): number | undefined {
  if (type === 'BYTE_ARRAY') return undefined;
  const width = type === 'INT96' ? 12 : type === 'FIXED_LEN_BYTE_ARRAY' ? Number(type_length) : 0;
  if (!Number.isSafeInteger(width) || width < 1)
    throw new Malformed({ expected: 'values of a fixed length', received: `${type} of ${type_length}` });
  return width;
}

function byteArrays(page: Uint8Array, count: number, encoding: unknown, element: SchemaElement): ByteArrays {
  const width = widthOf(element);
  let bytes = page;
  let at = 0;
  const take = (length: number) => {
    if (length < 0 || at + length > bytes.length) throw ended();
    at += length;
    return bytes.subarray(at - length, at);
  };
  if (encoding === DELTA_LENGTH || encoding === DELTA_BYTES) {
    const prefixes = encoding === DELTA_BYTES ? deltas(bytes, count, 'INT32') : undefined;
    if (prefixes) bytes = bytes.subarray(prefixes.end);
    const { values: lengths, end } = deltas(bytes, count, 'INT32');
    bytes = bytes.subarray(end);
    let value = 0;
    if (!prefixes) return { next: () => take(Number(lengths[value++] ?? -1)) };
    return withPrefixes(prefixes.values, () => take(Number(lengths[value++] ?? -1)));
  }
  if (width === undefined && encoding === PLAIN) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    return {
      next() {
        take(LENGTH_BYTES);
        return take(view.getUint32(at - LENGTH_BYTES, true));
      },
    };
  }
  if (width === undefined || (encoding !== PLAIN && encoding !== STREAM_SPLIT))
    throw unknownEncoding(encoding);
  checkSize(bytes, count, width);
  if (encoding === STREAM_SPLIT) bytes = joined(bytes, count, width);
  return { next: () => take(width) };
}

// What the values of a page that repeat the beginning of their predecessor may take in all.
const MAX_PREFIXES = 2 ** 28;

/** Yields values that begin like their predecessor. */
function withPrefixes(prefixes: ArrayLike<number | bigint>, rest: () => Uint8Array): ByteArrays {
  let last: Uint8Array = new Uint8Array();
  let value = 0;
  let taken = 0;
  return {
    next() {
      const prefix = Number(prefixes[value++] ?? -1);
      const suffix = rest();
      if (prefix < 0 || prefix > last.length) throw ended();
      taken += prefix;
      if (taken > MAX_PREFIXES)
        throw new Malformed({ expected: `at most ${MAX_PREFIXES} repeated bytes`, received: 'more' });
      last = Buffer.concat([last.subarray(0, prefix), suffix]);
      return last;
    },
  };
}

function checkSize(bytes: Uint8Array, count: number, width: number): void {
  if (count * width > bytes.length)
    throw new Malformed({
      expected: `${count} values of at least ${width} bytes`,
      received: `${bytes.length} bytes`,
    });
}

function unknownEncoding(encoding: unknown): Malformed {
  return new Malformed({ expected: 'a known encoding', received: `number ${encoding}` });
}

function ended(): Malformed {
  return new Malformed({ expected: 'a whole page of values', received: 'one that ends early' });
}
