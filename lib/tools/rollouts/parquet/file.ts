// Opens Parquet files, and checks what their footers claim.
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { type ColumnChunk, type FileMetaData, parquetMetadata } from 'hyparquet';
import type { RowLimits } from '../source.js';
import { isKnownCodec } from './codecs.js';
import { Malformed } from './malformed.js';
import { type Node, schemaTree } from './schema.js';
import { ThriftReader } from './thrift.js';

/** The values of a column in a row group. */
export interface Chunk {
  leaf: Node;
  codec: NonNullable<ColumnChunk['meta_data']>['codec'];
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

/** The first byte of a row group, and its number of rows. */
export interface GroupBounds {
  start: number;
  rows: number;
}

const MAGIC = 'PAR1';
const MAX_FOOTER = 2 ** 25;

/** An open Parquet file. */
export class ParquetFile {
  readonly columns: readonly Node[];
  readonly groups: readonly RowGroup[];
  readonly size: number;
  readonly #descriptor: number;

  /**
   * Opens a file and reads its footer.
   * @throws Malformed if the file is not a Parquet file, or its footer claims too much.
   */
  constructor(path: string) {
    this.#descriptor = openSync(path, 'r');
    try {
      this.size = fstatSync(this.#descriptor).size;
      const { schema, row_groups, num_rows } = this.#footer();
      const { children, leaves } = schemaTree(schema);
      this.columns = children;
      this.groups = row_groups.map(({ columns, num_rows }) => {
        const rows = wholeNumber(num_rows, 'number of rows');
        if (columns.length !== leaves.length)
          throw new Malformed(`${leaves.length} columns in a row group, as in the schema`, columns.length);
        return { rows, chunkOf: (leaf) => chunkOf(leaf, columns[leaf.leaf]!, rows, this.size) };
      });
      const rows = this.groups.reduce((sum, group) => sum + group.rows, 0);
      if (rows !== wholeNumber(num_rows, 'number of rows'))
        throw new Malformed(`row groups of ${num_rows} rows together`, rows);
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /**
   * Checks that the file is large enough for the values of the columns. A run of equal values takes a few bytes, however
   * long it is, so a small file can claim to have any number of values.
   */
  checkClaims(leaves: readonly Node[], { maxRowTokens }: RowLimits): void {
    const most = Math.max(2 ** 25, 16 * maxRowTokens) + 64 * this.size;
    let values = 0;
    for (const group of this.groups) for (const leaf of leaves) values += group.chunkOf(leaf).values;
    if (values > most)
      throw new Malformed(`at most ${most} values in a file of ${this.size} bytes`, values, {
        hint: (spell) => `If the file is correct, raise ${spell('maxRowTokens')}`,
      });
  }

  /** Reads bytes, or fewer at the end of the file. */
  read(length: number, position: number): Buffer {
    const bytes = Buffer.allocUnsafeSlow(Math.max(0, Math.min(length, this.size - position)));
    let read = 0;
    while (read < bytes.length) {
      const more = readSync(this.#descriptor, bytes, read, bytes.length - read, position + read);
      if (more === 0) break;
      read += more;
    }
    return bytes.subarray(0, read);
  }

  close(): void {
    closeSync(this.#descriptor);
  }

  #footer(): FileMetaData {
    const tail = this.size < 12 ? Buffer.alloc(8) : this.read(8, this.size - 8);
    if (tail.toString('latin1', 4) !== MAGIC)
      throw new Malformed('a Parquet file', 'a file without its signature');
    const length = tail.readUInt32LE(0);
    const limit = Math.min(this.size - 12, MAX_FOOTER);
    if (length > limit) throw new Malformed(`a footer of at most ${limit} bytes`, `one of ${length}`);
    const footer = this.read(length + 8, this.size - 8 - length);
    new ThriftReader(footer.subarray(0, length)).struct();
    try {
      return parquetMetadata(footer, { geoparquet: false });
    } catch (error) {
      throw Malformed.because('the footer', error);
    }
  }
}

function chunkOf(leaf: Node, chunk: ColumnChunk, rows: number, size: number): Chunk {
  const { file_path, meta_data, crypto_metadata } = chunk;
  const { name, type } = leaf.element;
  if (!meta_data || crypto_metadata !== undefined || file_path)
    throw new Malformed('a column in this file, not encrypted', 'another', { key: name });
  if (meta_data.type !== type)
    throw new Malformed(`${type}, as in the schema`, `${meta_data.type}`, { key: name });
  if (!isKnownCodec(meta_data.codec))
    throw new Malformed('a known compression', meta_data.codec, { key: name });
  const values = wholeNumber(meta_data.num_values, 'number of values');
  if (leaf.repetition === 0 ? values !== rows : values < rows)
    throw new Malformed(`a value in each of ${rows} rows`, values, { key: name });
  const data = wholeNumber(meta_data.data_page_offset, 'offset');
  const dictionary = wholeNumber(meta_data.dictionary_page_offset ?? 0n, 'offset');
  const start = dictionary > 0 && dictionary < data ? dictionary : data;
  const end = start + wholeNumber(meta_data.total_compressed_size, 'size');
  if (end > size) throw new Malformed(`pages within ${size} bytes`, `until ${end}`, { key: name });
  return { leaf, codec: meta_data.codec, start, end, values };
}

/** Checks a number from the file, which may have any type. */
export function wholeNumber(value: unknown, what: string): number {
  const number = typeof value === 'bigint' ? Number(value) : value;
  if (!Number.isSafeInteger(number) || (number as number) < 0)
    throw new Malformed(`a ${what} of at least 0`, String(value));
  return number as number;
}

/**
 * Returns the bounds of a Parquet file's row groups, in the order of the file. Returns undefined if the file cannot be
 * cut: it is malformed, has no rows, or its row groups do not follow each other.
 */
export function boundsOfGroups(path: string): GroupBounds[] | undefined {
  let file: ParquetFile | undefined;
  try {
    file = new ParquetFile(path);
    const leaves = file.columns.flatMap((column) => column.leaves);
    let end = 0;
    const bounds: GroupBounds[] = [];
    for (const group of file.groups) {
      const chunks = leaves.map((leaf) => group.chunkOf(leaf));
      const start = Math.min(...chunks.map((chunk) => chunk.start));
      if (start < end) return undefined;
      end = Math.max(...chunks.map((chunk) => chunk.end));
      bounds.push({ start, rows: group.rows });
    }
    return bounds.length > 0 ? bounds : undefined;
  } catch {
    // The reader will report the reason.
    return undefined;
  } finally {
    file?.close();
  }
}
