/** Makes Parquet files, and divides them into fields. */
import { readdirSync, readFileSync } from 'node:fs';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import type { CompressionCodec, Encoding, SchemaElement } from 'hyparquet';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { parquetOf } from '../tools/rollouts/parquet-file.js';
import type { ContentSpec, RolloutRow } from './content.js';
import type { Fields, Kind } from './fields.js';

interface WriterOptions {
  codec: CompressionCodec;
  list: Omit<SchemaElement, 'name'>;
  floats: Encoding;
  integers: Encoding;
  text: Encoding;
}

const FLOATS: WriterOptions['list'] = { type: 'FLOAT' };
const DOUBLES: WriterOptions['list'] = { type: 'DOUBLE' };
const DECIMALS: WriterOptions['list'] = { type: 'INT32', converted_type: 'DECIMAL', scale: 6, precision: 9 };

/** The ways in which a valid file may be written. */
export const WRITERS: readonly WriterOptions[] = [
  { codec: 'UNCOMPRESSED', list: FLOATS, floats: 'PLAIN', integers: 'PLAIN', text: 'PLAIN' },
  {
    codec: 'SNAPPY',
    list: DOUBLES,
    floats: 'RLE_DICTIONARY',
    integers: 'RLE_DICTIONARY',
    text: 'RLE_DICTIONARY',
  },
  {
    codec: 'UNCOMPRESSED',
    list: FLOATS,
    floats: 'BYTE_STREAM_SPLIT',
    integers: 'DELTA_BINARY_PACKED',
    text: 'DELTA_LENGTH_BYTE_ARRAY',
  },
  {
    codec: 'GZIP',
    list: DOUBLES,
    floats: 'PLAIN',
    integers: 'DELTA_BINARY_PACKED',
    text: 'DELTA_BYTE_ARRAY',
  },
  { codec: 'UNCOMPRESSED', list: DECIMALS, floats: 'PLAIN', integers: 'PLAIN', text: 'DELTA_BYTE_ARRAY' },
  { codec: 'BROTLI', list: FLOATS, floats: 'PLAIN', integers: 'RLE_DICTIONARY', text: 'PLAIN' },
];

/**
 * Writes rows to a Parquet file.
 * @param writer an index of WRITERS.
 */
