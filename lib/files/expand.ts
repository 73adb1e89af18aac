// Patterns of file names, and the files that they name.
import { existsSync } from 'node:fs';
import { glob, isDynamicPattern } from 'tinyglobby';
import { LossError } from '../errors.js';
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
      expandDirectories: false,
      dot: true,
    });
    if (found.length === 0)
      throw new LossError('ERR_INVALID_INPUT', `${pattern}: expected files, and no file's name fits that`);
    for (const name of found.sort()) if (!files.includes(name + suffix)) files.push(name + suffix);
  }
  return files;
}
