// Replaces patterns for file names, such as `*.jsonl`, with the names of the files that match.
import { existsSync } from 'node:fs';
import { isAbsolute, resolve } from 'node:path';
import { glob, isDynamicPattern } from 'tinyglobby';
import { LossError } from '../core/errors.js';
import { splitTable } from './file-name.js';
import { STDIN } from './source.js';

/**
 * Returns the names of the files that match patterns such as `part-*.jsonl`, `runs/step-[0-9]/*.parquet` or
 * `logs.db#rollouts`. The files of each pattern are sorted by name; a file that is already in the list is left out. If
 * a file exists whose name is exactly the pattern, only that file is returned. A name that is not a pattern is returned
 * unchanged, even if no such file exists; reading the file then fails. The name - stands for standard input.
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
    // In a pattern, the separator of directories is / even on Windows.
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
        // Without a directory, the name of a file called - would mean standard input.
        .map((name) => (name === STDIN ? `./${name}` : name) + suffix)
        .filter((name) => !known.has(resolve(name)))
        .sort(),
    );
  }
  return files;
}
