// Reads Parquet files with DuckDB.
import { stat } from 'node:fs/promises';
import { connectDuckDB, queryRows, sql } from './duckdb.js';
import { cannotRead, type ReadRows } from './source.js';
import { columnsToRead, tableRows } from './table.js';

/** Reads a Parquet file. The memory needed depends on the size of the file's row groups. */
export const readParquet: ReadRows = async function* (file, names, onBytes, settings) {
  const { size } = await stat(file).catch((error: unknown) => {
    throw cannotRead(file, error);
  });
  const database = await connectDuckDB(file);
  try {
    const { connection } = database;
    // With hive_partitioning, DuckDB would add a column `step` to a file in a directory called `step=5`.
    const from = `read_parquet(${sql.file(file)}, hive_partitioning = false)`;
    const described = await connection.runAndReadAll(`DESCRIBE FROM ${from}`);
    const columns = columnsToRead(file, described.getColumns()[0]!.map(String), names);
    const counted = await connection.runAndReadAll(
      `SELECT coalesce(sum(num_rows), 0)::DOUBLE FROM parquet_file_metadata(${sql.file(file)})`,
    );
    const rows = counted.getRows()[0]![0] as number;
    const blocks = queryRows(database, { from, columns, rows });
    yield* tableRows(file, { size, rows, columns, blocks }, names, onBytes, settings);
  } catch (error) {
    throw cannotRead(file, error);
  } finally {
    database.close();
  }
};
