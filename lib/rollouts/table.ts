// What tables have in common: columns by name, of which those that are asked for are read.
import type { ColumnNames } from './column-names.js';
import { parseJson } from './json-lines.js';
import { at, type FileRow, listed, type Place } from './source.js';

/**
 * The columns to read of those that a table has.
 * @throws LossError `ERR_MISSING_INPUT` where it has no logprobs.
 */
export function columnsToRead(file: string, columns: readonly string[], names: ColumnNames): string[] {
  if (!names.of('logprobs').some((name) => columns.includes(name)))
    throw at(
      { file },
      'ERR_MISSING_INPUT',
      `${names.describe('logprobs')}: expected a column with a list of numbers per row, and the table has only ` +
        listed(columns),
    );
  return columns.filter((name) => names.columnOf(name) !== undefined || names.keep.includes(name));
}

/** A row of such columns. Lists may be JSON text, where tables have no lists. */
export function tableRow(
  place: Place,
  columns: readonly string[],
  names: ColumnNames,
  values: () => readonly unknown[],
): FileRow {
  return {
    place,
    read: () =>
      Object.fromEntries(values().map((value, i) => [columns[i]!, cell(value, columns[i]!, names, place)])),
  };
}

function cell(value: unknown, name: string, names: ColumnNames, place: Place): unknown {
  const column = names.columnOf(name);
  if (typeof value !== 'string' || !column || column === 'task_id' || column === 'run_id') return value;
  return value === ''
    ? null
    : parseJson(value, `a number, or a list as JSON text, in the column ${name}`, place);
}
