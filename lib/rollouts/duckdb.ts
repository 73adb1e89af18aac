// DuckDB, which reads and writes Parquet and reads SQLite's databases: an optional package, loaded when it is needed.
import type * as DuckDB from '@duckdb/node-api';
import { LossError } from '../core/errors.js';
import { textBeyondNumbers } from './tensor/dtype.js';

export type { DuckDB };

/** A connection to a DuckDB of its own. */
export interface Database {
  duckdb: typeof DuckDB;
  connection: DuckDB.DuckDBConnection;
  close(): void;
}

/**
 * Starts a DuckDB.
 * @param what that cannot be done without it, for the message.
 * @param file where it keeps its tables; by default in memory.
 * @throws LossError `ERR_INVALID_INPUT` where it is not installed, saying how it gets there.
 */
export async function connectDuckDB(what: string, file = ':memory:'): Promise<Database> {
  const duckdb = await load(what);
  const instance = await duckdb.DuckDBInstance.create(file, {
    // One thread holds one row group, and rows stay in their order.
    threads: '1',
    // Nothing is fetched from the network without being asked for.
    autoinstall_known_extensions: 'false',
    autoload_known_extensions: 'false',
  });
  const connection = await instance.connect();
  return {
    duckdb,
    connection,
    close() {
      connection.closeSync();
      instance.closeSync();
    },
  };
}

async function load(what: string): Promise<typeof DuckDB> {
  try {
    return await import('@duckdb/node-api');
  } catch (error) {
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${what}: expected DuckDB to read or write it, and it cannot be loaded; 'npm install @duckdb/node-api' beside policy-loss brings it ` +
        `(${error instanceof Error ? error.message : error})`,
      { cause: error },
    );
  }
}

/** Names for use in SQL. */
export const sql = {
  name: (text: string) => `"${text.replaceAll('"', '""')}"`,
  text: (text: string) => `'${text.replaceAll("'", "''")}'`,
  /** A file that is to be read as it is named, not as a pattern. */
  file: (text: string) => sql.text(text.replace(/[*?[]/g, '[$&]')),
};

/** Columns of a table that is read. */
export interface Query {
  /** What stands after FROM. */
  from: string;
  columns: readonly string[];
  /** How many rows there are. */
  rows: number;
}

/**
 * The rows of a query, as many at a time as DuckDB gives, each a list of its columns' values as JSON would have them.
 * @throws where a row cannot be read.
 */
export async function* queryRows(
  { connection, duckdb }: Database,
  { from, columns, rows }: Query,
): AsyncGenerator<{ rows: number; read(row: number): unknown[] }> {
  const list = columns.map(sql.name).join(', ');
  const result = await connection.stream(`SELECT ${list} FROM ${from}`);
  let read = 0;
  for (
    let chunk = await result.fetchChunk();
    chunk && chunk.rowCount > 0;
    chunk = await result.fetchChunk()
  ) {
    const vectors = columns.map((_, i) => chunk!.getColumnVector(i));
    yield {
      rows: chunk.rowCount,
      read: (row) => vectors.map((vector) => valueAt(vector, row, duckdb)),
    };
    read += chunk.rowCount;
  }
  if (read === rows) return;
  // What goes wrong in the middle of a stream ends it and says nothing. Said it is where all is read at once.
  await connection.run(`SELECT max(hash(${list})) FROM ${from}`);
  throw new Error(`there are ${rows} rows, and DuckDB ended after ${read}`);
}

function valueAt(vector: DuckDB.DuckDBVector, row: number, duckdb: typeof DuckDB): unknown {
  if (!(vector instanceof duckdb.DuckDBListVector)) return plain(vector.getItem(row), duckdb);
  // Numbers one after another, without an object for each list, and as they are: all of them are of one type.
  const items = vector.getItemVector(row)?.toArray() ?? null;
  return typeof items?.find((item) => item !== null) === 'number' ? items : plainList(items, duckdb);
}

function plainList(items: readonly unknown[] | null, duckdb: typeof DuckDB): unknown[] | null {
  return items?.map((item) => plain(item, duckdb)) ?? null;
}

function plain(value: unknown, duckdb: typeof DuckDB): unknown {
  if (value === null || typeof value !== 'object')
    return typeof value === 'bigint' ? textBeyondNumbers(value) : value;
  if (value instanceof duckdb.DuckDBListValue || value instanceof duckdb.DuckDBArrayValue)
    return plainList(value.items, duckdb);
  if (value instanceof duckdb.DuckDBDecimalValue) return value.toDouble();
  if (value instanceof duckdb.DuckDBStructValue)
    return Object.fromEntries(Object.entries(value.entries).map(([key, item]) => [key, plain(item, duckdb)]));
  return String(value);
}
