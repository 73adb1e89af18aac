// Connects to DuckDB, which reads and writes Parquet files. DuckDB is an optional package that is loaded only when it
// is needed.
import { resolve } from 'node:path';
import type * as DuckDB from '@duckdb/node-api';
import { LossError } from '../core/errors.js';
import { describeFailure } from './source.js';

export type { DuckDB };

/** A DuckDB instance and the connection to it. */
export interface Database {
  duckdb: typeof DuckDB;
  connection: DuckDB.DuckDBConnection;
  close(): void;
}

/** What a DuckDB instance may use. */
export interface Access {
  /** The file in which the instance keeps its tables. By default it keeps them in memory. */
  database?: string;
  /** The memory that the instance may use, in bytes. A query that needs more fails. */
  memory: number;
  /** The only files that the instance may read or write. */
  files?: readonly string[];
  /** The only directories in which the instance may read or write all files. */
  directories?: readonly string[];
}

/**
 * Starts a DuckDB instance and connects to it. The instance opens no connection to the network, neither downloads nor
 * loads extensions, and has no access to other files than the given ones.
 * @param purpose what DuckDB is needed for, such as the name of a file to read. The error message shows it.
 * @throws LossError `ERR_INVALID_INPUT` if DuckDB is not installed, with a hint on how to install it.
 */
export async function connectDuckDB(
  purpose: string,
  { database = ':memory:', memory, files = [], directories = [] }: Access,
): Promise<Database> {
  const duckdb = await load(purpose);
  const instance = await duckdb.DuckDBInstance.create(database, {
    // With a single thread, DuckDB keeps only one row group in memory and returns the rows in order.
    threads: '1',
    memory_limit: `${Math.ceil(memory / 1e6)}MB`,
    autoinstall_known_extensions: 'false',
    autoload_known_extensions: 'false',
    // Without a database file, DuckDB would write to the working directory when its memory runs out.
    ...(database === ':memory:' && { temp_directory: '' }),
  });
  const connection = await instance.connect();
  const close = () => {
    connection.closeSync();
    instance.closeSync();
  };
  try {
    const list = (texts: readonly string[]) => `[${texts.map(sql.text).join(', ')}]`;
    const paths = files.map((file) => resolve(file));
    // DuckDB checks the pattern of a file's name as well as the name.
    await connection.run(`SET allowed_paths = ${list([...paths, ...paths.map(pattern)])}`);
    await connection.run(`SET allowed_directories = ${list(directories.map((name) => resolve(name)))}`);
    await connection.run('SET enable_external_access = false');
    await connection.run('SET lock_configuration = true');
  } catch (error) {
    close();
    throw error;
  }
  return { duckdb, connection, close };
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
  /** Quotes the name of a file to read, which DuckDB must not take for a pattern. */
  file: (name: string) => sql.text(pattern(resolve(name))),
};

/** Returns a pattern that only the given file name matches. */
function pattern(name: string): string {
  return name.replace(/[*?[]/g, '[$&]');
}