export function writeParquet(rows: readonly RolloutRow[], writer: number): Buffer {
  const { codec, list, floats, integers, text } = WRITERS[writer % WRITERS.length]!;
  const listOf = (name: string, element: WriterOptions['list'], required: boolean): SchemaElement[] => [
    { name, repetition_type: required ? 'REQUIRED' : 'OPTIONAL', converted_type: 'LIST', num_children: 1 },
    { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
    { name: 'element', repetition_type: required ? 'REQUIRED' : 'OPTIONAL', ...element },
  ];
  const data = <T>(columnOf: (row: RolloutRow) => T) => rows.map(columnOf);
  const isDecimal = list === DECIMALS;
  const bytes = parquetWriteBuffer({
    codec,
    compressors: { GZIP: (page) => gzipSync(page), BROTLI: (page) => brotliCompressSync(page) },
    columnData: [
      { name: 'logprobs', encoding: isDecimal ? integers : floats, data: data((row) => row.logprobs) },
      {
        name: 'old_logprobs',
        encoding: isDecimal ? integers : floats,
        data: data((row) => row.old_logprobs),
      },
      { name: 'entropy', encoding: floats, data: data((row) => row.entropy) },
      { name: 'action_mask', encoding: integers, data: data((row) => row.action_mask) },
      { name: 'reward', encoding: floats, data: data((row) => row.reward) },
      { name: 'task_id', encoding: integers, data: data((row) => BigInt(row.task_id)) },
      { name: 'run_id', encoding: text, data: data((row) => row.run_id) },
      { name: 'meta', encoding: text, data: data((row) => ({ a: [row.run_id] })) },
    ],
    schema: [
      { name: 'root', num_children: 8 },
      ...listOf('logprobs', list, false),
      ...listOf('old_logprobs', list, true),
      ...listOf('entropy', FLOATS, false),
      ...listOf('action_mask', { type: 'INT32', converted_type: 'INT_8' }, true),
      { name: 'reward', type: 'DOUBLE', repetition_type: 'OPTIONAL' },
      { name: 'task_id', type: 'INT64', repetition_type: 'REQUIRED' },
      { name: 'run_id', type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: 'OPTIONAL' },
      { name: 'meta', repetition_type: 'OPTIONAL', num_children: 1 },
      ...listOf('a', { type: 'BYTE_ARRAY', converted_type: 'UTF8' }, false),
    ],
  });
  return Buffer.from(bytes);
}

const FIXTURES = new URL('../tools/rollouts/fixtures/parquet/', import.meta.url);
const FIXTURE_NAMES = readdirSync(FIXTURES).filter((name) => name.endsWith('.parquet'));

/** Returns a file that another program wrote. */
export function fixtureParquet({ seed }: ContentSpec): Buffer {
  return readFileSync(new URL(FIXTURE_NAMES[seed % FIXTURE_NAMES.length]!, FIXTURES));
}

/** Returns a small file with many equal rows, so that it unpacks to much more than its size. */
export function repetitiveParquet({ rows, tokens }: ContentSpec): Buffer {
  const shared = { rows: ROWS_PER_UNIT * rows, tokens: TOKENS_PER_UNIT * tokens };
  return parquetOf([
    ...['logprobs', 'old_logprobs', 'advantages'].map((name) => ({ name, value: -1, ...shared })),
    { name: 'task_id', value: 'id'.repeat(tokens), rows: shared.rows },
  ]);
}

const ROWS_PER_UNIT = 100;
const TOKENS_PER_UNIT = 20;

/** Passes a Parquet file on, field by field: the page headers, the pages, and the footer. */
export function parquetFields(file: Buffer, fields: Fields): Buffer[] {
  const footerLength = file.readUInt32LE(file.length - 8);
  const footerStart = file.length - 8 - footerLength;
  const pieces = fields.field('bytes', file.subarray(0, 4));
  for (let at = 4; at < footerStart; ) {
    const header = new ThriftFields(file, at, fields);
    const bodyEnd = header.end + header.bodyLength;
    pieces.push(...header.pieces, ...fields.field('bytes', file.subarray(header.end, bodyEnd)));
    at = bodyEnd;
  }
  const footer = Buffer.concat(new ThriftFields(file, footerStart, fields).pieces);
  return [
    ...pieces,
    footer,
    fields.integer(footer.length, 4),
    ...fields.field('bytes', file.subarray(file.length - 4)),
  ];
}

const [TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, STRUCT] = [1, 2, 3, 7, 8, 9, 10, 12];
const COMPRESSED_PAGE_SIZE = 3;
const BLOOM_FILTER_SIZE = 1;

/** Divides a structure in Thrift's compact protocol into fields. */
class ThriftFields {
  readonly pieces: Buffer[] = [];
  /** The place after the structure. */
  end: number;
  // The integers among the structure's own fields, by id.
  readonly #integers = new Map<number, number>();
  readonly #bytes: Buffer;
  readonly #fields: Fields;

  constructor(bytes: Buffer, start: number, fields: Fields) {
    this.#bytes = bytes;
    this.#fields = fields;
    this.end = start;
    this.#struct((id, value) => this.#integers.set(id, value));
  }

  /** The size of what follows the structure, if it is the header of a page or of a Bloom filter. */
  get bodyLength(): number {
    return (this.#integers.get(COMPRESSED_PAGE_SIZE) ?? this.#integers.get(BLOOM_FILTER_SIZE)!) / 2;
  }

  #take(kind: Kind, length: number): Buffer {
    const taken = this.#bytes.subarray(this.end, this.end + length);
    this.end += length;
    this.pieces.push(...this.#fields.field(kind, taken));
    return taken;
  }

  /** Takes an integer. Signed integers are returned in zigzag encoding: doubled, if they are not negative. */
  #varint(): number {
    let length = 1;
    while (this.#bytes[this.end + length - 1]! >= 128) length++;
    return this.#take('varint', length).reduce((value, byte, i) => value + (byte & 127) * 2 ** (7 * i), 0);
  }

  #struct(onInteger: (id: number, value: number) => void = () => {}): void {
    for (let id = 0; ; ) {
      const [head] = this.#take('integer', 1) as unknown as [number];
      if (head === 0) return;
      id = head >> 4 === 0 ? this.#varint() / 2 : id + (head >> 4);
      const type = head & 15;
      if (type > BYTE && type < DOUBLE) onInteger(id, this.#varint());
      else this.#value(type, false);
    }
  }

  #value(type: number, inList: boolean): void {
    if (type === TRUE || type === FALSE) {
      if (inList) this.#take('integer', 1);
    } else if (type === BYTE) this.#take('integer', 1);
    else if (type === DOUBLE) this.#take('integer', 8);
    else if (type === BINARY) this.#take('name', this.#varint());
    else if (type === LIST || type === SET) {
      const [head] = this.#take('integer', 1) as unknown as [number];
      const count = head >> 4 === 15 ? this.#varint() : head >> 4;
      for (let i = 0; i < count; i++) this.#value(head & 15, true);
    } else if (type === STRUCT) this.#struct();
    else this.#varint();
  }
}
