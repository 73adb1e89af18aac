// Temporary copies of files on servers, for the formats whose readers need random access. A copy has the size of the file,
// but only the bytes that will be read: the rest of it is a hole, which takes no place on the disk.
import { type FileHandle, open } from 'node:fs/promises';
import { join } from 'node:path';
import { badFile, cannotRead, type FileRange } from '../source.js';
import { makeScratchFolder, removeTemporaryFolder } from '../write/temporary.js';
import { bytesOf, type RemoteFile, remoteFile } from './index.js';

/** A copy of a file, or of what a range of its rows needs. */
export interface FileCopy {
  path: string;
  /** Removes the copy. */
  remove(): Promise<void>;
}

/** Some bytes of a file: those from `start` to before `end`. */
type ByteRange = Pick<FileRange, 'start' | 'end'>;

// The bytes 'PAR1' begin a Parquet file. At its end are the footer's length and the same bytes again.
const PARQUET_BEGIN = 4;
const PARQUET_END = 8;

/**
 * Copies a file from its server. Returns undefined for a local file.
 * @param range what to copy: some row groups of a Parquet file, with the footer; undefined for the whole file.
 * @throws LossError `ERR_INVALID_INPUT` if the file cannot be read.
 */
export async function copyOf(name: string, range?: FileRange): Promise<FileCopy | undefined> {
  const remote = remoteFile(name);
  if (!remote) return undefined;
  const { size } = await remote.about();
  const folder = makeScratchFolder('remote');
  const path = join(folder, 'file');
  const remove = () => removeTemporaryFolder(folder);
  try {
    const target = await open(path, 'w');
    try {
      await target.truncate(size);
      const ranges = range ? await rangesOf(name, remote, range, size) : [{ start: 0, end: size }];
      for (const range of ranges) await copy(remote, range, target);
    } finally {
      await target.close();
    }
  } catch (error) {
    await remove();
    throw cannotRead(name, error, `It is copied to ${folder}. TMPDIR names another folder`);
  }
  return { path, remove };
}

/** Returns the byte ranges of a range of rows of a Parquet file, which needs the file's beginning and its footer too. */
async function rangesOf(
  name: string,
  remote: RemoteFile,
  { start, end }: ByteRange,
  size: number,
): Promise<ByteRange[]> {
  if (size < PARQUET_BEGIN + PARQUET_END)
    throw badFile(name, { expected: 'a Parquet file', received: `a file of ${size} bytes` });
  const tail = await bytesOf(remote, size - PARQUET_END, size);
  const footer = Math.min(tail.readUInt32LE(0) + PARQUET_END, size);
  return [
    { start: 0, end: PARQUET_BEGIN },
    { start: size - footer, end: size },
    { start, end },
  ];
}

async function copy(remote: RemoteFile, { start, end }: ByteRange, target: FileHandle): Promise<void> {
  let position = start;
  for await (const chunk of remote.read(start, end))
    for (let done = 0; done < chunk.length; ) {
      const { bytesWritten } = await target.write(chunk, done, chunk.length - done, position);
      done += bytesWritten;
      position += bytesWritten;
    }
}
