// Protects the input files of a command from its output options.
import { fstatSync, statSync } from 'node:fs';
import { LossError } from '../../base/errors.js';
import { splitTable } from '../rollouts/file-name.js';
import { describePlace, STDIN } from '../rollouts/source.js';

/** The flag of an output option, with a file that it names; undefined for an option that is not set. */
export type OutputFile = readonly [flag: string, file: string | undefined];

/**
 * Checks that a command does not write to a file that it reads, under whatever name: files are the same if they have
 * the same inode, so this includes symbolic and hard links.
 * @param inputs the files that the command reads.
 * @throws LossError `ERR_INVALID_OPTION` if an output is one of the inputs.
 */
export function refuseInputs(outputs: readonly OutputFile[], inputs: readonly string[]): void {
  const written = new Map<string, OutputFile>();
  for (const output of outputs) {
    const inode = output[1] === undefined ? undefined : inodeOf(output[1]);
    if (inode !== undefined) written.set(inode, output);
  }
  if (written.size === 0) return;
  for (const input of inputs)
    for (const file of filesOf(input)) {
      const found = written.get(inodeOf(file) ?? '');
      if (!found) continue;
      const [flag, output] = found;
      throw new LossError('ERR_INVALID_OPTION', {
        at: `${flag} ${output}`,
        expected: 'a file other than the files that are read',
        received: file === output ? 'one of them' : `the same file as ${describePlace({ file })}`,
      });
    }
}

/** Returns the names of all files to which an input belongs. SQLite keeps recent changes in files of their own. */
function filesOf(input: string): string[] {
  const { file } = splitTable(input);
  return [file, `${file}-wal`, `${file}-journal`];
}

/** Returns a text that identifies a regular file, or undefined if the file is missing or of another kind. */
function inodeOf(file: string): string | undefined {
  try {
    const status = file === STDIN ? fstatSync(0, EXACT) : statSync(file, EXACT);
    return status.isFile() ? `${status.dev}:${status.ino}` : undefined;
  } catch {
    return undefined;
  }
}

// An inode number may have 64 bits.
const EXACT = { bigint: true } as const;
