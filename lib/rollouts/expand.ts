// Expands patterns of file names into files.
import { existsSync } from 'node:fs';
import { isAbsolute, resolve } from 'node:path';
import { glob, isDynamicPattern } from 'tinyglobby';
import { LossError } from '../core/errors.js';
import { splitTable } from './file-name.js';

/**
 * Returns the files that patterns match, such as `part-*.jsonl`, `runs/step-[0-9]/*.parquet` or `logs.db#rollouts`.
 * Each pattern's files are sorted by name, without files that are already in the list. The name of an existing file
 * stands for that file even if it looks like a pattern. A name that is not a pattern is returned as it is, so its
 * reader reports a missing file.
 * @throws LossError `ERR_INVALID_INPUT` for a pattern that matches no file.
 */
export async function expandFiles(patterns: readonly string[]): Promise<string[]> {
  const files: string[] = [];
  for (const pattern of patterns) {
    const { file, suffix } = splitTable(pattern);
    if (existsSync(file) || !isDynamicPattern(file)) {
      files.push(pattern);
      continue;
    }
    // Patterns use / on Windows too.
    const found = await glob(process.platform === 'win32' ? file.replaceAll('\\', '/') : file, {
      absolute: isAbsolute(file),
      expandDirectories: false,
      dot: true,
    });
    if (found.length === 0)
      throw new LossError('ERR_INVALID_INPUT', {
        at: pattern,
        expected: 'at least one matching file',
        received: 'none',
      });
    const known = new Set(files.map((name) => resolve(name)));
    files.push(
      ...found
        .map((name) => name + suffix)
        .filter((name) => !known.has(resolve(name)))
        .sort(),
    );
  }
  return files;
}
