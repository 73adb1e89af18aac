// Checks the footer of a Parquet file before the library parses it. The library descends into structures recursively, and
// allocates as many of them as the footer claims to have.
import { badFile, type DetailsAtPlace } from '../source.js';

const MAGIC = 'PAR1';
const MAX_FOOTER = 1 << 25;
const MAX_COLUMNS = 10_000;
const MAX_DEPTH = 32;
// The least bytes that a row group or the description of a column in it takes in a footer.
const LEAST_BYTES = 32;
// The library makes an object of up to a hundred bytes for each of them.
const MAX_VALUES = 2 ** 22;

/**
 * Reads the footer of a Parquet file and checks it.
 * @param read returns bytes of the file.
 * @returns the footer, its length and the file's signature.
 * @throws LossError `ERR_INVALID_INPUT` if the file is not a Parquet file, or its schema is too large or too deep.
 */
export function readFooter(
  file: string,
  size: number,
  read: (length: number, position: number) => Buffer,
): Buffer {
  const tail = size < 12 ? Buffer.alloc(8) : read(8, size - 8);
  if (tail.toString('latin1', 4) !== MAGIC)
    throw badFile(file, { expected: 'a Parquet file', received: 'a file without its signature' });
  const length = tail.readUInt32LE(0);
  const limit = Math.min(size - 12, MAX_FOOTER);
  if (length > limit)
    throw badFile(file, { expected: `a footer of at most ${limit} bytes`, received: `one of ${length}` });
  const footer = read(length + 8, size - 8 - length);
  new FooterReader(file, footer.subarray(0, length)).check();
  return footer;
}

/** The element types of Thrift's compact protocol that the checks distinguish. */
const TYPE = {
  true: 1,
  false: 2,
  byte: 3,
  i32: 5,
  double: 7,
  binary: 8,
  list: 9,
  set: 10,
  struct: 12,
};

/** Reads the footer, which is a structure in Thrift's compact protocol. */
class FooterReader {
  readonly #file: string;
  readonly #bytes: Buffer;
  #at = 0;
  #values = 0;

  constructor(file: string, bytes: Buffer) {
    this.#file = file;
    this.#bytes = bytes;
  }

  check(): void {
    this.#fields((id, type) => {
      if (id === 2 && type === TYPE.list) this.#schema();
      else if (id === 4 && type === TYPE.list) this.#rowGroups();
      else this.#skip(type, 1);
    });
  }

  /** Checks the schema, a list of columns in depth-first order. A column with children is a group. */
  #schema(): void {
    const { type, count } = this.#list();
    if (count > MAX_COLUMNS)
      throw this.#error({ expected: `at most ${MAX_COLUMNS} columns`, received: `${count}` });
    // For each open group, the number of its columns that are still to come.
    const open: number[] = [];
    for (let i = 0; i < count; i++) {
      let children = 0;
      this.#eachField(type, (id, field) => {
        if (id === 5 && field === TYPE.i32) children = Number(this.#integer(32));
        else this.#skip(field, 1);
      });
      while (open.at(-1) === 0) open.pop();
      if (open.length > 0) open[open.length - 1]!--;
      if (children > 0) open.push(children);
      if (open.length > MAX_DEPTH)
        throw this.#error({
          expected: `columns of at most ${MAX_DEPTH} levels`,
          received: 'a deeper schema',
        });
    }
  }

  #rowGroups(): void {
    const groups = this.#list();
    this.#checkCount(groups.count);
    for (let i = 0; i < groups.count; i++)
      this.#eachField(groups.type, (id, type) => {
        if (id !== 1 || type !== TYPE.list) return this.#skip(type, 1);
        const columns = this.#list();
        this.#checkCount(columns.count);
        for (let column = 0; column < columns.count; column++)
          this.#eachField(columns.type, (_, field) => this.#skip(field, 1));
      });
  }

  #checkCount(count: number): void {
    const most = Math.floor((this.#bytes.length - this.#at) / LEAST_BYTES);
    if (count > most)
      throw this.#error({
        expected: `at most ${most} elements in the rest of the footer`,
        received: `${count}`,
      });
  }

  #eachField(type: number, read: (id: number, type: number) => void): void {
    if (type !== TYPE.struct) throw this.#error({ expected: 'a structure', received: `type ${type}` });
    this.#fields(read);
  }

  /** Calls `read`, which must read or skip the value, for each field of a structure. */
  #fields(read: (id: number, type: number) => void): void {
    for (let id = 0; ; ) {
      const head = this.#byte();
      if (head === 0) return;
      id = head >> 4 === 0 ? Number(this.#integer(16)) : id + (head >> 4);
      read(id, head & 15);
    }
  }

  #list(): { type: number; count: number } {
    const head = this.#byte();
    return { type: head & 15, count: head >> 4 === 15 ? Number(this.#varint()) : head >> 4 };
  }

  /** Skips a value. A list has at least as many bytes as elements, so a wrong count soon meets the end of the footer. */
  #skip(type: number, depth: number, inList = false): void {
    if (depth > MAX_DEPTH)
      throw this.#error({ expected: `at most ${MAX_DEPTH} levels`, received: 'a deeper structure' });
    if (++this.#values > MAX_VALUES)
      throw this.#error({ expected: `a footer of at most ${MAX_VALUES} values`, received: 'more' });
    if (type === TYPE.true || type === TYPE.false) this.#at += inList ? 1 : 0;
    else if (type === TYPE.byte) this.#at++;
    else if (type === TYPE.double) this.#at += 8;
    else if (type === TYPE.binary) this.#skipBytes(Number(this.#varint()));
    else if (type === TYPE.struct) this.#fields((_, field) => this.#skip(field, depth + 1));
    else if (type === TYPE.list || type === TYPE.set) {
      const { type: element, count } = this.#list();
      for (let i = 0; i < count; i++) this.#skip(element, depth + 1, true);
    } else if (type > TYPE.byte && type < TYPE.double) this.#varint();
    else throw this.#error({ expected: 'a known type of value', received: `type ${type}` });
    if (this.#at > this.#bytes.length) throw this.#ended();
  }

  #skipBytes(count: number): void {
    this.#at += count;
  }

  #byte(): number {
    const byte = this.#bytes[this.#at++];
    if (byte === undefined) throw this.#ended();
    return byte;
  }

  #varint(): bigint {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.#byte();
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
    throw this.#error({ expected: 'a number of at most 64 bits', received: 'more' });
  }

  /** Reads a signed integer, of which the library uses only the given number of bits. */
  #integer(bits: 16 | 32): bigint {
    const value = this.#varint();
    return BigInt.asIntN(bits, (value >> 1n) ^ -(value & 1n));
  }

  #ended(): Error {
    return this.#error({
      expected: 'a whole footer',
      received: `one that ends after ${this.#bytes.length} bytes`,
    });
  }

  #error(details: DetailsAtPlace): Error {
    return badFile(this.#file, details);
  }
}
