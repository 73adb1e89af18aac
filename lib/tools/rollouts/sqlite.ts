// Reads a table of an SQLite database. The name FILE#table selects the table, and FILE is enough
// if there is only one.
import { open, stat } from 'node:fs/promises';
import { brief, shorten, unknownName } from '../../base/errors.js';
import type { ColumnNames } from './column-names.js';
import { splitTable } from './file-name.js';
import { maxRowBytes, maxTextBytes, textTooLong } from './limits.js';
import { badFile, cannotRead, type FileRow, type ReadRows, type RowLimits } from './source.js';
import { type Database, openDatabase } from './sqlite-database.js';
import { BadCell, columnsToRead, tableRow } from './table.js';
import { bufferColumns, experienceRows } from './trainers/trinity-buffer.js';
import { numberOrText } from './values.js';

/**
 * Reads an SQLite table. A list in a cell must be JSON text, because SQLite has no type for lists; or the table is a
 * buffer of Trinity-RFT, with experiences as bytes. Views and virtual tables are not read, because reading them can run any
 * code and take any time.
 */
export const readSqlite: ReadRows = async function* (name, names, onBytes, limits) {
  const { file, suffix } = splitTable(name);
  let table: Table | undefined;
  try {
    table = await Table.open(file, limits.copy ?? file, suffix.slice(1));
    const buffer = bufferColumns(table.columns);
    const columns = buffer ?? columnsToRead(name, table.columns, names);
    let reported = 0;
    for (const block of blocksOf(name, table, columns, names, limits, buffer !== undefined)) {
      yield block.rows;
      const read = Math.min(block.bytes, table.fileBytes);
      onBytes(read - reported);
      reported = read;
    }
    onBytes(table.fileBytes - reported);
  } catch (error) {
    throw cannotRead(name, error);
  } finally {
    await table?.close();
  }
};

/** A row of a table. */
interface StoredRow {
  /** The values of the columns. A text or blob that is too long is null. */
  values: unknown[];
  /** For each column, the bytes of its text or blob; 0 for other values. */
  sizes: number[];
  /** The least bytes that the row takes in the file. */
  bytes: number;
}

/** A table of an open database. */
class Table {
  /** The names of the columns, without generated ones. */
  readonly columns: readonly string[];
  readonly fileBytes: number;
  readonly #database: Database;
  readonly #file: string;
  readonly #name: string;
  /** What all rows can take: the bytes of the file and of its write-ahead log. */
  readonly #maxBytes: number;

  private constructor(file: string, database: Database, name: string, fileBytes: number, maxBytes: number) {
    this.columns = database.all(`PRAGMA table_info(${quoted(name)})`).map((column) => String(column.name));
    this.fileBytes = fileBytes;
    this.#database = database;
    this.#file = file;
    this.#name = name;
    this.#maxBytes = maxBytes;
  }

  /**
   * @param path where the file's bytes are.
   * @param asked the name of the table; '' for the only one.
   */
  static async open(file: string, path: string, asked: string): Promise<Table> {
    const { size } = await stat(path);
    const log = await stat(`${path}-wal`).catch(() => ({ size: 0 }));
    await checkMagic(file, path);
    const database = await openDatabase(path, file);
    try {
      return new Table(file, database, chooseTable(file, asked, database), size, size + log.size);
    } catch (error) {
      await database.close();
      throw error;
    }
  }

  /** @param maxBytes the maximum size of a text or blob. */
  *rows(columns: readonly string[], maxBytes: number): Generator<StoredRow> {
    let total = 0;
    for (const row of this.#database.rows(queryOf(this.#name, columns, maxBytes))) {
      const sizes = columns.map((_, i) => Number(row[`size${i}`]));
      const bytes = sizes.reduce((sum, size) => sum + size, BYTES_PER_ROW);
      total += bytes;
      // The pages of a malicious file can refer to each other so that the same rows are found again and again.
      if (total > this.#maxBytes)
        throw badFile(this.#file, {
          expected: `rows of at most ${this.#maxBytes} bytes, as the file`,
          received: 'more',
        });
      const values = columns.map((_, i) => {
        const value = row[`value${i}`];
        return typeof value === 'bigint' ? numberOrText(value) : value;
      });
      yield { values, sizes, bytes };
    }
  }

