/** Gives the tests of a describe() block a temporary folder. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** A temporary folder. It exists only while the tests run. */
export interface TemporaryFolder {
  readonly directory: string;
  /** Returns the path of a file in the folder. */
  path(name: string): string;
  /** Writes a file and returns its path. */
  write(name: string, content: string | Uint8Array): string;
}

/** Makes a folder before the tests of the surrounding describe() block, and removes it after them. */
export function temporaryFolder(): TemporaryFolder {
  let directory = '';
  before(() => {
    directory = mkdtempSync(join(tmpdir(), 'policy-loss-'));
  });
  after(() => rmSync(directory, { recursive: true }));
  const path = (name: string) => join(directory, name);
  return {
    get directory() {
      return directory;
    },
    path,
    write(name, content) {
      const file = path(name);
      writeFileSync(file, content);
      return file;
    },
  };
}
