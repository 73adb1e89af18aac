/** Writes Parquet files with DuckDB, and divides them into fields. */
import { readFileSync, writeFileSync } from 'node:fs';
import { type DuckDBConnection, DuckDBInstance } from '@duckdb/node-api';
import { parquetOf } from '../rollouts/parquet-file.js';
import type { ContentSpec, RolloutRow } from './content.js';
import type { Fields, Kind } from './fields.js';

/** The options with which DuckDB writes files, and the types of the columns. */
export const WRITERS = [
  { options: 'COMPRESSION uncompressed', list: 'FLOAT[]' },
  { options: 'COMPRESSION snappy', list: 'DOUBLE[]' },
  { options: 'COMPRESSION zstd', list: 'FLOAT[]' },
  { options: 'COMPRESSION gzip, PARQUET_VERSION v2', list: 'DOUBLE[]' },
  { options: 'COMPRESSION uncompressed', list: 'DECIMAL(12, 6)[]' },
] as const;

let connection: Promise<DuckDBConnection> | undefined;
const connect = () => {
  connection ??= DuckDBInstance.create(':memory:', { threads: '1' }).then((instance) => instance.connect());
  return connection;
};

/**
 * Writes rows to a Parquet file.
 * @param writer an index of WRITERS.
 * @param path a file that may be overwritten. Its name with another ending is used for the rows.
 */
export async function writeParquet(
  rows: readonly RolloutRow[],
  writer: number,
  path: string,
): Promise<Buffer> {
  const { options, list } = WRITERS[writer % WRITERS.length]!;
  const source = `${path}.json`;
  writeFileSync(source, rows.map((row) => JSON.stringify(row)).join('\n'));
  const columns = `{logprobs: 'DOUBLE[]', old_logprobs: 'DOUBLE[]', entropy: 'DOUBLE[]', action_mask: 'BIGINT[]',
    reward: 'DOUBLE', task_id: 'BIGINT', run_id: 'VARCHAR'}`;
  const select = `SELECT logprobs::${list} AS logprobs, old_logprobs::${list} AS old_logprobs,
    entropy::FLOAT[] AS entropy, action_mask::TINYINT[] AS action_mask, reward, task_id, run_id,
    {a: [run_id]} AS meta FROM read_json('${source}', format = 'newline_delimited', columns = ${columns})`;
  await (await connect()).run(`COPY (${select}) TO '${path}' (FORMAT parquet, ${options})`);
  return readFileSync(path);
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
