// Connects to DuckDB, which reads and writes Parquet files and reads SQLite files. DuckDB is an optional package that
// is loaded only when it is needed.
import type * as DuckDB from '@duckdb/node-api';
import { LossError } from '../core/errors.js';
import { describeFailure } from './source.js';
import type { TableBlock } from './table.js';
import { numberOrText } from './values.js';

export type { DuckDB };

/** A DuckDB instance and the connection to it. */
export interface Database {
  duckdb: typeof DuckDB;
  connection: DuckDB.DuckDBConnection;
  close(): void;
}

/**
 * Starts a DuckDB instance and connects to it.
 * @param purpose what DuckDB is needed for, such as the name of a file to read. The error message shows it.
 * @param file the file in which the instance keeps its tables. By default it keeps them in memory.
 * @throws LossError `ERR_INVALID_INPUT` if DuckDB is not installed, with a hint on how to install it.
 */
export async function connectDuckDB(purpose: string, file = ':memory:'): Promise<Database> {
  const duckdb = await load(purpose);
  const instance = await duckdb.DuckDBInstance.create(file, {
    // With a single thread, DuckDB keeps only one row group in memory and returns the rows in order.
    threads: '1',
    // DuckDB must not download or load extensions on its own.
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

async function load(purpose: string): Promise<typeof DuckDB> {
  try {
    return await import('@duckdb/node-api');
  } catch (error) {
    const details = {
      at: purpose,
      expected: 'the optional package @duckdb/node-api',
      received: describeFailure(error),
      hint: "Run 'npm install @duckdb/node-api' where policy-loss is installed",
    };
    throw new LossError('ERR_INVALID_INPUT', details, { cause: error });
  }
}

/** Functions that quote identifiers, text and file names for SQL. */
export const sql = {
  name: (text: string) => `"${text.replaceAll('"', '""')}"`,
  text: (text: string) => `'${text.replaceAll("'", "''")}'`,
  /** Quotes a file name, and escapes its special characters so that DuckDB does not take it for a glob pattern. */
  file: (text: string) => sql.text(text.replace(/[*?[]/g, '[$&]')),
};

/** A query of all rows of a table. */
export interface Query {
  /** The SQL text that follows FROM. */
  from: string;
  columns: readonly string[];
  /** The number of rows in the table. */
  rows: number;
}

/**
 * Yields the rows of a query in blocks, as DuckDB delivers them. The values are converted to JSON values.
 * @throws an error if a row cannot be read.
 */
export async function* queryRows(
  { connection, duckdb }: Database,
  { from, columns, rows }: Query,
): AsyncGenerator<TableBlock> {
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
  // If DuckDB cannot read a row, the stream ends early without an error. A query over the same rows that does not
  // stream its result throws the error.
  await connection.run(`SELECT max(hash(${list})) FROM ${from}`);
  throw new Error(`DuckDB returned ${read} of ${rows} rows`);
}

function valueAt(vector: DuckDB.DuckDBVector, row: number, duckdb: typeof DuckDB): unknown {
  if (!(vector instanceof duckdb.DuckDBListVector)) return toJson(vector.getItem(row), duckdb);
  // Reading the vector of the list's items avoids creating an object for each list. All items have the same type, so
  // the first item that is not null shows whether all are plain numbers.
  const items = vector.getItemVector(row)?.toArray() ?? null;
  return typeof items?.find((item) => item !== null) === 'number' ? items : listToJson(items, duckdb);
}

function listToJson(items: readonly unknown[] | null, duckdb: typeof DuckDB): unknown[] | null {
  return items?.map((item) => toJson(item, duckdb)) ?? null;
}

/** Converts a value that DuckDB returned to a JSON value. */
function toJson(value: unknown, duckdb: typeof DuckDB): unknown {
  if (value === null || typeof value !== 'object')
    return typeof value === 'bigint' ? numberOrText(value) : value;
  if (value instanceof duckdb.DuckDBListValue || value instanceof duckdb.DuckDBArrayValue)
    return listToJson(value.items, duckdb);
  if (value instanceof duckdb.DuckDBDecimalValue) return value.toDouble();
  if (value instanceof duckdb.DuckDBStructValue)
    return Object.fromEntries(
      Object.entries(value.entries).map(([key, item]) => [key, toJson(item, duckdb)]),
    );
  return String(value);
}
