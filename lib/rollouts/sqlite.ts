// Reads a table of an SQLite database with Node's own SQLite. The name FILE#table selects the table, and FILE is enough
// if there is only one.
import { open, stat } from 'node:fs/promises';
import { unknownName } from '../core/errors.js';
import type { ColumnNames } from './column-names.js';
import { splitTable } from './file-name.js';
import { maxTextBytes, type RowLimits, textTooLong } from './limits.js';
import { badFile, cannotRead, type FileRow, type ReadRows } from './source.js';
import { BadCell, columnsToRead, tableRow } from './table.js';
import { numberOrText } from './values.js';

/**
 * Reads an SQLite table. A list in a cell must be JSON text, because SQLite has no type for lists. Views and virtual
 * tables are not read, because reading them can run any code and take any time.
 */
export const readSqlite: ReadRows = async function* (name, names, onBytes, limits) {
  const { file, suffix } = splitTable(name);
  let database: Database | undefined;
  try {
    const { size } = await stat(file);
    await checkMagic(file);
    database = await openDatabase(file);
    const table = chooseTable(file, suffix.slice(1), database);
    const columns = columnsToRead(
      name,
      database.all(`PRAGMA table_info(${quoted(table)})`).map((column) => String(column.name)),
      names,
    );
    const bytes = size + (await stat(`${file}-wal`).catch(() => ({ size: 0 }))).size;
    let reported = 0;
    for (const block of blocksOf(name, database, { table, columns, bytes }, names, limits)) {
      yield block.rows;
      const read = Math.min(block.bytes, size);
      onBytes(read - reported);
      reported = read;
    }
    onBytes(size - reported);
  } catch (error) {
    throw cannotRead(name, error);
  } finally {
    database?.close();
  }
};

async function checkMagic(file: string): Promise<void> {
  const handle = await open(file, 'r');
  try {
    const { buffer } = await handle.read(Buffer.alloc(MAGIC.length), 0, MAGIC.length, 0);
    if (buffer.toString('latin1') !== MAGIC)
      throw badFile(file, { expected: 'an SQLite 3 database', received: 'a file without its signature' });
  } finally {
    await handle.close();
  }
}

const MAGIC = 'SQLite format 3\0';

type SqlRow = Record<string, unknown>;

/**
 * The part of the module node:sqlite that this file uses. Node has had the module since 22.5, and `iterate()` since
 * 22.13.
 */
interface NodeSqlite {
  DatabaseSync: new (
    file: string,
    options: { readOnly: boolean },
  ) => {
    prepare(query: string): {
      setReadBigInts(on: boolean): void;
      iterate?(): Iterable<SqlRow>;
    };
    close(): void;
  };
}

/** An open database. */
interface Database {
  /** Runs a query and returns its rows one by one. Integers are bigints. */
  rows(query: string): Iterable<SqlRow>;
  /** Runs a query and returns all its rows. */
  all(query: string): SqlRow[];
  close(): void;
}

/**
 * Opens a database.
 * @throws LossError `ERR_INVALID_INPUT` if this version of Node cannot read SQLite.
 */
async function openDatabase(file: string): Promise<Database> {
  // The type declarations of the oldest supported Node lack this module. With a name of type `string`, the compiler
  // does not look for it.
  const module: string = 'node:sqlite';
  const sqlite = (await import(module).catch(() => undefined)) as NodeSqlite | undefined;
  if (!sqlite) throw tooOld(file);
  const database = new sqlite.DatabaseSync(file, { readOnly: true });
  const rows = (query: string) => {
    const statement = database.prepare(query);
    statement.setReadBigInts(true);
    if (!statement.iterate) throw tooOld(file);
    return statement.iterate();
  };
  return { rows, all: (query) => [...rows(query)], close: () => database.close() };
}

function tooOld(file: string) {
  return badFile(file, {
    expected: 'Node 22.13 or later, which can read SQLite',
    received: `Node ${process.versions.node}`,
    hint: `Or convert the table: sqlite3 -header -csv ${file} 'SELECT * FROM TABLE' > rollouts.csv`,
  });
}

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
      hint: `CREATE TABLE rollouts AS SELECT * FROM ${quoted(asked)} makes a table of it`,
    });
  }
  const [table] = tables;
  if (table === undefined)
    throw badFile(file, { expected: 'a table of rollouts', received: 'a database without tables' });
  if (tables.length > 1)
    throw badFile(file, {
      expected: `the name of one of the tables ${tables.join(', ')}`,
      hint: `Write ${file}#${table}`,
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
  database: Database,
  { table, columns, bytes: limit }: { table: string; columns: readonly string[]; bytes: number },
  names: ColumnNames,
  limits: RowLimits,
): Generator<{ rows: FileRow[]; bytes: number }> {
  let rows: FileRow[] = [];
  let row = 1;
  let bytes = 0;
  let blockBytes = 0;
  for (const values of database.rows(queryOf(table, columns, maxTextBytes(limits)))) {
    const sizes = columns.map((_, i) => Number(values[`size${i}`]));
    const rowBytes = sizes.reduce((sum, size) => sum + size, BYTES_PER_ROW);
    bytes += rowBytes;
    blockBytes += rowBytes;
    // The pages of a malicious file can refer to each other so that the same rows are found again and again.
    if (bytes > limit)
      throw badFile(name, { expected: `rows of at most ${limit} bytes, as the file`, received: 'more' });
    const cells = columns.map(
      (column, i) => [column, cellOf(values[`value${i}`], sizes[i]!, limits)] as const,
    );
    rows.push(tableRow(cells, names, limits, { file: name, row: row++ }));
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

function cellOf(value: unknown, size: number, limits: RowLimits): unknown {
  if (size > maxTextBytes(limits)) return new BadCell(textTooLong(limits, size));
  return typeof value === 'bigint' ? numberOrText(value) : value;
}

/** Quotes a name for SQL. */
function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
