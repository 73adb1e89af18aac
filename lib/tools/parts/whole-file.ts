// Reads and writes plans, parts and reports, each as a whole.
import { mkdir, readFile, realpath, rename, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { LossError } from '../../base/errors.js';
import { describeFailure } from '../rollouts/source.js';
import { writing } from '../rollouts/write/staging.js';
import { makeTemporaryFolder, removeTemporaryFolder } from '../rollouts/write/temporary.js';

// A text in JavaScript cannot be longer.
const MAX_BYTES = 2 ** 29 - 2 ** 20;

/**
 * Reads the text of a file.
 * @param what what the file should be, for error messages.
 */
export async function readWhole(file: string, what: string): Promise<string> {
  try {
    const { size } = await stat(file);
    if (size > MAX_BYTES) throw new Error(`${size} bytes`);
    return await readFile(file, 'utf8');
  } catch (error) {
    const details = { at: file, expected: `${what} that can be read`, received: describeFailure(error) };
    throw new LossError('ERR_INVALID_INPUT', details, { cause: error });
  }
}

/**
 * Writes a plan or part with replaceWhole(). Makes its folder if needed.
 * @throws LossError `ERR_INVALID_INPUT` if it cannot be written.
 */
export async function writeWhole(file: string, text: string): Promise<void> {
  await writing(file, async () => {
    await mkdir(dirname(file), { recursive: true });
    await replaceWhole(file, text);
  });
}

/**
 * Writes a file under a temporary name and renames it, so that nobody sees a part of it. What a link names is replaced, and
 * not the link. A device or a pipe is written directly.
 */
export async function replaceWhole(file: string, text: string): Promise<void> {
  const named = await realpath(file).catch(() => file);
  const isFile = await stat(named).then(
    (status) => status.isFile(),
    () => true,
  );
  if (!isFile) return writeFile(file, text);
  const folder = makeTemporaryFolder(join(dirname(named), `.${basename(named)}-`));
  try {
    const complete = join(folder, 'complete');
    await writeFile(complete, text, { flush: true });
    await rename(complete, named);
  } finally {
    await removeTemporaryFolder(folder);
  }
}
