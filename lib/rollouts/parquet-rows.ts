// Assembles the rows of a Parquet file from the lines that the query in parquet-columns.ts returns.
import type { DuckDB } from './duckdb.js';
import { maxTextBytes, type RowLimits, textTooLong, tooManyTokens } from './limits.js';
import type { PlannedColumn } from './parquet-columns.js';
import { BadCell, type Cells, JsonCell } from './table.js';
import { numberOrText } from './values.js';

/** Assembles rows from the blocks of lines that DuckDB returns. */
export class RowAssembler {
  readonly #columns: readonly PlannedColumn[];
  readonly #limits: RowLimits;
  readonly #duckdb: typeof DuckDB;
  /** The values of the row whose lines are being read, one per column. */
  #row: unknown[] | undefined;

  constructor(columns: readonly PlannedColumn[], limits: RowLimits, duckdb: typeof DuckDB) {
    this.#columns = columns;
    this.#limits = limits;
    this.#duckdb = duckdb;
  }

  /** Adds a block of lines. Returns the rows that ended before the block's last line. */
  push(chunk: DuckDB.DuckDBDataChunk): Cells[] {
    const rows: Cells[] = [];
    const begins = chunk.getColumnVector(0);
    const lines = chunk.rowCount;
    for (let line = 0; line < lines; ) {
      if (begins.getItem(line) === true) {
        rows.push(...this.end());
        this.#row = this.#columns.map((_, i) => this.#begin(chunk, i, line));
      }
      let end = line + 1;
      while (end < lines && begins.getItem(end) !== true) end++;
      this.#row?.forEach((value, i) => {
        if (value instanceof NumberList) value.append(valuesOf(chunk, i), line, end, this.#duckdb);
      });
      line = end;
    }
    return rows;
  }

  /** Returns the row whose lines were read last, unless lines are missing. */
  end(): Cells[] {
    const row = this.#row;
    this.#row = undefined;
    if (!row || row.some((value) => value instanceof NumberList && !value.complete)) return [];
    return [
      row.map((value, i) => [this.#columns[i]!.name, value instanceof NumberList ? value.values : value]),
    ];
  }

  /** Returns a column's value in the first line of a row. A list is still empty. */
  #begin(chunk: DuckDB.DuckDBDataChunk, column: number, line: number): unknown {
    const { kind } = this.#columns[column]!;
    const value = valuesOf(chunk, column).getItem(line);
    if (kind === 'value') return toJson(value, this.#duckdb);
    const stated = chunk.getColumnVector(1 + 2 * column).getItem(line);
    const size = Number(stated ?? 0);
    if (kind === 'list') {
      if (stated === null) return null;
      const { maxRowTokens } = this.#limits;
      return size > maxRowTokens ? new BadCell(tooManyTokens(this.#limits, size)) : new NumberList(size);
    }
    if (size > maxTextBytes(this.#limits)) return new BadCell(textTooLong(this.#limits, size));
    return kind === 'json' && value !== null ? new JsonCell(String(value)) : toJson(value, this.#duckdb);
  }
}

function valuesOf(chunk: DuckDB.DuckDBDataChunk, column: number): DuckDB.DuckDBVector {
  return chunk.getColumnVector(2 + 2 * column);
}

/** A list of numbers that is being read. */
class NumberList {
  readonly #numbers: Float64Array;
  /** All values, if one of them is not a number. */
  #others: unknown[] | undefined;
  #read = 0;

  constructor(length: number) {
    this.#numbers = new Float64Array(length);
  }

  get complete(): boolean {
    return this.#read === this.#numbers.length;
  }

  get values(): Float64Array | readonly unknown[] {
    return this.#others ?? this.#numbers;
  }

  /** Appends values of some lines. Lines after the list's end belong to longer columns. */
  append(vector: DuckDB.DuckDBVector, from: number, to: number, duckdb: typeof DuckDB): void {
    const end = Math.min(to, from + this.#numbers.length - this.#read);
    for (let line = from; line < end; line++) {
      const item = vector.getItem(line);
      const value = typeof item === 'number' ? item : toJson(item, duckdb);
      if (this.#others) this.#others.push(value);
      else if (typeof value === 'number') this.#numbers[this.#read] = value;
      else this.#others = [...this.#numbers.subarray(0, this.#read), value];
      this.#read++;
    }
  }
}

/** Converts a value that is neither text nor nested to a JSON value. */
function toJson(value: DuckDB.DuckDBValue, duckdb: typeof DuckDB): unknown {
  if (value === null || typeof value !== 'object')
    return typeof value === 'bigint' ? numberOrText(value) : value;
  if (!(value instanceof duckdb.DuckDBDecimalValue)) return String(value);
  return value.scale === 0 ? numberOrText(value.value) : value.toDouble();
}
