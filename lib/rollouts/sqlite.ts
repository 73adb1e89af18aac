// Reads a table of an SQLite database. The name FILE#table selects the table, and FILE is enough if there is only one.
// Node's own SQLite reads the database if this version of Node has it. Otherwise DuckDB does, with an extension that it
// downloads once.
import { open, stat } from 'node:fs/promises';
import { unknownName } from '../core/errors.js';
import { connectDuckDB, type Database, queryRows, sql } from './duckdb.js';
import { splitTable } from './file-name.js';
import { badFile, cannotRead, describeFailure, errorAt, type ReadRows } from './source.js';
import { columnsToRead, type TableBlock, tableRows } from './table.js';
import { numberOrText } from './values.js';

/** Reads an SQLite table. A list in a cell must be JSON text, because SQLite has no type for lists. */
export const readSqlite: ReadRows = async function* (name, names, onBytes, settings) {
  const { file, suffix } = splitTable(name);
  try {
    const { size } = await stat(file);
    await checkMagic(file);
    const source = (await openWithNode(file)) ?? (await openWithDuckDB(file));
    try {
      const table = chooseTable(file, suffix.slice(1), await source.tables());
      const columns = columnsToRead(name, await source.columns(table), names);
      const rows = await source.count(table);
      const blocks = source.blocks(table, columns, rows);
      yield* tableRows(name, { size, rows, columns, blocks }, names, onBytes, settings);
    } finally {
      source.close();
    }
  } catch (error) {
    throw cannotRead(name, error);
  }
};

/** An open database. Either Node or DuckDB reads it. */
interface Source {
  tables(): Promise<string[]>;
  columns(table: string): Promise<string[]>;
  count(table: string): Promise<number>;
  blocks(table: string, columns: readonly string[], rows: number): AsyncGenerator<TableBlock>;
  close(): void;
}

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

function chooseTable(file: string, asked: string, tables: readonly string[]): string {
  if (asked !== '') {
    if (tables.includes(asked)) return asked;
    throw unknownName('ERR_INVALID_INPUT', `${file}: table`, asked, tables);
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
      iterate?(): Iterable<Record<string, unknown>>;
    };
    close(): void;
  };
}

const ROWS_PER_BLOCK = 64;

/**
 * Opens a database with Node's SQLite. Returns undefined if this version of Node has none, or one without `iterate()`.
 */
async function openWithNode(file: string): Promise<Source | undefined> {
  // The type declarations of the oldest supported Node lack this module. With a name of type `string`, the compiler
  // does not look for it.
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
    async *blocks(table, columns) {
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
            return typeof value === 'bigint' ? numberOrText(value) : value;
          }),
        );
        if (block.length === ROWS_PER_BLOCK) yield take();
      }
      if (block.length > 0) yield take();
    },
    close: () => database.close(),
  };
}

async function openWithDuckDB(file: string): Promise<Source> {
  const database = await connectDuckDB(
    `${file} (Node ${process.versions.node} cannot read SQLite itself; 22.13 and later can)`,
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
    blocks: (table, columns, rows) => queryRows(database, { from: from(table), columns, rows }),
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
    const details = {
      expected: "Node 22.13 or later, or DuckDB's extension for SQLite",
      received: `Node ${process.versions.node} and, for the extension, ${describeFailure(error)}`,
    };
    throw errorAt({ file }, 'ERR_INVALID_INPUT', details, error);
  }
}
