// Opens files by their names, which may be URLs.
import { createReadStream } from 'node:fs';
import { Readable } from 'node:stream';
import { LossError } from '../../../base/errors.js';
import { httpProtocol } from './http.js';
import { RemoteFile } from './remote.js';
import { listS3, s3Protocol } from './s3.js';

export type { RemoteAbout, RemoteFile } from './remote.js';

/** Returns whether a name is a URL of a server that can be read: http://, https:// or s3://. */
export function isRemote(name: string): boolean {
  return /^(https?|s3):\/\//i.test(name);
}

/**
 * Returns a file on a server; undefined if the name is that of a local file.
 * @throws LossError as checkUrl() does.
 */
export function remoteFile(name: string): RemoteFile | undefined {
  if (!isRemote(name)) return undefined;
  checkUrl(name);
  return new RemoteFile(name, /^s3:/i.test(name) ? s3Protocol(name) : httpProtocol(name));
}

/**
 * Checks that a URL has no user, password or query. Names of files are part of plans and of messages, and these could be
 * credentials.
 * @throws LossError `ERR_INVALID_OPTION`, whose message does not show them.
 */
function checkUrl(name: string): void {
  const shown = name.replace(/\/\/[^/]*@/, '//').replace(/[?].*$/s, '');
  if (shown === name) return;
  throw new LossError('ERR_INVALID_OPTION', {
    at: shown,
    expected: 'a URL without a user, a password and a query',
    received: 'one with what could be credentials, which plans and messages would show',
    hint: 's3:// takes credentials from the environment',
  });
}

/**
 * Returns the files for which a URL stands: those in a folder of S3, whose name ends in a slash, or the only one.
 * @throws LossError as checkUrl() does, and `ERR_INVALID_INPUT` if the folder cannot be listed.
 */
export async function expandUrl(name: string): Promise<string[]> {
  checkUrl(name);
  return /^s3:.*\/$/is.test(name) ? listS3(name) : [name];
}

/** The bytes of a file, as a stream. */
export type ByteStream = Readable & {
  /** The number of bytes read so far. */
  readonly bytesRead: number;
};

/**
 * Returns a stream of the bytes of a file.
 * @param range the first byte, and the one after the last; by default all.
 * @param chunkBytes the size of the chunks of a local file.
 */
export function openBytes(
  file: string,
  chunkBytes: number,
  { start, end }: { start: number; end?: number } = { start: 0 },
): ByteStream {
  const remote = remoteFile(file);
  if (!remote)
    return createReadStream(file, {
      highWaterMark: chunkBytes,
      start,
      ...(end !== undefined && { end: end - 1 }),
    });
  let bytesRead = 0;
  const chunks = async function* () {
    for await (const chunk of remote.read(start, end)) {
      bytesRead += chunk.length;
      yield chunk;
    }
  };
  const stream = Readable.from(chunks(), { objectMode: false });
  return Object.defineProperty(stream, 'bytesRead', { get: () => bytesRead }) as ByteStream;
}

/** Returns the bytes of a file on a server from `start` to before `end`; fewer if the file ends before. */
export async function bytesOf(remote: RemoteFile, start: number, end: number): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of remote.read(start, end)) chunks.push(chunk);
  return Buffer.concat(chunks);
}
