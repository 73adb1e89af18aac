// The interface of file readers: a reader yields rows in blocks, and each row carries its place in the file.
import { LossError, type LossErrorCode, type LossErrorDetails } from '../core/errors.js';
import type { ColumnNames } from './column-names.js';

/** A place in a file: a line in text files, a row number in other files. Both count from 1. */
export interface Place {
  file: string;
  line?: number;
  row?: number;
}

/** One row of a file. */
export interface FileRow {
  place: Place;
  /**
   * Parses the row. Returns its values by the file's column names, as JSON values; lists of numbers may be typed
   * arrays.
   * @throws LossError if the row is malformed.
   */
  read(): Readonly<Record<string, unknown>>;
}

/** Reads a file. It throws only errors that concern the whole file; errors in a row come from `FileRow.read()`. */
export type ReadRows = (
  file: string,
  names: ColumnNames,
  /** Receives the number of file bytes just processed. All calls add up to the file's size. */
  onBytes: (bytes: number) => void,
) => AsyncGenerator<Iterable<FileRow>>;

/** Returns a place as messages show it. */
export function describePlace({ file, line, row }: Place): string {
  if (line !== undefined) return `${file}, line ${line}`;
  return row === undefined ? file : `${file}, row ${row}`;
}

/** Details of an error whose place is given separately. */
export type DetailsAtPlace = Omit<LossErrorDetails, 'at'>;

/** Returns an error about a place in a file. */
export function errorAt(
  place: Place,
  code: LossErrorCode,
  details: DetailsAtPlace,
  cause?: unknown,
): LossError {
  return new LossError(code, { ...details, at: describePlace(place) }, { cause });
}

/** Returns an error about a file with invalid contents. */
export function badFile(file: string, details: DetailsAtPlace): LossError {
  return errorAt({ file }, 'ERR_INVALID_INPUT', details);
}

/** Returns the error for a failure to open, read or unpack a file. A LossError is returned unchanged. */
export function cannotRead(file: string, error: unknown): LossError {
  if (error instanceof LossError) return error;
  const details = { expected: 'a readable file of rollouts', received: describeFailure(error) };
  return errorAt({ file }, 'ERR_INVALID_INPUT', details, error);
}

/** Returns what a system or a library reported, for a message's `received`. */
export function describeFailure(error: unknown): string {
  return `an error (${error instanceof Error ? error.message : String(error)})`;
}

/** Returns an owner with its columns, for a message's `received`: 'a row with only logprob, reward'. */
export function describeColumns(owner: string, names: readonly string[]): string {
  if (names.length === 0) return `${owner} without columns`;
  return `${owner} with only ${names.length > 12 ? `${names.slice(0, 12).join(', ')}, …` : names.join(', ')}`;
}
