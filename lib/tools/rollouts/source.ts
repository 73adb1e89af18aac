// The interface of file readers. A reader yields the rows of a file in blocks, and each row has its place in the file.
import {
  LossError,
  type LossErrorCode,
  type LossErrorDetails,
  type MessageText,
  shorten,
} from '../../base/errors.js';
import type { ColumnNames, Side } from './column-names.js';
import type { RolloutColumn } from './columns.js';

/** The file name that stands for standard input, which is read as JSON lines. */
export const STDIN = '-';

/** A place in a file: a line number in text files, a row number in other files. Both count from 1. */
export interface Place {
  file: string;
  line?: number;
  row?: number;
}

/**
 * The key under which a row may have its number of tokens. It is used if the row lacks logprobs, which give the number
 * otherwise.
 */
export const ROW_TOKENS = Symbol('tokens');

/** The values of a row, by the names of the file's columns. */
export interface RowValues {
  [column: string]: unknown;
  [ROW_TOKENS]?: number | undefined;
}

/** One row of a file. */
export interface FileRow {
  place: Place;
  /** The names of the file's columns, if read() returns only those that are read. */
  columns?: readonly string[];
  /** Returns the name of a column in the file, for error messages, if it is not the usual one. */
  keyOf?(column: RolloutColumn): string;
  /** The response whose row this is, if the file has both responses of a pair in one row. */
  side?: Side;
  /**
   * Parses the row and returns its values by the names of the file's columns. The values are as in JSON, except that a
   * list of numbers may be a typed array.
   * @throws LossError if the row is malformed.
   */
  read(): Readonly<RowValues>;
}

// Objects that this function constructs inherit nothing, but V8 accesses them faster than Object.create(null).
function Row() {}
Row.prototype = Object.create(null);

/** Returns an object to which any key can be added, because it inherits none, not even `__proto__`. */
export function emptyRow(): RowValues {
  return new (Row as unknown as new () => RowValues)();
}

/** Some consecutive rows of a file: those in the bytes from `start` to before `end`. */
export interface FileRange {
  file: string;
  start: number;
  end: number;
  /** For JSON lines: the number of the line that begins at `start`. */
  line?: number;
  /** For Parquet: the first row group, and the one after the last. */
  groups?: readonly [first: number, end: number];
}

/** The limits on one row of a file. */
export interface RowLimits {
  /** The maximum number of tokens in a row. No list with one element per token may be longer. */
  maxRowTokens: number;
}

/** How to read the rows of a file. */
export interface ReadSettings extends RowLimits {
  /** The maximum number of rows in all files. */
  maxRows: number;
  /** The rows to read, if not all. Only JSON lines without compression and Parquet files can be read in ranges. */
  range?: FileRange | undefined;
  /** The path of a copy to read instead, for a binary file on a server. Messages and places have the file's own name. */
  copy?: string | undefined;
  /**
   * Reports a flaw that leaves the row usable. With `StreamOptions.strict`, throws an error instead.
   * @param consequence how the reader deals with the flaw, as a sentence without its full stop.
   */
  warn(place: Place, details: DetailsAtPlace, consequence: string): void;
}

/**
 * Reads the rows of a file. It throws only errors that concern the whole file. An error in a single row is thrown by
 * that row's `read()`.
 */
export type ReadRows = (
  file: string,
  names: ColumnNames,
  /** Called with the number of file bytes just processed. These numbers add up to the file's size. */
  onBytes: (bytes: number) => void,
  settings: ReadSettings,
) => AsyncGenerator<Iterable<FileRow>>;

/** Returns a place as text for messages, such as 'rollouts.jsonl, line 3'. */
export function describePlace({ file: name, line, row }: Place): string {
  const file = name === STDIN ? 'standard input' : name;
  if (line !== undefined) return `${file}, line ${line}`;
  return row === undefined ? file : `${file}, row ${row}`;
}

/** The details of an error without its place, which errorAt() adds. */
export type DetailsAtPlace = Omit<LossErrorDetails, 'at'>;

/** Returns an error whose message names a place in a file. Texts of any length from the file are shortened. */
export function errorAt(
  place: Place,
  code: LossErrorCode,
  details: DetailsAtPlace,
  cause?: unknown,
): LossError {
  const { key, index, option, expected, received, position, text, hint, suggestion } = details;
  // Listing the details is much faster than `...details`, and a file may have many bad rows.
  const shown: Required<LossErrorDetails> = {
    at: describePlace(place),
    key: short(key),
    index,
    option,
    expected: short(expected),
    received: short(received),
    position,
    text,
    hint: short(hint),
    suggestion: short(suggestion),
  };
  return new LossError(code, shown, cause === undefined ? undefined : { cause });
}

// A function returns a text about an option, which has nothing from the file.
function short<T extends MessageText | undefined>(text: T): T | string {
  return typeof text === 'string' ? shorten(text) : text;
}

/** Returns an error about a file whose contents are invalid. */
export function badFile(file: string, details: DetailsAtPlace): LossError {
  return errorAt({ file }, 'ERR_INVALID_INPUT', details);
}

/**
 * Returns the error to throw if a file cannot be opened, read or unpacked. Returns a LossError unchanged.
 * @param hint a likely fix, if there is one for all failures of this format.
 * @param contents what the file should contain.
 */
export function cannotRead(file: string, error: unknown, hint?: string, contents = 'rollouts'): LossError {
  if (error instanceof LossError) return error;
  const details = { expected: `a readable file of ${contents}`, received: describeFailure(error), hint };
  return errorAt({ file }, 'ERR_INVALID_INPUT', details, error);
}

/** How messages describe a file that does not exist. */
export const MISSING_FILE = 'nothing: no such file or directory';

/**
 * Describes an error of the operating system or of a library, for the `received` part of a message. Further lines of
 * the error's message, which advise programmers, are left out.
 */
export function describeFailure(error: unknown): string {
  if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return MISSING_FILE;
  const [line] = (error instanceof Error ? error.message : String(error)).split('\n');
  return `an error (${line})`;
}

/**
 * Lists columns for the `received` part of a message, such as 'a row with only logprob, reward'.
 * @param owner what has the columns, such as 'a row'.
 */
export function describeColumns(owner: string, names: readonly string[]): string {
  if (names.length === 0) return `${owner} without columns`;
  return `${owner} with only ${names.length > 12 ? `${names.slice(0, 12).join(', ')}, …` : names.join(', ')}`;
}
