// Opens Parquet files, and checks what their footers claim.
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { type ColumnMetaData, parquetMetadata } from 'hyparquet';
import type { RowLimits } from '../limits.js';
import { isKnownCodec } from './decompress.js';
import { readFooter } from './footer.js';
import { decoding, Malformed } from './malformed.js';
import { type Node, schemaTree } from './schema.js';
import { UnpackedPages } from './unpacked.js';

/** The values of a column in a row group. */
export interface Chunk {
  leaf: Node;
  codec: ColumnMetaData['codec'];
  /** The bytes of the file that hold the pages. */
  start: number;
  end: number;
  values: number;
}

export interface RowGroup {
  rows: number;
  /** Returns the chunk of a stored column. */
  chunkOf(leaf: Node): Chunk;
}

// Above this number of values, a file must have at least one byte per VALUES_PER_BYTE. A run of equal values takes a few
// bytes, however long it is, so a small file can claim to have any number of values.
const MIN_VALUES = 2 ** 25;
const VALUES_PER_BYTE = 64;
const VALUES_PER_TOKEN = 16;

const PIECE = 2 ** 18;

/** Reads pages of a file into the same memory again. A new buffer for each page would be free only after some time. */
export class PageMemory {
  readonly #file: ParquetFile;
  #buffer: Buffer | undefined;

  constructor(file: ParquetFile) {
    this.#file = file;
  }

  /** Reads a page. It is valid until the next one is read. */
  read(length: number, position: number): Buffer {
    const bytes = this.#file.read(length, position, this.#buffer);
    if (bytes.length < length)
      throw new Malformed({ expected: `a page of ${length} bytes`, received: 'a shorter one' });
    if (length > (this.#buffer?.length ?? 0)) this.#buffer = bytes;
    return bytes;
  }
}

/** An open Parquet file. */
export class ParquetFile {
  readonly rows: number;
  readonly columns: readonly Node[];
  readonly groups: readonly RowGroup[];
  readonly size: number;
  /** The memory for the page that is being decompressed. */
  readonly packed = new PageMemory(this);
  /** Long pages that are unpacked on the disk. */
  readonly unpacked = new UnpackedPages(this);
  readonly #descriptor: number;

  /**
   * Opens a file and reads its footer.
   * @param path where its bytes are.
   * @throws LossError if the file is not a Parquet file.
   */
  constructor(name: string, path = name) {
    this.#descriptor = openSync(path, 'r');
    try {
      this.size = fstatSync(this.#descriptor).size;
      const footer = readFooter(name, this.size, (length, position) => this.read(length, position));
      const { schema, row_groups, num_rows } = decoding('the footer', () =>
        parquetMetadata(footer, { geoparquet: false }),
      );
      const { root, leaves } = schemaTree(schema);
      this.columns = root.children;
      this.rows = wholeNumber(num_rows, 'number of rows');
      this.groups = row_groups.map(({ columns, num_rows }) => {
        const rows = wholeNumber(num_rows, 'number of rows');
        if (columns.length !== leaves.length)
          throw new Malformed({
            expected: `${leaves.length} columns in a row group, as in the schema`,
            received: `${columns.length}`,
          });
        return { rows, chunkOf: (leaf) => chunkOf(leaf, columns[leaf.leaf]!, rows, this.size) };
      });
      const inGroups = this.groups.reduce((sum, { rows }) => sum + rows, 0);
      if (inGroups !== this.rows)
        throw new Malformed({
          expected: `row groups of ${this.rows} rows together`,
          received: `${inGroups}`,
        });
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** Checks that the columns do not have so many values that the file is too small for them. */
  checkClaims(leaves: readonly Node[], { maxRowTokens }: RowLimits): void {
    const most = Math.max(MIN_VALUES, VALUES_PER_TOKEN * maxRowTokens) + VALUES_PER_BYTE * this.size;
    let values = 0;
    for (const group of this.groups) for (const leaf of leaves) values += group.chunkOf(leaf).values;
    if (values > most)
      throw new Malformed({
        expected: `at most ${most} values in a file of ${this.size} bytes`,
        received: `${values}`,
        hint: (spell) => `If the file is correct, raise ${spell('maxRowTokens')}`,
      });
  }

  /**
   * Reads bytes. Returns fewer at the end of the file.
   * @param into memory to use instead of a new buffer, if the bytes fit.
   */
  read(length: number, position: number, into?: Buffer): Buffer {
    const size = Math.max(0, Math.min(length, this.size - position));
    const bytes = into && into.length >= size ? into.subarray(0, size) : Buffer.allocUnsafeSlow(size);
    let read = 0;
    while (read < bytes.length) {
      const more = readSync(this.#descriptor, bytes, read, bytes.length - read, position + read);
      if (more === 0) break;
      read += more;
    }
    return bytes.subarray(0, read);
  }

  /** Reads bytes in pieces. Each is valid until the next one is asked for. */
  pieces(length: number, position: number): Generator<Uint8Array, void> {
    return piecesOf(this.#descriptor, length, position);
  }

  close(): void {
    closeSync(this.#descriptor);
  }
}

/** Reads bytes of an open file in pieces. Each is valid until the next one is asked for. */
export function* piecesOf(descriptor: number, length: number, position: number): Generator<Uint8Array, void> {
  const memory = Buffer.allocUnsafeSlow(Math.min(length, PIECE));
  for (let at = 0; at < length; ) {
    const read = readSync(descriptor, memory, 0, Math.min(length - at, PIECE), position + at);
    if (read === 0) return;
    yield memory.subarray(0, read);
    at += read;
  }
}

interface StoredColumn {
  file_path?: string;
  meta_data?: ColumnMetaData;
  crypto_metadata?: unknown;
}

function chunkOf(
  leaf: Node,
  { file_path, meta_data, crypto_metadata }: StoredColumn,
  rows: number,
  size: number,
): Chunk {
  const { name, type } = leaf.element;
  if (!meta_data || crypto_metadata !== undefined || file_path)
    throw new Malformed({ key: name, expected: 'a column in this file, not encrypted', received: 'another' });
  if (meta_data.type !== type)
    throw new Malformed({ key: name, expected: `${type}, as in the schema`, received: `${meta_data.type}` });
  if (!isKnownCodec(meta_data.codec))
    throw new Malformed({ key: name, expected: 'a known compression', received: `${meta_data.codec}` });
  const values = wholeNumber(meta_data.num_values, 'number of values');
  if (leaf.repetition === 0 ? values !== rows : values < rows)
    throw new Malformed({ key: name, expected: `a value in each of ${rows} rows`, received: `${values}` });
  const data = wholeNumber(meta_data.data_page_offset, 'offset');
  const dictionary = wholeNumber(meta_data.dictionary_page_offset ?? 0n, 'offset');
  const start = dictionary > 0 && dictionary < data ? dictionary : data;
  const end = start + wholeNumber(meta_data.total_compressed_size, 'size');
  if (end > size)
    throw new Malformed({ key: name, expected: `pages within ${size} bytes`, received: `until ${end}` });
  return { leaf, codec: meta_data.codec, start, end, values };
}

/** Checks a number from the file, which may have any type. */
export function wholeNumber(value: unknown, what: string): number {
  const number = typeof value === 'bigint' ? Number(value) : value;
  if (!Number.isSafeInteger(number) || (number as number) < 0)
    throw new Malformed({ expected: `a ${what} of at least 0`, received: String(value) });
  return number as number;
}
