// Patterns of file names, and the files that they name.
import { existsSync } from 'node:fs';
import { isAbsolute, resolve } from 'node:path';
import { glob, isDynamicPattern } from 'tinyglobby';
import { LossError } from '../core/errors.js';
import { splitTable } from './table-name.js';

/**
 * The files that patterns name (`part-*.jsonl`, `runs/step-[0-9]/*.parquet`, `logs.db#rollouts`), those of each pattern
 * in the order of their names, without those that came already. What is a file's name as it stands names that file,
 * and what has nothing of a pattern stays as it is, for its reader to find.
 * @throws LossError `ERR_INVALID_INPUT` for a pattern that no file's name fits.
 */
export async function expandFiles(patterns: readonly string[]): Promise<string[]> {
  const files: string[] = [];
  for (const pattern of patterns) {
    const { file, suffix } = splitTable(pattern);
    if (existsSync(file) || !isDynamicPattern(file)) {
      files.push(pattern);
      continue;
    }
    // Where names are separated by \, patterns are separated by / all the same.
    const found = await glob(process.platform === 'win32' ? file.replaceAll('\\', '/') : file, {
      absolute: isAbsolute(file),
      expandDirectories: false,
      dot: true,
    });
    if (found.length === 0)
      throw new LossError('ERR_INVALID_INPUT', `${pattern}: expected files, and no file's name fits that`);
    const named = new Set(files.map((name) => resolve(name)));
    files.push(
      ...found
        .map((name) => name + suffix)
        .filter((name) => !named.has(resolve(name)))
        .sort(),
    );
  }
  return files;
}
