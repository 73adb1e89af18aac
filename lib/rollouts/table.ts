// What the readers of all table formats share: they choose the columns to read, and make rows from the columns' values.
import type { ColumnNames } from './column-names.js';
import { isIdColumn } from './columns.js';
import { parseJson } from './json-value.js';
import type { RowLimits } from './limits.js';
import { describeColumns, errorAt, type FileRow, type Place } from './source.js';

/**
 * Returns those columns of a table that must be read: the ones with rollout data and the ones to keep.
 * @throws LossError `ERR_MISSING_INPUT` if the table has no logprobs.
 */
export function columnsToRead(file: string, columns: readonly string[], names: ColumnNames): string[] {
  const logprobs = names.of('logprobs');
  if (!logprobs.some((name) => columns.includes(name)))
    throw errorAt({ file }, 'ERR_MISSING_INPUT', {
      key: logprobs[0],
      expected: 'a column with a list of numbers per row',
      received: describeColumns('a table', columns),
    });
  return columns.filter((name) => names.columnOf(name) !== undefined || names.keep.includes(name));
}

/** A block of consecutive rows of a table. */
export interface TableBlock {
  rows: number;
  /** Returns a row's values, one per column. The row's number counts from 0 at the beginning of the block. */
  read(row: number): readonly unknown[];
}

/** A table whose rows are being read. */
export interface Table {
  /** The file's size in bytes, for reporting the progress. */
  size: number;
  rows: number;
  columns: readonly string[];
  blocks: AsyncIterable<TableBlock>;
}

/**
 * Yields a table's rows, block by block. Text in a column of numbers or lists is parsed as JSON, because some table
 * formats cannot hold lists.
 */
export async function* tableRows(
  file: string,
  { size, rows, columns, blocks }: Table,
  names: ColumnNames,
  onBytes: (bytes: number) => void,
  limits: RowLimits,
): AsyncGenerator<FileRow[]> {
  let first = 1;
  for await (const block of blocks) {
    yield Array.from({ length: block.rows }, (_, i) => {
      const place = { file, row: first + i };
      return { place, read: () => readRow(block.read(i), columns, names, place, limits) };
    });
    first += block.rows;
    onBytes((size * block.rows) / rows);
  }
}

function readRow(
  values: readonly unknown[],
  columns: readonly string[],
  names: ColumnNames,
  place: Place,
  limits: RowLimits,
): Record<string, unknown> {
  return Object.fromEntries(
    values.map((value, i) => [columns[i]!, readCell(value, columns[i]!, names, place, limits)]),
  );
}

function readCell(value: unknown, key: string, names: ColumnNames, place: Place, limits: RowLimits): unknown {
  const column = names.columnOf(key);
  if (typeof value !== 'string' || !column || isIdColumn(column)) return value;
  const expected = 'a number, or a list as JSON text';
  return value === '' ? null : parseJson(value, { place, key, expected, limits });
}
