// Trinity-RFT's buffers in SQLite: tables whose column experience_bytes holds an experience in each row.
import { Bytes } from '../bytes.js';
import type { ColumnNames } from '../column-names.js';
import { maxRowBytes } from '../limits.js';
import { errorAt, type FileRow, type Place, type RowLimits } from '../source.js';
import { located, rowOf } from './dump.js';
import { readExperiences, type Stored, trinityDump } from './trinity.js';

const EXPERIENCE = 'experience_bytes';
const STORED = ['task_id', 'run_id', 'reward'] as const satisfies readonly (keyof Stored)[];

/** Returns the columns of a buffer to read; undefined if a table with these columns is not a buffer. */
export function bufferColumns(columns: readonly string[]): string[] | undefined {
  if (!columns.includes(EXPERIENCE)) return undefined;
  return [EXPERIENCE, ...STORED.filter((name) => columns.includes(name))];
}

/**
 * Returns the experiences of a row of a buffer. If the row is malformed, its only row throws the error.
 * @param columns the columns of `values`, as {@link bufferColumns} returns them.
 * @param size the size of the experience. One that is too long is not among the values.
 */
export function experienceRows(
  columns: readonly string[],
  values: readonly unknown[],
  size: number,
  names: ColumnNames,
  limits: RowLimits,
  place: Place,
): FileRow[] {
  const [blob, ...others] = values;
  const stored: Stored = Object.fromEntries(columns.slice(1).map((name, i) => [name, others[i]]));
  try {
    if (!(blob instanceof Uint8Array))
      throw errorAt(place, 'ERR_INVALID_INPUT', {
        key: EXPERIENCE,
        expected: `at most ${maxRowBytes(limits)} bytes`,
        received: size > 0 ? String(size) : 'none',
      });
    const bytes = Bytes.ofArray(place.file, blob);
    const found = located(place, () => readExperiences(bytes));
    // The columns of the table are about the experience, so they cannot be about several.
    const dump = trinityDump(found, found.length === 1 ? stored : {});
    return found.map((_, i) => rowOf(dump, i, names, limits, place, bytes.budget));
  } catch (error) {
    const read = () => {
      throw error;
    };
    return [{ place, read }];
  }
}
