// Connects to DuckDB, an optional package that is loaded on first use. It reads and writes Parquet, and reads SQLite.
import type * as DuckDB from '@duckdb/node-api';
import { LossError } from '../core/errors.js';
import { describeFailure } from './source.js';
import type { TableBlock } from './table.js';
import { numberOrText } from './values.js';

export type { DuckDB };

/** A connection to a DuckDB instance of its own. */
export interface Database {
  duckdb: typeof DuckDB;
  connection: DuckDB.DuckDBConnection;
  close(): void;
}

/**
 * Starts a DuckDB instance.
 * @param purpose what needs DuckDB, such as a file's name, for the message.
 * @param file where the instance keeps its tables; in memory by default.
 * @throws LossError `ERR_INVALID_INPUT` if DuckDB is not installed, with a hint on how to install it.
 */
export async function connectDuckDB(purpose: string, file = ':memory:'): Promise<Database> {
  const duckdb = await load(purpose);
  const instance = await duckdb.DuckDBInstance.create(file, {
    // A single thread keeps only one row group in memory, and keeps the rows in order.
    threads: '1',
    // DuckDB must not download anything without being asked.
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

/** Functions that quote text for SQL. */
export const sql = {
  name: (text: string) => `"${text.replaceAll('"', '""')}"`,
  text: (text: string) => `'${text.replaceAll("'", "''")}'`,
  /** Quotes a file name so that DuckDB does not read it as a glob pattern. */
  file: (text: string) => sql.text(text.replace(/[*?[]/g, '[$&]')),
};

/** A query of all rows of a table. */
export interface Query {
  /** The text after FROM. */
  from: string;
  columns: readonly string[];
  /** The number of rows that the table has. */
  rows: number;
}

/**
 * Yields a query's rows in DuckDB's own blocks, with values as JSON has them.
 * @throws if a row cannot be read.
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
  // An error ends a stream silently. Running a query over the same rows without streaming reports the error.
  await connection.run(`SELECT max(hash(${list})) FROM ${from}`);
  throw new Error(`DuckDB returned ${read} of ${rows} rows`);
}

function valueAt(vector: DuckDB.DuckDBVector, row: number, duckdb: typeof DuckDB): unknown {
  if (!(vector instanceof duckdb.DuckDBListVector)) return toJson(vector.getItem(row), duckdb);
  // Reading the items' vector avoids an object per list. All items have one type, so the first that is not null tells
  // whether they are plain numbers.
  const items = vector.getItemVector(row)?.toArray() ?? null;
  return typeof items?.find((item) => item !== null) === 'number' ? items : listToJson(items, duckdb);
}

function listToJson(items: readonly unknown[] | null, duckdb: typeof DuckDB): unknown[] | null {
  return items?.map((item) => toJson(item, duckdb)) ?? null;
}

/** Converts one of DuckDB's values to a JSON value. */
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
