// Temporary folders. The program removes those that are left when it ends early, for example by a signal.
import { mkdtempSync, rmSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { LossError } from '../../../base/errors.js';
import { describeFailure } from '../source.js';

const REMOVE = { recursive: true, force: true } as const;
// Another thread may still be creating files in a folder, so its removal is retried, for a second at most.
const TRIES = 100;
const PAUSE_MS = 10;

const folders = new Set<string>();

/**
 * Creates a temporary folder. It does so synchronously, so that no signal is handled before the folder's name is recorded.
 * @param prefix the beginning of the folder's path. Random characters are appended.
 * @returns the absolute path.
 */
export function makeTemporaryFolder(prefix: string): string {
  const folder = mkdtempSync(resolve(prefix));
  folders.add(folder);
  return folder;
}

/**
 * Creates a temporary folder in the folder that the system has for them.
 * @param purpose a part of the folder's name.
 * @throws LossError `ERR_INVALID_INPUT` if that is impossible.
 */
export function makeScratchFolder(purpose: string): string {
  try {
    return makeTemporaryFolder(join(tmpdir(), `policy-loss-${purpose}-`));
  } catch (error) {
    const details = {
      at: tmpdir(),
      expected: 'a folder for temporary files',
      received: describeFailure(error),
      hint: 'TMPDIR names another one',
    };
    throw new LossError('ERR_INVALID_INPUT', details, { cause: error });
  }
}

/** Removes a folder that makeTemporaryFolder() or makeScratchFolder() created. */
export async function removeTemporaryFolder(folder: string): Promise<void> {
  await rm(folder, { ...REMOVE, maxRetries: 10 });
  folders.delete(folder);
}

/** Removes all temporary folders that still exist. Blocks until they are removed. Never throws. */
export function removeTemporaryFolders(): void {
  for (const folder of folders) {
    for (let i = 0; i < TRIES && !removeNow(folder); i++) pause();
  }
  folders.clear();
}

// Returns whether the folder no longer exists. The program is ending, so it cannot do more about an error. The option
// maxRetries of rmSync() would not help, because Node does not look for new files when it tries again.
function removeNow(folder: string): boolean {
  try {
    rmSync(folder, REMOVE);
    return true;
  } catch {
    return false;
  }
}

function pause(): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PAUSE_MS);
}
