/**
 * Writes Parquet files byte by byte. A file of a few bytes can thus claim to hold any number of values, which a real
 * writer would need the memory for.
 */

import { closeSync, openSync, writeSync } from 'node:fs';

/** A column in which all values are equal. */
export interface RepeatedColumn {
  name: string;
  /** A number is stored as FLOAT, in lists; a text as UTF-8, one per row. */
  value: number | string;
  /** The number of rows. */
  rows: number;
  /** The number of values in each row's list. */
  tokens?: number;
  /** The number of values that the runs of levels and of indices claim to have, if it is not the true one. */
  claimed?: number;
}

/** Returns a file of one row group. All columns must have equally many rows. */
export function parquetOf(columns: readonly RepeatedColumn[]): Buffer {
  const parts: Buffer[] = [Buffer.from('PAR1')];
  let offset = 4;
  const chunks = columns.map((column) => {
    const dictionaryOffset = offset;
    const dictionary = dictionaryPage(column);
    const data = dataPage(column);
    parts.push(dictionary, data);
    offset += dictionary.length + data.length;
    return columnChunk(column, dictionaryOffset, dictionary.length, data.length);
  });
  const rows = columns[0]!.rows;
  const group = struct([1, list(STRUCT, chunks)], [2, i64(offset)], [3, i64(rows)]);
  parts.push(footerOf(schemaOf(columns), rows, [group]));
  return Buffer.concat(parts);
}

/** What writeLongParquet() writes. */
export interface LongFile {
  /** The columns of lists. All of them are stored at the same place. */
  columns?: readonly string[];
  /** The number of pages in a column. All of them are equal. */
  pages: number;
  /** The number of rows in a page, of 4,096 tokens each. */
  rows?: number;
  /** The number of the compression, and a function that compresses. */
  codec?: number;
  pack?: (page: Buffer) => Buffer;
  /** The size to which a page unpacks, as its header states it, if it is not the true one. */
  claimed?: number;
}

/** Writes a large file of one row group. Returns the number of its rows. */
export function writeLongParquet(
  path: string,
  { columns = ['logprobs'], pages, rows = 256, codec = 0, pack = (page) => page, claimed }: LongFile,
): number {
  const tokens = 4096;
  const rowLevels = [run(1, 0), run(tokens - 1, 1)];
  const levels = [
    sized(Array.from({ length: rows }, () => rowLevels).flat()),
    sized([run(rows * tokens, 3)]),
  ];
  const numbers = Float32Array.from({ length: rows * tokens }, (_, i) => -(i % LONG_PERIOD) / 64);
  const details = struct([1, i32(rows * tokens)], [2, i32(PLAIN)], [3, i32(RLE)], [4, i32(RLE)]);
  const body = Buffer.concat([...levels, Buffer.from(numbers.buffer)]);
  const whole = page(DATA_PAGE, pack(body), [5, details], claimed ?? body.length);
  const written = columns.map((name) => ({ name, value: -1, rows: rows * pages, tokens }));
  const chunks = written.map((column) => columnChunk(column, 4, 0, whole.length * pages, codec));
  const size = i64(4 + whole.length * pages);
  const group = struct([1, list(STRUCT, chunks)], [2, size], [3, i64(rows * pages)]);
  const file = openSync(path, 'w');
  writeSync(file, Buffer.from('PAR1'));
  for (let i = 0; i < pages; i++) writeSync(file, whole);
  writeSync(file, footerOf(schemaOf(written), rows * pages, [group]));
  closeSync(file);
  return rows * pages;
}

/** The numbers of a long file repeat after so many. */
export const LONG_PERIOD = 1000;

/** Returns a file without row groups, with the given elements of its schema. */
export function parquetWithSchema(elements: readonly Value[]): Buffer {
  return Buffer.concat([Buffer.from('PAR1'), footerOf(elements, 0, [])]);
}

/** Returns a file whose footer is given as it is. */
export function parquetWithFooter(footer: Buffer): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32LE(footer.length);
  return Buffer.concat([Buffer.from('PAR1'), footer, length, Buffer.from('PAR1')]);
}

/** A value in Thrift's compact protocol. */
interface Value {
  type: number;
  bytes: Buffer;
}

const [I32, I64, BINARY, LIST, STRUCT] = [5, 6, 8, 9, 12];

function varint(n: number): number[] {
  const bytes = [];
  for (let rest = BigInt(n); ; rest >>= 7n) {
    if (rest < 128n) return [...bytes, Number(rest)];
    bytes.push(Number(rest & 127n) | 128);
  }
}

const i32 = (n: number): Value => ({ type: I32, bytes: Buffer.from(varint(2 * n)) });
const i64 = (n: number): Value => ({ type: I64, bytes: Buffer.from(varint(2 * n)) });
const text = (s: string): Value => ({
  type: BINARY,
  bytes: Buffer.concat([Buffer.from(varint(Buffer.byteLength(s))), Buffer.from(s)]),
});

