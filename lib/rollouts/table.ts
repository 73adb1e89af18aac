// The common part of all table formats: choosing the columns to read, and making rows from the columns' values.
import type { ColumnNames } from './column-names.js';
import { parseJson } from './json-lines.js';
import { describeColumns, errorAt, type FileRow, type Place } from './source.js';

/**
 * Returns those columns of a table that must be read.
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

/** Consecutive rows of a table. */
export interface TableBlock {
  rows: number;
  /** Returns the values of a row, one per column. */
  read(row: number): readonly unknown[];
}

/** A table that is being read. */
export interface Table {
  /** The file's size in bytes. */
  size: number;
  rows: number;
  columns: readonly string[];
  blocks: AsyncIterable<TableBlock>;
}

/** Yields a table's rows, block by block. Values may be JSON text, because some tables cannot hold lists. */
export async function* tableRows(
  file: string,
  { size, rows, columns, blocks }: Table,
  names: ColumnNames,
  onBytes: (bytes: number) => void,
): AsyncGenerator<FileRow[]> {
  let first = 1;
  for await (const block of blocks) {
    yield Array.from({ length: block.rows }, (_, i) => {
      const place = { file, row: first + i };
      return { place, read: () => readRow(block.read(i), columns, names, place) };
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
): Record<string, unknown> {
  return Object.fromEntries(
    values.map((value, i) => [columns[i]!, readCell(value, columns[i]!, names, place)]),
  );
}

function readCell(value: unknown, name: string, names: ColumnNames, place: Place): unknown {
  const column = names.columnOf(name);
  if (typeof value !== 'string' || !column || column === 'task_id' || column === 'run_id') return value;
  return value === '' ? null : parseJson(value, 'a number, or a list as JSON text', place, name);
}
