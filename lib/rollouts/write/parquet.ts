// Gradients as Parquet, through a table of DuckDB's on the disk.
import { join } from 'node:path';
import { connectDuckDB, type DuckDB, sql } from '../duckdb.js';
import type { WriteStaged } from './gradients.js';
import type { IdKind, StagedRow } from './staging.js';

/** Writes Parquet. */
export const writeParquet: WriteStaged = async (staging, file, { name }) => {
  const database = await connectDuckDB(name, join(staging.directory, 'table.db'));
  try {
    const { connection, duckdb } = database;
    const atOnce = MOST_ROWS * staging.longest * Float32Array.BYTES_PER_ELEMENT;
    await connection.run(`SET memory_limit = '${Math.ceil((LEAST_MEMORY + COPIES * atOnce) / 1e6)}MB'`);
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
      if (rows.length === MOST_ROWS || tokens >= TOKENS_AT_ONCE) append();
    }
    if (rows.length > 0) append();
    appender.closeSync();

    const perRow = Math.max(1, staging.tokens / Math.max(1, staging.rows));
    const rowGroup = Math.max(MOST_ROWS, Math.round(TOKENS_IN_A_GROUP / perRow));
    await connection.run(
      `COPY gradients TO ${sql.text(file)} (FORMAT parquet, ROW_GROUP_SIZE ${rowGroup}, COMPRESSION zstd)`,
    );
  } finally {
    database.close();
  }
};

// What a chunk of DuckDB's holds. It works on several at a time; what else it would keep of the table goes to the disk.
const MOST_ROWS = 2048;
const COPIES = 16;
const LEAST_MEMORY = 200e6;
const TOKENS_AT_ONCE = 1 << 18;
// A reader has a row group in its memory.
const TOKENS_IN_A_GROUP = 1 << 22;

function idValue(value: unknown, kind: IdKind): DuckDB.DuckDBValue {
  if (kind === 'integer') return BigInt(value as number);
  if (kind === 'number') return value as number;
  if (value === undefined) return null;
  return typeof value === 'string' ? value : JSON.stringify(value);
}
