// Reads Parquet files with DuckDB.
import { stat } from 'node:fs/promises';
import { connectDuckDB, type Database, sql } from './duckdb.js';
import { maxTextBytes, type RowLimits } from './limits.js';
import { type PlannedColumn, planColumns, queryOf } from './parquet-columns.js';
import { checkFooter } from './parquet-footer.js';
import { RowAssembler } from './parquet-rows.js';
import { cannotRead, type ReadRows } from './source.js';
import { type Cells, columnsToRead, tableRow } from './table.js';

// DuckDB decodes 2,048 rows at once, however long they are. This limits what they may take.
const MEMORY = 600e6;
const BYTES_PER_TOKEN = 64;
const HINT =
  'If the file is whole, its rows are too long to decode 2,048 of them at once. Write row groups of fewer rows';

/** Reads a Parquet file. */
export const readParquet: ReadRows = async function* (file, names, onBytes, limits) {
  let database: Database | undefined;
  let hint: string | undefined;
  try {
    const { size } = await stat(file);
    const memory = Math.max(MEMORY, BYTES_PER_TOKEN * limits.maxRowTokens);
    database = await connectDuckDB(file, { memory, files: [file] });
    const rows = await checkFooter(file, size);
    // With hive_partitioning, DuckDB would add a column `step` to a file in a directory called `step=5`.
    const from = `read_parquet(${sql.file(file)}, hive_partitioning = false)`;
    const described = await database.connection.run(`SELECT * FROM ${from} LIMIT 0`);
    const wanted = columnsToRead(file, described.columnNames(), names);
    const columns = planColumns(described, wanted, database.duckdb);
    let read = 0;
    hint = HINT;
    for await (const block of rowsOf(database, columns, from, limits)) {
      const first = read + 1;
      read += block.length;
      yield block.map((cells, i) => tableRow(cells, names, limits, { file, row: first + i }));
      onBytes((size * block.length) / rows);
    }
    if (read !== rows) await explain(database, wanted, from, `DuckDB returned ${read} of ${rows} rows`);
  } catch (error) {
    throw cannotRead(file, error, hint);
  } finally {
    database?.close();
  }
};

/** Yields the file's rows in blocks. */
async function* rowsOf(
  { connection, duckdb }: Database,
  columns: readonly PlannedColumn[],
  from: string,
  limits: RowLimits,
): AsyncGenerator<Cells[]> {
  const assembler = new RowAssembler(columns, limits, duckdb);
  const result = await connection.stream(queryOf(columns, from, maxTextBytes(limits), duckdb));
  for (
    let chunk = await result.fetchChunk();
    chunk && chunk.rowCount > 0;
    chunk = await result.fetchChunk()
  ) {
    const rows = assembler.push(chunk);
    // Without this, the chunk's texts would stay in memory until the next garbage collection.
    chunk.reset();
    if (rows.length > 0) yield rows;
  }
  yield assembler.end();
}

/**
 * Throws the reason why rows are missing. If DuckDB cannot read a row, the stream ends early without an error. A query
 * over the same rows that does not stream its result throws the error.
 */
async function explain(
  { connection }: Database,
  columns: readonly string[],
  from: string,
  otherwise: string,
) {
  await connection.run(`SELECT max(hash(${columns.map(sql.name).join(', ')})) FROM ${from}`);
  throw new Error(otherwise);
}
