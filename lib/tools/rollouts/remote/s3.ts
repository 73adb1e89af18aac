// Files in S3 and in object stores with its protocol. The client is an optional peer dependency, which is loaded when the
// first such file is read.
import type { S3Client } from '@aws-sdk/client-s3';
import { LossError } from '../../../base/errors.js';
import { badFile, describeFailure } from '../source.js';
import { isNetworkFailure, PassingFailure, type RemoteProtocol, retried } from './remote.js';

/**
 * Returns the protocol for a name such as s3://bucket/key. The credentials, the region and the address of another store
 * come from the environment, as for other programs: AWS_PROFILE, AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL and so on.
 */
export function s3Protocol(name: string): RemoteProtocol {
  const [, bucket, key] = /^s3:\/\/([^/]+)\/(.+)$/.exec(name) ?? [];
  if (bucket === undefined || key === undefined)
    throw badFile(name, { expected: 's3://BUCKET/KEY', received: 'another name' });
  const object = { Bucket: bucket, Key: key };
  return {
    async about(signal) {
      const { HeadObjectCommand } = await load();
      const { ContentLength: size, ETag: etag } = await tried(name, async () =>
        (await client()).send(new HeadObjectCommand(object), { abortSignal: signal }),
      );
      return { size: size ?? 0, ...(etag !== undefined && { etag, version: etag }) };
    },
    async open(start, end, signal) {
      const { GetObjectCommand } = await load();
      const { Body, ETag } = await tried(name, async () =>
        (await client()).send(new GetObjectCommand({ ...object, Range: `bytes=${start}-${end - 1}` }), {
          abortSignal: signal,
        }),
      );
      return { version: ETag, chunks: chunksOf(name, Body as AsyncIterable<Uint8Array>) };
    },
  };
}

/**
 * Returns the names of the objects whose names begin with `prefix`, which ends in a slash, except for empty ones.
 * @throws LossError `ERR_INVALID_INPUT` if they cannot be listed.
 */
export async function listS3(prefix: string): Promise<string[]> {
  const [, bucket, path] = /^s3:\/\/([^/]+)\/(.*)$/.exec(prefix) ?? [];
  if (bucket === undefined)
    throw badFile(prefix, { expected: 's3://BUCKET/PREFIX/', received: 'another name' });
  const { ListObjectsV2Command } = await load();
  const names: string[] = [];
  let token: string | undefined;
  let pages = 0;
  do {
    if (++pages > MAX_PAGES)
      throw badFile(prefix, { expected: `a list of at most ${MAX_PAGES} pages`, received: 'more' });
    const page = await retried(prefix, (signal) =>
      tried(prefix, async () =>
        (await client()).send(
          new ListObjectsV2Command({ Bucket: bucket, Prefix: path, ContinuationToken: token }),
          { abortSignal: signal },
        ),
      ),
    );
    for (const { Key, Size } of page.Contents ?? [])
      if (Key !== undefined && Size !== 0) names.push(`s3://${bucket}/${Key}`);
    token = page.NextContinuationToken;
  } while (token !== undefined);
  return names;
}

// Each page has up to 1,000 names.
const MAX_PAGES = 4096;

async function load() {
  try {
    return await import('@aws-sdk/client-s3');
  } catch (error) {
    throw new LossError(
      'ERR_INVALID_INPUT',
      {
        at: 's3://',
        expected: 'the package @aws-sdk/client-s3',
        received: describeFailure(error),
        hint: 'Install it: npm install @aws-sdk/client-s3',
      },
      { cause: error },
    );
  }
}

let shared: Promise<S3Client> | undefined;

/** Returns the client, which all files share. */
function client(): Promise<S3Client> {
  shared ??= load().then(
    ({ S3Client }) =>
      new S3Client({
        // RemoteFile makes failed requests again, from the byte at which they ended.
        maxAttempts: 1,
        // Other stores than Amazon's often have no host name per bucket.
        forcePathStyle: Boolean(process.env.AWS_ENDPOINT_URL_S3 ?? process.env.AWS_ENDPOINT_URL),
      }),
  );
  return shared;
}

async function* chunksOf(name: string, body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  const chunks = body[Symbol.asyncIterator]();
  try {
    for (;;) {
      const { value, done } = await tried(name, () => chunks.next());
      if (done) return;
      yield value;
    }
  } finally {
    await chunks.return?.();
  }
}

const PASSING = [408, 429];

/** Makes a request, and tells the failures that may pass from others. Names the error only, which has no credentials. */
async function tried<T>(name: string, request: () => Promise<T>): Promise<T> {
  try {
    return await request();
  } catch (error) {
    if (error instanceof LossError) throw error;
    const {
      name: kind = 'Error',
      code,
      message,
      $metadata,
    } = error as Error & {
      code?: string;
      $metadata?: { httpStatusCode?: number };
    };
    const status = $metadata?.httpStatusCode;
    const isPassing =
      status === undefined
        ? isNetworkFailure(error) || kind === 'TimeoutError' || message === 'aborted'
        : status >= 500 || PASSING.includes(status);
    const reason = status === undefined ? (code ?? `${kind}: ${message}`) : `${kind}, HTTP status ${status}`;
    if (isPassing) throw new PassingFailure(reason);
    throw badFile(name, { expected: 'a readable object', received: reason });
  }
}
