// Reads structures in Thrift's compact protocol: the footer and the page headers of a Parquet file. hyparquet allocates as
// many elements as a list claims to have and descends without limit, so it only parses what was read here before.
import { Malformed } from './malformed.js';

/** The numbers, Booleans and structures among the fields of a structure, by id. */
export type Struct = ReadonlyMap<number, number | boolean | Struct>;

const MAX_DEPTH = 32;
const MAX_ID = 1000;
// The memory that hyparquet may take for a structure, and what it takes for a number and for another value.
const MAX_MEMORY = 2 ** 28;
const [NUMBER_BYTES, OBJECT_BYTES] = [32, 256];
// From this depth on, all texts are statistics or names. hyparquet takes quadratic time for statistics of decimals.
const STATISTICS_DEPTH = 7;
const MAX_STATISTICS = 4096;

const [TRUE, FALSE, BYTE, I16, I64, DOUBLE, BINARY, LIST, STRUCT] = [1, 2, 3, 4, 6, 7, 8, 9, 12] as const;

/** Reads a structure and checks all of it. */
export class ThriftReader {
  /** The number of bytes that were read. */
  at = 0;
  readonly #bytes: Uint8Array;
  #memory = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  struct(depth = 0): Struct {
    const fields = new Map<number, number | boolean | Struct>();
    for (let id = 0; ; ) {
      const head = this.#byte();
      if (head === 0) return fields;
      id = head >> 4 === 0 ? signed(this.#varint()) : id + (head >> 4);
      if (!(id > 0 && id <= MAX_ID)) throw new Malformed(`a field from 1 to ${MAX_ID}`, id);
      const value = this.#value(head & 15, depth + 1);
      if (value !== undefined) fields.set(id, value);
    }
  }

  #value(type: number, depth: number, inList = false): number | boolean | Struct | undefined {
    this.#memory += type < BINARY ? NUMBER_BYTES : OBJECT_BYTES;
    if (depth > MAX_DEPTH || this.#memory > MAX_MEMORY)
      throw new Malformed(`structures of at most ${MAX_DEPTH} levels and ${MAX_MEMORY} bytes`, 'more');
    if (type === TRUE || type === FALSE) return inList ? this.#byte() : type === TRUE;
    if (type === BYTE) return this.#byte();
    if (type >= I16 && type <= I64) return signed(this.#varint());
    if (type === STRUCT) return this.struct(depth);
    if (type === DOUBLE) this.#skip(8);
    else if (type === BINARY) {
      const length = this.#varint();
      if (depth >= STATISTICS_DEPTH && length > MAX_STATISTICS)
        throw new Malformed(`statistics of at most ${MAX_STATISTICS} bytes`, `${length}`);
      this.#skip(length);
    } else if (type === LIST) {
      const head = this.#byte();
      // Each element has at least one byte, so a wrong count soon meets the end.
      const count = head >> 4 === 15 ? this.#varint() : head >> 4;
      for (let i = 0; i < count; i++) this.#value(head & 15, depth + 1, true);
    } else throw new Malformed('a known type of value', `type ${type}`);
    return undefined;
  }

  #skip(count: number): void {
    this.at += count;
    if (this.at > this.#bytes.length) throw ended(this.#bytes);
  }

  #byte(): number {
    this.#skip(1);
    return this.#bytes[this.at - 1]!;
  }

  #varint(): number {
    const read = varintAt(this.#bytes, this.at);
    if (!read) throw ended(this.#bytes);
    this.at = read.end;
    return read.value;
  }
}

/** Reads an unsigned integer of variable length. Returns it and the place after it; undefined if it does not end. */
export function varintAt(bytes: Uint8Array, start: number): { value: number; end: number } | undefined {
  let value = 0;
  for (let at = start, scale = 1; at < Math.min(start + 10, bytes.length); scale *= 128) {
    const byte = bytes[at++]!;
    value += (byte & 127) * scale;
    if (byte < 128) return { value, end: at };
  }
  return undefined;
}

/** Returns the signed integer for which an unsigned one stands. */
export function signed(value: number): number {
  return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
}

function ended({ length }: Uint8Array): Malformed {
  return new Malformed('a whole structure', `one that ends after ${length} bytes`);
}