  close(): Promise<void> {
    return this.#database.close();
  }
}

async function checkMagic(file: string, path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    const { buffer } = await handle.read(Buffer.alloc(MAGIC.length), 0, MAGIC.length, 0);
    if (buffer.toString('latin1') !== MAGIC)
      throw badFile(file, { expected: 'an SQLite 3 database', received: 'a file without its signature' });
  } finally {
    await handle.close();
  }
}

const MAGIC = 'SQLite format 3\0';

function chooseTable(file: string, asked: string, database: Database): string {
  const all = database
    .all('PRAGMA main.table_list')
    .map(({ name, type }) => ({ name: String(name), type: String(type) }))
    .filter(({ name }) => !name.startsWith('sqlite_'));
  const tables = all.filter(({ type }) => type === 'table').map(({ name }) => name);
  if (asked !== '') {
    if (tables.includes(asked)) return asked;
    const other = all.find(({ name }) => name === asked);
    if (!other) throw unknownName('ERR_INVALID_INPUT', `${file}: table`, asked, tables);
    throw badFile(file, {
      expected: 'the name of a table',
      received: `${asked}, of type ${other.type}`,
      hint: `CREATE TABLE rollouts AS SELECT * FROM ${brief(quoted(asked))} makes a table of it`,
    });
  }
  const [table] = tables;
  if (table === undefined)
    throw badFile(file, { expected: 'a table of rollouts', received: 'a database without tables' });
  if (tables.length > 1)
    throw badFile(file, {
      expected: `the name of one of the tables ${shorten(tables.join(', '))}`,
      hint: `Write ${file}#${brief(table)}`,
    });
  return table;
}

const ROWS_PER_BLOCK = 64;
const BYTES_PER_BLOCK = 1 << 20;
// The least bytes that a row takes in a file: its place in the page, its length, and its header.
const BYTES_PER_ROW = 4;

/** Yields the rows of a table in blocks. `bytes` are the bytes of all rows so far. */
function* blocksOf(
  name: string,
  table: Table,
  columns: readonly string[],
  names: ColumnNames,
  limits: RowLimits,
  isBuffer: boolean,
): Generator<{ rows: FileRow[]; bytes: number }> {
  let rows: FileRow[] = [];
  let row = 1;
  let bytes = 0;
  let blockBytes = 0;
  const maxBytes = isBuffer ? maxRowBytes(limits) : maxTextBytes(limits);
  for (const { values, sizes, bytes: rowBytes } of table.rows(columns, maxBytes)) {
    bytes += rowBytes;
    blockBytes += rowBytes;
    const place = { file: name, row: row++ };
    if (isBuffer) rows.push(...experienceRows(columns, values, sizes[0]!, names, limits, place));
    else {
      const cells = columns.map((column, i) => {
        const size = sizes[i]!;
        return [column, size > maxBytes ? new BadCell(textTooLong(limits, size)) : values[i]] as const;
      });
      rows.push(tableRow(cells, names, limits, place, table.columns));
    }
    if (rows.length < ROWS_PER_BLOCK && blockBytes < BYTES_PER_BLOCK) continue;
    yield { rows, bytes };
    rows = [];
    blockBytes = 0;
  }
  yield { rows, bytes };
}

/** Returns a query for the columns and, for each of them, the bytes that a text takes. A long text is NULL. */
function queryOf(table: string, columns: readonly string[], maxText: number): string {
  const values = columns.map((column, i) => {
    const name = quoted(column);
    const size = `iif(typeof(${name}) IN ('text', 'blob'), octet_length(${name}), 0)`;
    return `${size} AS size${i}, iif(${size} <= ${maxText}, ${name}, NULL) AS value${i}`;
  });
  return `SELECT ${values.join(', ')} FROM main.${quoted(table)}`;
}

/** Quotes a name for SQL. */
function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
