// Parses the names of rollout files. The ending of a name gives the format. The text after '#' names a table of a
// database.
import { LossError, type LossErrorCode } from '../../base/errors.js';

/** A file format. */
export interface Format {
  /** The endings that the names of such files may have, in lower case, such as '.csv'. */
  endings: readonly string[];
}

/** Returns the format that has the ending of the file's name; undefined if no format has it. */
export function formatOf<F extends Format>(formats: readonly F[], file: string): F | undefined {
  const name = file.toLowerCase();
  return formats.find(({ endings }) => endings.some((ending) => name.endsWith(ending)));
}

/** Returns the error to throw for a file whose name has none of the formats' endings. */
export function unknownFormat(code: LossErrorCode, file: string, formats: readonly Format[]): LossError {
  const known = formats.flatMap(({ endings }) => endings).join(', ');
  return new LossError(code, { at: file, expected: `a name that ends in one of ${known}` });
}

/** Splits a name such as 'logs.db#rollouts' into the file 'logs.db' and the suffix '#rollouts', which may be empty. */
export function splitTable(name: string): { file: string; suffix: string } {
  const match = /^(.*\.(?:sqlite3?|db))(#.*)$/is.exec(name);
  return match ? { file: match[1]!, suffix: match[2]! } : { file: name, suffix: '' };
}
