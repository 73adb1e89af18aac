// Replaces patterns for file names, such as `*.jsonl`, and names of directories with the names of their files.
import { existsSync, statSync } from 'node:fs';
import { isAbsolute, resolve } from 'node:path';
import { glob, isDynamicPattern } from 'tinyglobby';
import { LossError } from '../../base/errors.js';
import { splitTable } from './file-name.js';
import { expandUrl, isRemote } from './remote/index.js';
import { STDIN } from './source.js';

/**
 * Returns the names of the files that match patterns such as `part-*.jsonl`, `runs/step-[0-9]/*.parquet` or
 * `logs.db#rollouts`. The files of each pattern are sorted by name, with numbers by their values; a file that is already
 * in the list is left out. If a file exists whose name is exactly the pattern, only that file is returned. A directory
 * stands for all files in it and in its directories, except for hidden ones and for empty ones, which mark that a step is
 * complete. A name that is not a pattern is returned unchanged, even if no such file exists; reading the file then fails.
 * The name - stands for standard input. The URL of a file on a server is returned unchanged; s3://bucket/folder/ stands
 * for all objects whose names begin with it.
 * @throws LossError `ERR_INVALID_INPUT` for a pattern or directory that has no file, `ERR_INVALID_OPTION` for a URL that
 * could have credentials.
 */
export async function expandFiles(patterns: readonly string[]): Promise<string[]> {
  const files: string[] = [];
  for (const pattern of patterns) {
    if (isRemote(pattern)) {
      const found = await expandUrl(pattern);
      if (found.length === 0) throw noFile(pattern, true);
      files.push(...found.sort(inOrder));
      continue;
    }
    const { file, suffix } = splitTable(pattern);
    const isDirectory = statSync(file, { throwIfNoEntry: false })?.isDirectory() === true;
    if (!isDirectory && (existsSync(file) || !isDynamicPattern(file))) {
      files.push(pattern);
      continue;
    }
    const found = isDirectory ? await filesIn(file) : await matches(file);
    if (found.length === 0) throw noFile(pattern, isDirectory);
    const known = new Set(files.map((name) => resolve(name)));
    files.push(
      ...found
        // Without a directory, the name of a file called - would mean standard input.
        .map((name) => (name === STDIN ? `./${name}` : name) + suffix)
        .filter((name) => !known.has(resolve(name)))
        .sort(inOrder),
    );
  }
  return files;
}

function noFile(pattern: string, isDirectory: boolean) {
  return new LossError('ERR_INVALID_INPUT', {
    at: pattern,
    expected: isDirectory ? 'a directory with files' : 'at least one matching file',
    received: 'none',
  });
}

// In a pattern, the separator of directories is / even on Windows.
const slashed = (name: string) => (process.platform === 'win32' ? name.replaceAll('\\', '/') : name);

function matches(pattern: string): Promise<string[]> {
  return glob(slashed(pattern), { absolute: isAbsolute(pattern), expandDirectories: false, dot: true });
}

async function filesIn(directory: string): Promise<string[]> {
  const names = await glob('**', { cwd: directory, expandDirectories: false });
  const root = slashed(directory).replace(/\/+$/, '');
  return names.map((name) => `${root}/${name}`).filter((name) => statSync(name).size > 0);
}

// Files of ranks or steps are in the order of their numbers: rank_2 comes before rank_10.
const { compare } = new Intl.Collator('en', { numeric: true });
const inOrder = (a: string, b: string) => compare(a, b) || (a < b ? -1 : 1);
