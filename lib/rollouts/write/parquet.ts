// Writes gradients as Parquet: DuckDB collects the rows in a table on disk, and then writes the table to the file.
import { join } from 'node:path';
import { connectDuckDB, type DuckDB, sql } from '../duckdb.js';
import type { IdKind, StagedRow, WriteStaged } from './staging.js';

/** Writes Parquet. */
export const writeParquet: WriteStaged = async (staging, file, { name }) => {
  const chunkBytes = CHUNK_ROWS * staging.longest * Float32Array.BYTES_PER_ELEMENT;
  const database = await connectDuckDB(name, {
    database: join(staging.directory, 'table.db'),
    memory: BASE_MEMORY + CHUNKS_IN_MEMORY * chunkBytes,
    directories: [staging.directory],
  });
  try {
    const { connection, duckdb } = database;
    const ids = staging.idColumns();
    const types: Readonly<Record<IdKind, DuckDB.DuckDBType>> = {
      integer: duckdb.BIGINT,
      number: duckdb.DOUBLE,
      text: duckdb.VARCHAR,
    };
    const floats = duckdb.LIST(duckdb.FLOAT);
    const columns = [
      ...ids.map(({ name, kind }) => ({
        name,
        type: types[kind],
        value: (row: StagedRow) => idValue(row.ids[name], kind),
      })),
      { name: 'grad', type: floats, value: (row: StagedRow) => duckdb.listValue(Array.from(row.grad)) },
    ];
    if (staging.hasEntropy)
      columns.push({
        name: 'grad_entropy',
        type: floats,
        value: (row) => duckdb.listValue(Array.from(row.gradEntropy!)),
      });

    await connection.run(
      `CREATE TABLE gradients (${columns.map(({ name, type }) => `${sql.name(name)} ${type}`).join(', ')})`,
    );
    const appender = await connection.createAppender('gradients');
    let rows: StagedRow[] = [];
    let tokens = 0;
    const append = () => {
      const chunk = duckdb.DuckDBDataChunk.create(
        columns.map(({ type }) => type),
        rows.length,
      );
      columns.forEach(({ value }, i) => {
        chunk.setColumnValues(i, rows.map(value));
      });
      appender.appendDataChunk(chunk);
      appender.flushSync();
      chunk.reset();
      rows = [];
      tokens = 0;
    };
    for await (const row of staging.read()) {
      rows.push(row);
      tokens += row.grad.length;
      if (rows.length === CHUNK_ROWS || tokens >= CHUNK_TOKENS) append();
    }
    if (rows.length > 0) append();
    appender.closeSync();

    const tokensPerRow = Math.max(1, staging.tokens / Math.max(1, staging.rows));
    const rowGroup = Math.max(CHUNK_ROWS, Math.round(ROW_GROUP_TOKENS / tokensPerRow));
    await connection.run(
      `COPY gradients TO ${sql.text(file)} (FORMAT parquet, ROW_GROUP_SIZE ${rowGroup}, COMPRESSION zstd)`,
    );
  } finally {
    database.close();
  }
};

// The limits on a chunk of rows that is passed to DuckDB. DuckDB sets the limit on rows; the limit on tokens saves
// memory.
const CHUNK_ROWS = 2048;
const CHUNK_TOKENS = 1 << 18;
// The number of chunks for which DuckDB gets memory, because it works on several at a time. More memory would only
// cache the table, which is on disk.
const CHUNKS_IN_MEMORY = 16;
const BASE_MEMORY = 200e6;
// The approximate number of tokens in a row group. It is limited because readers hold a whole row group in memory.
const ROW_GROUP_TOKENS = 1 << 22;

function idValue(value: unknown, kind: IdKind): DuckDB.DuckDBValue {
  if (kind === 'integer') return BigInt(value as number);
  if (kind === 'number') return Number(value);
  if (value === undefined) return null;
  return typeof value === 'string' ? value : JSON.stringify(value);
}
