// What the files of all trainers have in common once they are open: rows, and a function for each column that returns a
// row's value. Nothing large is read before a row asks for it.
import { closeSync, openSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { setImmediate } from 'node:timers/promises';
import { Bytes } from '../bytes.js';
import type { ColumnNames } from '../column-names.js';
import { isIdColumn } from '../columns.js';
import type { FileBudget } from '../file-budget.js';
import { maxTextBytes, textTooLong, tooManyRows, tooManyTokens } from '../limits.js';
import { opaqueOf, tensorOf } from '../pickle/globals.js';
import { BadObject, LongText, PyList, plainOf } from '../pickle/values.js';
import {
  badFile,
  cannotRead,
  emptyRow,
  errorAt,
  type FileRow,
  type Place,
  type ReadRows,
  type ReadSettings,
  ROW_TOKENS,
  type RowLimits,
} from '../source.js';
import { sizeOfShape } from '../tensor/tensor.js';

/** Returns a row's value: a tensor, a list, or a single value, as a pickle has them. undefined and null are absent. */
export type DumpColumn = (row: number) => unknown;

/** The rows of a trainer's file. */
export interface Dump {
  rows: number;
  /** The columns: under the names of rollout columns, and under the file's own names. */
  columns: ReadonlyMap<string, DumpColumn>;
  /** Returns a row's number of tokens, if the file says it. */
  tokens?: (row: number) => number | undefined;
}

/** What a format may need to know about the file and its reading. */
export interface DumpContext {
  file: string;
  names: ColumnNames;
  settings: ReadSettings;
}

/** A range of a list, such as the response in a list of all tokens. */
export class ListRange {
  readonly list: PyList;
  readonly from: number;
  readonly to: number;

  constructor(list: PyList, from: number, to: number) {
    this.list = list;
    this.from = from;
    this.to = to;
  }
}

/** Returns the elements `from` to `to` of a list or a tensor of one dimension; another value unchanged. */
export function partOf(value: unknown, from: number, to: number): unknown {
  const length = lengthOf(value);
  if (length === undefined) return value;
  if (!(from >= 0 && from <= to && to <= length))
    throw new BadObject(`at least ${to} elements from ${from} on`, String(length));
  if (value instanceof PyList) return new ListRange(value, from, to);
  return tensorOf(value)!.slice(from, to);
}

/** Returns the length of a list, or of a tensor of one dimension; undefined for another value. */
export function lengthOf(value: unknown): number | undefined {
  if (value instanceof PyList) return value.length;
  const tensor = tensorOf(value);
  return tensor?.shape.length === 1 ? tensor.shape[0] : undefined;
}

/** Returns a single number, or undefined for another value. A tensor without dimensions is one too. */
export function numberOf(value: unknown): number | undefined {
  const tensor = tensorOf(value);
  const [single] = tensor && sizeOfShape(tensor.shape) === 1 ? tensor.values() : [value];
  return typeof single === 'number' ? single : undefined;
}

/** Returns a single number, or an opaque value; undefined for another value. */
export function numberOrOpaque(value: unknown): unknown {
  return opaqueOf(value) ?? numberOf(value);
}

const ROWS_PER_BLOCK = 64;

/** Yields the rows of a dump in blocks. */
export function* rowsOf(
  dump: Dump,
  { file, names, settings }: DumpContext,
  budget: FileBudget,
): Generator<{ rows: FileRow[]; share: number }> {
  // A tensor can repeat a row any number of times without taking space in the file.
  if (dump.rows > settings.maxRows)
    throw errorAt({ file }, 'ERR_OUT_OF_MEMORY', tooManyRows(settings.maxRows));
  for (let first = 0; first < dump.rows; first += ROWS_PER_BLOCK) {
    const count = Math.min(ROWS_PER_BLOCK, dump.rows - first);
    const rows = Array.from({ length: count }, (_, i) =>
      rowOf(dump, first + i, names, settings, { file, row: first + i + 1 }, budget),
    );
    yield { rows, share: count / dump.rows };
  }
}

/**
 * Returns a row of a dump.
 * @param budget that of the file. Rows can share what they hold.
 */
export function rowOf(
  { columns, tokens }: Dump,
  index: number,
  names: ColumnNames,
  limits: RowLimits,
  place: Place,
  budget: FileBudget,
): FileRow {
  const read = () => {
    budget.work(WORK_PER_COLUMN * columns.size);
    const row = emptyRow();
    for (const [name, column] of columns)
      row[name] = names.isRead(name) ? cellOf(column(index), name, names, limits, place, budget) : undefined;
    row[ROW_TOKENS] = tokens?.(index);
    return row;
  };
  return { place, read: () => located(place, read) };
}

// What a column of a row takes, compared with the copy of a byte.
const WORK_PER_COLUMN = 64;

/** Calls `act`, and adds the place, and the column if it is known, to a {@link BadObject} that it throws. */
export function located<T>(place: Place, act: () => T, key?: string): T {
  try {
    return act();
  } catch (error) {
    if (!(error instanceof BadObject)) throw error;
    const { expected, received } = error;
    throw errorAt(
      place,
      'ERR_INVALID_INPUT',
      { ...(key !== undefined && { key }), expected, received },
      error,
    );
  }
}

/** Reads a value into a form that a row may have. */
function cellOf(
  value: unknown,
  key: string,
  names: ColumnNames,
  limits: RowLimits,
  place: Place,
  budget: FileBudget,
): unknown {
  const { maxRowTokens } = limits;
  const checkLength = (length: number) => {
    if (length > maxRowTokens)
      throw errorAt(place, 'ERR_INVALID_INPUT', { key, ...tooManyTokens(limits, length) });
  };
  const column = names.columnOf(key);
  const plain = (given: unknown) => {
    const found = located(
      place,
      () => plainOf(given, maxTextBytes(limits), budget, column === undefined),
      key,
    );
    if (found !== undefined) return found;
    throw errorAt(place, 'ERR_INVALID_INPUT', {
      key,
      expected: 'a value of less size',
      received: 'a larger one',
    });
  };
  const tensor = tensorOf(value);
  if (tensor) {
    checkLength(sizeOfShape(tensor.shape));
    const values = tensor.values();
    return tensor.shape.length === 0 ? values[0] : values;
  }
  if (value instanceof ListRange) {
    checkLength(value.list.length);
    const { list, from, to } = value;
    return list.numbers()?.slice(from, to) ?? plain(list.items().slice(from, to));
  }
  if (value instanceof PyList) {
    checkLength(value.length);
    const numbers = value.numbers();
    if (numbers) return numbers;
  }
  if (value instanceof LongText && value.bytes.size > maxTextBytes(limits))
    throw errorAt(place, 'ERR_INVALID_INPUT', { key, ...textTooLong(limits, value.bytes.size) });
  if (ArrayBuffer.isView(value) || value === undefined) return value;
  const cell = plain(opaqueOf(value) ?? value);
  return typeof cell === 'boolean' && column && isIdColumn(column) ? Number(cell) : cell;
}

/**
 * Returns a reader of a format of binary files.
 * @param open finds the rows in the bytes of a file, a chunk of the file in each slice.
 */
export function readDump(open: (bytes: Bytes, context: DumpContext) => Generator<void, Dump>): ReadRows {
  return async function* (file, names, onBytes, settings) {
    let descriptor: number | undefined;
    try {
      const path = settings.copy ?? file;
      const { size } = await stat(path);
      descriptor = openSync(path, 'r');
      const context = { file, names, settings };
      const bytes = Bytes.ofFile(file, descriptor, size);
      const slices = open(bytes, context);
      let slice = located({ file }, () => slices.next());
      while (!slice.done) {
        // Leaves time for other work of the process.
        await setImmediate();
        slice = located({ file }, () => slices.next());
      }
      for (const { rows, share } of rowsOf(slice.value, context, bytes.budget)) {
        yield rows;
        onBytes(share * size);
      }
    } catch (error) {
      throw cannotRead(file, error);
    } finally {
      if (descriptor !== undefined) closeSync(descriptor);
    }
  };
}

/** Returns the error to throw for a file that has no rows of a known trainer. */
export function unknownDump(file: string, received: string) {
  return badFile(file, {
    expected: 'a batch or rollouts of Trinity-RFT, slime, SkyRL, verl or ROLL, or a dict of tensors',
    received,
  });
}
