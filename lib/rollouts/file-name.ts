// Parses file names: the ending gives the format, and the part after '#' names a database's table.
import { LossError, type LossErrorCode } from '../core/errors.js';

/** A file format and the endings of its files' names, in lower case. */
export interface Format {
  endings: readonly string[];
}

/** Returns the format whose ending the file's name has; undefined if none matches. */
export function formatOf<F extends Format>(formats: readonly F[], file: string): F | undefined {
  const name = file.toLowerCase();
  return formats.find(({ endings }) => endings.some((ending) => name.endsWith(ending)));
}

/** Returns the error for a file whose name ends with none of these formats' endings. */
export function unknownFormat(code: LossErrorCode, file: string, formats: readonly Format[]): LossError {
  const known = formats.flatMap(({ endings }) => endings).join(', ');
  return new LossError(code, { at: file, expected: `a name that ends in one of ${known}` });
}

/** Splits FILE#table into the file and the suffix, which is '#table' or empty. */
export function splitTable(name: string): { file: string; suffix: string } {
  const match = /^(.*\.(?:sqlite3?|db))(#.*)$/is.exec(name);
  return match ? { file: match[1]!, suffix: match[2]! } : { file: name, suffix: '' };
}
