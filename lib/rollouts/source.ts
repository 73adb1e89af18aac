// What every file format gives: rows one by one, each with its place, in blocks that are read ahead of it.
import { LossError, type LossErrorCode } from '../core/errors.js';
import type { ColumnNames } from './column-names.js';

/** Where a row stands: by its line in files of lines, else by its number. The first is 1. */
export interface Place {
  file: string;
  line?: number;
  row?: number;
}

/** One row as its file has it. */
export interface FileRow {
  place: Place;
  /**
   * Its columns by the names they have in the file, values as JSON has them (lists of numbers may be typed arrays).
   * @throws LossError where it is no row.
   */
  read(): Readonly<Record<string, unknown>>;
}

/** Reads a file. What is thrown is about the whole of it. */
export type ReadRows = (
  file: string,
  names: ColumnNames,
  /** Is told of bytes of the file that have been dealt with, all its size in the end. */
  onBytes: (bytes: number) => void,
) => AsyncGenerator<Iterable<FileRow>>;

/** A place as messages name it. */
export function describePlace({ file, line, row }: Place): string {
  if (line !== undefined) return `${file}, line ${line}`;
  return row === undefined ? file : `${file}, row ${row}`;
}

/** A complaint about what stands at a place. */
export function at(place: Place, code: LossErrorCode, message: string, cause?: unknown): LossError {
  return new LossError(code, `${describePlace(place)}: ${message}`, { cause });
}

/** The complaint about a file that cannot be opened, read or unpacked. */
export function cannotRead(file: string, error: unknown): LossError {
  if (error instanceof LossError) return error;
  const reason = error instanceof Error ? error.message : String(error);
  return at(
    { file },
    'ERR_INVALID_INPUT',
    `expected a file of rollouts, and it cannot be read: ${reason}`,
    error,
  );
}

/** The names of what a row or a file has, as messages say them. */
export function listed(names: readonly string[]): string {
  if (names.length === 0) return 'no column at all';
  return names.length > 12 ? `${names.slice(0, 12).join(', ')}, …` : names.join(', ');
}
