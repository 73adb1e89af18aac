// Rows of files that hold a whole pair: the chosen response and the rejected one, each in columns of its own.
import { type ColumnNames, SIDES, type Side } from './column-names.js';
import type { RolloutColumn } from './columns.js';
import { emptyRow, type FileRow, type RowValues } from './source.js';

/** A row that was read. */
export interface OpenedRow {
  /** The row, which reads nothing again. */
  row: FileRow;
  /** Undefined if the row is malformed. Reading `row` then throws the reason. */
  values: Readonly<RowValues> | undefined;
}

/** Reads a row. */
export function opened(row: FileRow): OpenedRow {
  try {
    const values = row.read();
    return { row: { ...row, read: () => values }, values };
  } catch (error) {
    return { row: { ...row, read: () => raise(error) }, values: undefined };
  }
}

/** Throws an error. */
export function raise(error: unknown): never {
  throw error;
}

/**
 * Returns a function for the rows of one file. It divides a row with columns such as chosen_logprobs and rejected_logprobs
 * into two rows, the chosen one first, and returns other rows unchanged. The first row that is well-formed decides which
 * rows the file has.
 */
export function halvesOf(names: ColumnNames): (row: FileRow) => readonly FileRow[] {
  let arePairs: boolean | undefined;
  return (given) => {
    if (arePairs === false) return [given];
    const { row, values } = opened(given);
    if (!values) return [row];
    arePairs ??= names.columns.some(
      (column) => foundIn(values, names.ofSide('chosen', column)) !== undefined,
    );
    return arePairs ? SIDES.map((side) => halfOf(row, values, side, names)) : [row];
  };
}

function halfOf(row: FileRow, values: Readonly<RowValues>, side: Side, names: ColumnNames): FileRow {
  const half = Object.assign(emptyRow(), values);
  const own = new Map<string, string>();
  const take = (name: string, ofSide: readonly string[]) => {
    const found = foundIn(values, ofSide);
    if (found === undefined) return;
    half[name] = values[found];
    own.set(name, found);
  };
  for (const column of names.columns) take(names.of(column)[0], names.ofSide(side, column));
  for (const name of names.keep) take(name, names.keptOfSide(side, name));
  // For losses of rows that are not in pairs. A label of the row is one of both responses, such as the right answer.
  half.label = side === 'chosen';
  half.chosen = undefined;
  const keyOf = (column: RolloutColumn) => {
    const [name] = names.of(column);
    return own.get(name) ?? (values[name] === undefined ? names.ofSide(side, column)[0] : name);
  };
  const { place, columns = Object.keys(values) } = row;
  return { place, columns, keyOf, side, read: () => half };
}

function foundIn(values: Readonly<RowValues>, names: readonly string[]): string | undefined {
  return names.find((name) => values[name] !== undefined && values[name] !== null);
}
