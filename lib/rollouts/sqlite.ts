// Tables of SQLite's databases, FILE#table or the only one that there is: through Node's own SQLite where it has one, and
// else through DuckDB, whose extension for them DuckDB downloads once.
import { open, stat } from 'node:fs/promises';
import { LossError, unknownName } from '../core/errors.js';
import type { ColumnNames } from './column-names.js';
import { connectDuckDB, type Database, queryRows, sql } from './duckdb.js';
import { at, cannotRead, type FileRow, type ReadRows } from './source.js';
import { columnsToRead, tableRow } from './table.js';
import { splitTable } from './table-name.js';
import { textBeyondNumbers } from './tensor/dtype.js';

/** Reads a table. Lists in it are JSON text. */
export const readSqlite: ReadRows = async function* (name, names, onBytes) {
  const { file, suffix } = splitTable(name);
  try {
    const { size } = await stat(file);
    await checkMagic(file);
    const source = (await openWithNode(file)) ?? (await openWithDuckDB(file));
    try {
      const table = chooseTable(file, suffix.slice(1), await source.tables());
      const columns = columnsToRead(name, await source.columns(table), names);
      const rows = await source.count(table);
      let first = 0;
      for await (const block of source.rows(table, columns, rows)) {
        yield rowsIn(name, first, columns, names, block);
        first += block.rows;
        onBytes((size * block.rows) / rows);
      }
    } finally {
      source.close();
    }
  } catch (error) {
    throw cannotRead(name, error);
  }
};

/** Some rows, and their columns' values. */
interface Block {
  rows: number;
  read(row: number): readonly unknown[];
}

/** A database as something reads it. */
interface Source {
  tables(): Promise<string[]>;
  columns(table: string): Promise<string[]>;
  count(table: string): Promise<number>;
  rows(table: string, columns: readonly string[], rows: number): AsyncGenerator<Block>;
  close(): void;
}

function rowsIn(
  file: string,
  first: number,
  columns: readonly string[],
  names: ColumnNames,
  { rows, read }: Block,
): FileRow[] {
  return Array.from({ length: rows }, (_, row) =>
    tableRow({ file, row: first + row + 1 }, columns, names, () => read(row)),
  );
}

async function checkMagic(file: string): Promise<void> {
  const handle = await open(file, 'r');
  try {
    const { buffer } = await handle.read(Buffer.alloc(MAGIC.length), 0, MAGIC.length, 0);
    if (buffer.toString('latin1') !== MAGIC)
      throw at(
        { file },
        'ERR_INVALID_INPUT',
        'expected a database of SQLite 3, and it does not begin as one',
      );
  } finally {
    await handle.close();
  }
}

const MAGIC = 'SQLite format 3\0';

function chooseTable(file: string, asked: string, tables: readonly string[]): string {
  if (asked !== '' && !tables.includes(asked)) {
    const { code, message } = unknownName('ERR_INVALID_INPUT', 'table', asked, tables);
    throw at({ file }, code, message);
  }
  const table = asked === '' ? tables[0] : asked;
  if (table === undefined || (asked === '' && tables.length > 1))
    throw at(
      { file },
      'ERR_INVALID_INPUT',
      tables.length === 0
        ? 'expected a table of rollouts, and the database has none'
        : `expected the name of one of the tables ${tables.join(', ')}, as ${file}#${table}`,
    );
  return table;
}

/** What is used of node:sqlite, which Node has since 22.5, and rows one by one since 22.13. */
interface NodeSqlite {
  DatabaseSync: new (
    file: string,
    options: { readOnly: boolean },
  ) => {
    prepare(query: string): {
      setReadBigInts(on: boolean): void;
      iterate?(): Iterable<Record<string, unknown>>;
    };
    close(): void;
  };
}

const ROWS_AT_ONCE = 64;

async function openWithNode(file: string): Promise<Source | undefined> {
  // Not a word that the compiler resolves: the types are those of the oldest Node.
  const module: string = 'node:sqlite';
  const sqlite = (await import(module).catch(() => undefined)) as NodeSqlite | undefined;
  if (!sqlite) return undefined;
  const database = new sqlite.DatabaseSync(file, { readOnly: true });
  const query = (text: string): Iterable<Record<string, unknown>> | undefined => {
    const statement = database.prepare(text);
    statement.setReadBigInts(true);
    return statement.iterate?.();
  };
  if (!query('SELECT 1')) {
    database.close();
    return undefined;
  }
  const all = (text: string) => [...query(text)!];
  return {
    tables: async () =>
      all(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
      ).map(({ name }) => String(name)),
    columns: async (table) => all(`PRAGMA table_info(${sql.name(table)})`).map(({ name }) => String(name)),
    count: async (table) => Number(all(`SELECT count(*) AS n FROM ${sql.name(table)}`)[0]!.n),
    async *rows(table, columns) {
      let block: unknown[][] = [];
      const take = () => {
        const rows = block;
        block = [];
        return { rows: rows.length, read: (row: number) => rows[row]! };
      };
      for (const row of query(`SELECT ${columns.map(sql.name).join(', ')} FROM ${sql.name(table)}`)!) {
        block.push(
          columns.map((name) => {
            const value = row[name];
            return typeof value === 'bigint' ? textBeyondNumbers(value) : value;
          }),
        );
        if (block.length === ROWS_AT_ONCE) yield take();
      }
      if (block.length > 0) yield take();
    },
    close: () => database.close(),
  };
}

async function openWithDuckDB(file: string): Promise<Source> {
  const database = await connectDuckDB(
    `${file} (which Node ${process.versions.node} cannot read by itself, as 22.13 and newer can)`,
  );
  const { connection } = database;
  try {
    await loadExtension(file, database);
    await connection.run(`ATTACH ${sql.text(file)} AS source (TYPE sqlite, READ_ONLY)`);
  } catch (error) {
    database.close();
    throw error;
  }
  const from = (table: string) => `source.${sql.name(table)}`;
  const column = async (query: string) =>
    (await connection.runAndReadAll(query)).getRows().map(([value]) => String(value));
  return {
    tables: () =>
      column(
        "SELECT table_name FROM information_schema.tables WHERE table_catalog = 'source' ORDER BY table_name",
      ),
    columns: (table) => column(`DESCRIBE FROM ${from(table)}`),
    count: async (table) => Number((await column(`SELECT count(*) FROM ${from(table)}`))[0]),
    rows: (table, columns, rows) => queryRows(database, { from: from(table), columns, rows }),
    close: () => database.close(),
  };
}

async function loadExtension(file: string, { connection }: Database): Promise<void> {
  try {
    await connection.run('LOAD sqlite').catch(async () => {
      await connection.run('INSTALL sqlite');
      await connection.run('LOAD sqlite');
    });
  } catch (error) {
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${file}: expected either Node 22.13 or newer, which reads SQLite, or DuckDB's extension for it, and this is Node ` +
        `${process.versions.node}, and the extension cannot be had: ${error instanceof Error ? error.message.split('\n')[0] : error}`,
      { cause: error },
    );
  }
}
