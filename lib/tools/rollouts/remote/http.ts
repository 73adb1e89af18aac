// Files on web servers.
import { badFile } from '../source.js';
import { isNetworkFailure, PassingFailure, type RemoteAbout, type RemoteProtocol } from './remote.js';

/** Returns the protocol for a URL that begins with http:// or https://. */
export function httpProtocol(url: string): RemoteProtocol {
  const request = async (start: number, end: number, signal: AbortSignal) => {
    const range = `bytes=${start}-${end - 1}`;
    let response: Response;
    try {
      response = await fetch(url, {
        // With another encoding, the range would be one of the compressed bytes.
        headers: { range, 'accept-encoding': 'identity' },
        signal,
      });
    } catch (error) {
      if (isNetworkFailure((error as Error).cause)) throw new PassingFailure(reasonOf(error));
      throw badFile(url, {
        expected: 'a URL that can be requested',
        received: `an error (${reasonOf(error)})`,
      });
    }
    const { status } = response;
    if (status === 206 || status === 416) return response;
    await response.body?.cancel();
    if (status >= 500 || status === 408 || status === 429) throw new PassingFailure(`HTTP status ${status}`);
    if (status === 200)
      throw badFile(url, {
        expected: 'a server that answers requests for a range of bytes',
        received: 'the whole file',
        hint: 'Download the file, or use another server',
      });
    throw badFile(url, { expected: 'a readable file', received: `HTTP status ${status}` });
  };
  return {
    async about(signal) {
      // Some servers and signed URLs refuse HEAD, so the first byte is requested instead.
      const response = await request(0, 1, signal);
      await response.body?.cancel();
      const size = /\/(\d+)$/.exec(response.headers.get('content-range') ?? '')?.[1];
      if (size === undefined)
        throw badFile(url, {
          expected: 'the size of the file in the header Content-Range',
          received: `'${response.headers.get('content-range') ?? ''}'`,
        });
      const version = versionOf(response);
      return {
        size: Number(size),
        ...(version !== undefined && { version }),
        ...(version?.startsWith('"') && { etag: version }),
      } satisfies RemoteAbout;
    },
    async open(start, end, signal) {
      const response = await request(start, end, signal);
      const range = response.headers.get('content-range') ?? '';
      if (!range.startsWith(`bytes ${start}-`)) {
        await response.body?.cancel();
        throw badFile(url, { expected: `the bytes from ${start} on`, received: `'${range}'` });
      }
      return { version: versionOf(response), chunks: chunksOf(response) };
    },
  };
}

/** Returns the ETag or else the time of the last change. Only a strong ETag begins with a quotation mark. */
function versionOf({ headers }: Response): string | undefined {
  return headers.get('etag') ?? headers.get('last-modified') ?? undefined;
}

async function* chunksOf({ body }: Response): AsyncGenerator<Uint8Array> {
  try {
    if (body) yield* body as unknown as AsyncIterable<Uint8Array>;
  } catch (error) {
    throw new PassingFailure(reasonOf(error));
  }
}

/** Returns why a request failed. fetch() says so only in the cause of its error. */
function reasonOf(error: unknown): string {
  const { cause } = error as { cause?: unknown };
  return cause instanceof Error
    ? cause.message || String((cause as { code?: unknown }).code)
    : (error as Error).message;
}
