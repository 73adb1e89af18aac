// Plans how DuckDB reads the columns of a Parquet file, and writes the query.
//
// DuckDB returns up to 2,048 rows at once, and copies every value of these rows. A file of a few kilobytes can expand to
// rows of gigabytes. So the query splits rows: `unnest` returns a list's values one per line, in blocks of 2,048. A row
// with texts gets one line per BYTES_PER_LINE, and only the row's first line has the texts. Thus a block is small.
import type { DuckDB } from './duckdb.js';
import { sql } from './duckdb.js';

/** A column to read, and how the query returns it. */
export interface PlannedColumn {
  name: string;
  /**
   * 'list': numbers, one per line. 'text': a text or bytes, in the row's first line. 'json': a nested value as JSON
   * text, in the row's first line. 'value': a value of fixed size, in every line.
   */
  kind: 'list' | 'text' | 'json' | 'value';
  type: DuckDB.DuckDBType;
}

/** Decides how to read each of the named columns. */
export function planColumns(
  described: DuckDB.DuckDBResult,
  names: readonly string[],
  duckdb: typeof DuckDB,
): PlannedColumn[] {
  const all = described.columnNames();
  return names.map((name) => {
    const type = described.columnType(all.indexOf(name));
    return { name, kind: kindOf(type, duckdb), type };
  });
}

function kindOf(type: DuckDB.DuckDBType, duckdb: typeof DuckDB): PlannedColumn['kind'] {
  if (hasSize(type, duckdb)) return 'text';
  if (type instanceof duckdb.DuckDBListType && isNumber(type.valueType, duckdb)) return 'list';
  return isNested(type, duckdb) ? 'json' : 'value';
}

function isNumber(type: DuckDB.DuckDBType, { DuckDBTypeId: id }: typeof DuckDB): boolean {
  return [
    id.BOOLEAN,
    id.TINYINT,
    id.SMALLINT,
    id.INTEGER,
    id.BIGINT,
    id.HUGEINT,
    id.UTINYINT,
    id.USMALLINT,
    id.UINTEGER,
    id.UBIGINT,
    id.UHUGEINT,
    id.FLOAT,
    id.DOUBLE,
    id.DECIMAL,
  ].includes(type.typeId);
}

function hasSize(type: DuckDB.DuckDBType, duckdb: typeof DuckDB): boolean {
  return type instanceof duckdb.DuckDBVarCharType || type instanceof duckdb.DuckDBBlobType;
}

function isNested(type: DuckDB.DuckDBType, duckdb: typeof DuckDB): boolean {
  return (
    type instanceof duckdb.DuckDBListType ||
    type instanceof duckdb.DuckDBStructType ||
    type instanceof duckdb.DuckDBMapType ||
    type instanceof duckdb.DuckDBArrayType
  );
}

// A line of the query's result may hold this many bytes of text on average.
const BYTES_PER_LINE = 4096;

/**
 * Returns the query of the planned columns. Its first column is true in the first line of each row. Two columns follow
 * for each planned column: its size (the length of a list, or the bytes of a text), and its value.
 * @param from the SQL text that follows FROM.
 * @param maxText the maximum size of a text in bytes. A larger one is returned as NULL.
 */
export function queryOf(
  columns: readonly PlannedColumn[],
  from: string,
  maxText: number,
  duckdb: typeof DuckDB,
): string {
  const bytes: string[] = [];
  const inner: string[] = [];
  const outer = columns.flatMap(({ name, kind, type }, i) => {
    const column = sql.name(name);
    if (kind === 'list') inner.push(`len(${column}) AS size${i}`, `unnest(${column}) AS value${i}`);
    else inner.push(`${column} AS value${i}`);
    if (kind === 'list') return [`size${i}`, `value${i}`];
    if (kind === 'value') return ['0', `value${i}`];
    const size = sizeOf(column, type, duckdb);
    inner.push(`${size} AS size${i}`);
    bytes.push(size);
    const value = kind === 'json' ? `to_json(value${i})::VARCHAR` : `value${i}`;
    return [`size${i}`, `CASE WHEN line = 0 AND size${i} <= ${maxText} THEN ${value} END`];
  });
  const lines = `range(1 + (${['0', ...bytes].join(' + ')}) // ${BYTES_PER_LINE})`;
  return `SELECT coalesce(line = 0, false), ${outer.join(', ')}
    FROM (SELECT unnest(${lines}) AS line, ${inner.join(', ')} FROM ${from})`;
}

/** Returns an SQL expression of about the bytes that a value takes as text. */
function sizeOf(value: string, type: DuckDB.DuckDBType, duckdb: typeof DuckDB): string {
  if (type instanceof duckdb.DuckDBVarCharType) return `coalesce(strlen(${value}), 0)`;
  if (type instanceof duckdb.DuckDBBlobType) return `coalesce(octet_length(${value}), 0)`;
  if (type instanceof duckdb.DuckDBListType || type instanceof duckdb.DuckDBArrayType) {
    // The name of the lambda's parameter is longer for each level of nesting, so that levels do not share names.
    const item = `item_${value.length}`;
    const sizes = `list_transform(${value}, lambda ${item}: ${sizeOf(item, type.valueType, duckdb)})`;
    return `coalesce(list_sum(${sizes})::BIGINT, 0)`;
  }
  if (type instanceof duckdb.DuckDBMapType) {
    const parts = [`map_keys(${value})`, `map_values(${value})`];
    const types = [type.keyType, type.valueType].map((part) => duckdb.LIST(part));
    return parts.map((part, i) => sizeOf(part, types[i]!, duckdb)).join(' + ');
  }
  if (type instanceof duckdb.DuckDBStructType) {
    const entryOf = (name: string) => `struct_extract(${value}, ${sql.text(name)})`;
    const sizes = type.entryTypes.map((entry, i) => sizeOf(entryOf(type.entryNames[i]!), entry, duckdb));
    return ['0', ...sizes].join(' + ');
  }
  return String(BYTES_PER_VALUE);
}

const BYTES_PER_VALUE = 24;