/** Returns a list. It may claim to have another number of elements than it has. */
export function list(type: number, elements: readonly Value[], claimed = elements.length): Value {
  const head = Buffer.from([0xf0 | type, ...varint(claimed)]);
  return { type: LIST, bytes: Buffer.concat([head, ...elements.map(({ bytes }) => bytes)]) };
}

/** Returns a structure with the given fields. */
export function struct(...fields: readonly [id: number, value: Value][]): Value {
  let last = 0;
  const parts = fields.flatMap(([id, { type, bytes }]) => {
    const head = Buffer.from([((id - last) << 4) | type]);
    last = id;
    return [head, bytes];
  });
  return { type: STRUCT, bytes: Buffer.concat([...parts, Buffer.from([0])]) };
}

/** Returns an element of a schema that has children. */
export const group = (name: string, children: number, repetition = 1, ...rest: [number, Value][]): Value =>
  struct([3, i32(repetition)], [4, text(name)], [5, i32(children)], ...rest);

const [FLOAT, BYTE_ARRAY] = [4, 6];
const [OPTIONAL, REPEATED] = [1, 2];
const [UTF8, LIST_OF] = [0, 3];

function schemaOf(columns: readonly RepeatedColumn[]): Value[] {
  const elements = columns.flatMap(({ name, value }) =>
    typeof value === 'string'
      ? [struct([1, i32(BYTE_ARRAY)], [3, i32(OPTIONAL)], [4, text(name)], [6, i32(UTF8)])]
      : [
          group(name, 1, OPTIONAL, [6, i32(LIST_OF)]),
          group('list', 1, REPEATED),
          struct([1, i32(FLOAT)], [3, i32(OPTIONAL)], [4, text('element')]),
        ],
  );
  return [struct([4, text('schema')], [5, i32(columns.length)]), ...elements];
}

function footerOf(schema: readonly Value[], rows: number, groups: readonly Value[]): Buffer {
  const { bytes } = struct([1, i32(1)], [2, list(STRUCT, schema)], [3, i64(rows)], [4, list(STRUCT, groups)]);
  return parquetWithFooter(bytes).subarray(4);
}

const [DATA_PAGE, DICTIONARY_PAGE] = [0, 2];
const [PLAIN, PLAIN_DICTIONARY, RLE] = [0, 2, 3];

function dictionaryPage({ value }: RepeatedColumn): Buffer {
  const body = Buffer.alloc(typeof value === 'string' ? 4 + value.length : 4);
  if (typeof value === 'number') body.writeFloatLE(value);
  else {
    body.writeUInt32LE(value.length);
    body.write(value, 4, 'latin1');
  }
  const details = struct([1, i32(1)], [2, i32(PLAIN)]);
  return page(DICTIONARY_PAGE, body, [7, details]);
}

function dataPage({ value, rows, tokens = 1, claimed = rows * tokens }: RepeatedColumn): Buffer {
  const values = rows * tokens;
  const isList = typeof value === 'number';
  const newRow =
    tokens === 1 ? run(rows, 0) : Array.from({ length: rows }, () => [run(1, 0), run(tokens - 1, 1)]);
  const levels = isList ? [sized([newRow].flat(2)), sized([run(claimed, 3)])] : [sized([run(claimed, 1)])];
  const body = Buffer.concat([...levels, Buffer.from([1]), run(claimed, 0)]);
  const details = struct([1, i32(values)], [2, i32(PLAIN_DICTIONARY)], [3, i32(RLE)], [4, i32(RLE)]);
  return page(DATA_PAGE, body, [5, details]);
}

/** Encodes a run of equal values of one byte. */
function run(count: number, value: number): Buffer {
  return Buffer.from([...varint(2 * count), value]);
}

function sized(runs: readonly Buffer[]): Buffer {
  const bytes = Buffer.concat(runs);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(bytes.length);
  return Buffer.concat([length, bytes]);
}

function page(type: number, body: Buffer, details: [number, Value], unpacked = body.length): Buffer {
  const sizes: [number, Value][] = [
    [2, i32(unpacked)],
    [3, i32(body.length)],
  ];
  return Buffer.concat([struct([1, i32(type)], ...sizes, details).bytes, body]);
}

function columnChunk(
  { name, value, rows, tokens = 1 }: RepeatedColumn,
  offset: number,
  dictionaryBytes: number,
  dataBytes: number,
  codec = 0,
): Value {
  const path = typeof value === 'string' ? [name] : [name, 'list', 'element'];
  const size = i64(dictionaryBytes + dataBytes);
  const metadata = struct(
    [1, i32(typeof value === 'string' ? BYTE_ARRAY : FLOAT)],
    [2, list(I32, [i32(PLAIN_DICTIONARY), i32(RLE)])],
    [3, list(BINARY, path.map(text))],
    [4, i32(codec)],
    [5, i64(rows * tokens)],
    [6, size],
    [7, size],
    [9, i64(offset + dictionaryBytes)],
    [11, i64(offset)],
  );
  return struct([2, i64(offset)], [3, metadata]);
}
