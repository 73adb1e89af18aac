// What the readers of all table formats share: they choose the columns to read, and make rows from the columns' values.
import { adviceOnNear, adviceOnStandIn, type ColumnNames } from './column-names.js';
import { isIdColumn } from './columns.js';
import { parseJson } from './json-value.js';
import type { RowLimits } from './source.js';
import {
  type DetailsAtPlace,
  describeColumns,
  emptyRow,
  errorAt,
  type FileRow,
  type Place,
} from './source.js';

/**
 * Returns those columns of a table that must be read: the ones with rollout data and the ones to keep.
 * @throws LossError `ERR_MISSING_INPUT` if the table has no logprobs, and they are needed.
 */
export function columnsToRead(file: string, columns: readonly string[], names: ColumnNames): string[] {
  const logprobs = names.of('logprobs');
  const ofPairs = names.ofSide('chosen', 'logprobs');
  if (names.needLogprobs && ![...logprobs, ...ofPairs].some((name) => columns.includes(name)))
    throw errorAt({ file }, 'ERR_MISSING_INPUT', {
      key: logprobs[0],
      expected: 'a column with a list of numbers per row',
      received: describeColumns('a table', columns),
      hint: adviceOnNear('logprobs', logprobs[0], columns) ?? adviceOnStandIn('logprobs', columns),
    });
  return columns.filter((name) => names.isRead(name));
}

/** Stands for the value of a cell that exceeds a limit, and was therefore not read. */
export class BadCell {
  readonly details: DetailsAtPlace;

  /** @param details the details of the error to throw for the row. */
  constructor(details: DetailsAtPlace) {
    this.details = details;
  }
}

/** The values of a row, with their columns' names. */
export type Cells = readonly (readonly [name: string, value: unknown])[];

/**
 * Makes a row from a table's cells. Text in a column of numbers or lists is parsed as JSON, because some table formats
 * cannot hold lists.
 * @param columns the names of the table's columns.
 */
export function tableRow(
  cells: Cells,
  names: ColumnNames,
  limits: RowLimits,
  place: Place,
  columns: readonly string[],
): FileRow {
  return {
    place,
    columns,
    read() {
      const row = emptyRow();
      for (const [name, value] of cells) row[name] = readCell(value, name, names, limits, place);
      return row;
    },
  };
}

function readCell(value: unknown, key: string, names: ColumnNames, limits: RowLimits, place: Place): unknown {
  if (value instanceof BadCell) throw errorAt(place, 'ERR_INVALID_INPUT', { key, ...value.details });
  const column = names.columnOf(key);
  if (typeof value !== 'string' || !column || isIdColumn(column)) return value;
  const expected = 'a number, or a list as JSON text';
  return value === '' ? null : parseJson(value, { place, key, expected, limits });
}
