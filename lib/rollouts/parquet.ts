// Parquet, through DuckDB.
import { stat } from 'node:fs/promises';
import { connectDuckDB, queryRows, sql } from './duckdb.js';
import { cannotRead, type ReadRows } from './source.js';
import { columnsToRead, tableRow } from './table.js';

/** Reads Parquet. How much of it is in memory depends on the row groups that it was written with. */
export const readParquet: ReadRows = async function* (file, names, onBytes) {
  const { size } = await stat(file).catch((error: unknown) => {
    throw cannotRead(file, error);
  });
  const database = await connectDuckDB(file);
  try {
    const { connection } = database;
    // By default a path like step=5/ would make a column.
    const from = `read_parquet(${sql.file(file)}, hive_partitioning = false)`;
    const described = await connection.runAndReadAll(`DESCRIBE FROM ${from}`);
    const columns = columnsToRead(file, described.getColumns()[0]!.map(String), names);
    const counted = await connection.runAndReadAll(
      `SELECT coalesce(sum(num_rows), 0)::DOUBLE FROM parquet_file_metadata(${sql.file(file)})`,
    );
    const rows = counted.getRows()[0]![0] as number;
    let first = 0;
    for await (const block of queryRows(database, { from, columns, rows })) {
      const before = first;
      yield Array.from({ length: block.rows }, (_, row) =>
        tableRow({ file, row: before + row + 1 }, columns, names, () => block.read(row)),
      );
      first += block.rows;
      onBytes((size * block.rows) / rows);
    }
  } catch (error) {
    throw cannotRead(file, error);
  } finally {
    database.close();
  }
};
