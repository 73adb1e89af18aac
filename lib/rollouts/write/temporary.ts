// Temporary folders. The program removes those that are left when it ends early, for example by a signal.
import { mkdtempSync, rmSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { resolve } from 'node:path';

// Another thread may still be writing into the folder, so the removal is retried.
const REMOVE = { recursive: true, force: true, maxRetries: 10 } as const;

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

/** Removes a folder that makeTemporaryFolder() created. */
export async function removeTemporaryFolder(folder: string): Promise<void> {
  await rm(folder, REMOVE);
  folders.delete(folder);
}

/** Removes all temporary folders that still exist. Blocks until they are removed. Never throws. */
export function removeTemporaryFolders(): void {
  for (const folder of folders)
    try {
      rmSync(folder, REMOVE);
    } catch {
      // The program is ending and cannot do more. The other folders must still be removed.
    }
  folders.clear();
}
