// Standard input, which can be read twice if a copy of it is kept.
import { createReadStream } from 'node:fs';
import { open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { badFile, describeFailure, errorAt, STDIN } from './source.js';
import { makeTemporaryFolder, removeTemporaryFolder } from './write/temporary.js';

/** A stream of bytes that counts those that it has read. */
type Bytes = Readable & { readonly bytesRead: number };

// The folder with the copy, while one is wanted.
let folder: string | undefined;

/**
 * Calls `body`, which may read standard input twice. The first reading writes a copy to a temporary file, and the second
 * one reads it.
 */
export async function withCopyOfStdin<T>(body: () => Promise<T>): Promise<T> {
  folder = newFolder();
  try {
    return await body();
  } finally {
    await removeTemporaryFolder(folder);
    folder = undefined;
  }
}

function newFolder(): string {
  try {
    return makeTemporaryFolder(join(tmpdir(), 'policy-loss-stdin-'));
  } catch (error) {
    const details = { expected: `a folder for its copy in ${tmpdir()}`, received: describeFailure(error) };
    throw errorAt({ file: STDIN }, 'ERR_INVALID_INPUT', details, error);
  }
}

/** Yields standard input, or its copy if it has been read before. */
export async function* readStdin(onBytes: (bytes: number) => void): AsyncGenerator<Buffer> {
  const { stdin } = process;
  if (!stdin.readableEnded && !stdin.destroyed) {
    yield* copied(stdin, onBytes);
    return;
  }
  // A stream that has ended would look like an empty file.
  if (folder === undefined) throw badFile(STDIN, { expected: 'one reading', received: 'a second one' });
  yield* counted(createReadStream(copyIn(folder)), onBytes);
}

const copyIn = (folder: string) => join(folder, 'stdin');

async function* copied(source: Bytes, onBytes: (bytes: number) => void): AsyncGenerator<Buffer> {
  const copy = folder === undefined ? undefined : await open(copyIn(folder), 'w');
  try {
    for await (const chunk of counted(source, onBytes)) {
      await copy?.writeFile(chunk);
      yield chunk;
    }
  } finally {
    await copy?.close();
  }
}

async function* counted(source: Bytes, onBytes: (bytes: number) => void): AsyncGenerator<Buffer> {
  let reported = 0;
  for await (const chunk of source as AsyncIterable<Buffer>) {
    yield chunk;
    onBytes(source.bytesRead - reported);
    reported = source.bytesRead;
  }
}
