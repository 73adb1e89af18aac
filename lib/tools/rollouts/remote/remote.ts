// Files that a web server or an object store holds, by their URLs: http://, https:// and s3://. They are read by ranges.
// A request that fails for a passing reason is made again, from the byte at which it ended.
import { setTimeout } from 'node:timers/promises';
import type { LossError } from '../../../base/errors.js';
import { badFile, describeFailure } from '../source.js';

/** The properties of a file that its server reports. */
export interface RemoteAbout {
  /** The number of bytes. */
  size: number;
  /** Changes whenever a byte of the file does; absent if the server gives no strong ETag. */
  etag?: string;
  /**
   * The ETag, even a weak one, or else the time of the last change. A file with another version has changed. One with the
   * same version may have: within a second, or in a way that the server thinks unimportant.
   */
  version?: string;
}

/** How the files of one kind of server are requested. Each function makes one request. */
export interface RemoteProtocol {
  about(): Promise<RemoteAbout>;
  /**
   * Requests the bytes from `start` to before `end`.
   * @returns their chunks, and the version of the file that they are from.
   */
  open(
    start: number,
    end: number,
    signal: AbortSignal,
  ): Promise<{ version: string | undefined; chunks: AsyncIterable<Uint8Array> }>;
}

/** An error that may not occur again if the request is repeated. */
export class PassingFailure extends Error {}

const NETWORK =
  /^(ECONN|EPIPE|ETIMEDOUT|EAI_AGAIN|ENOTFOUND|EHOST|ENET|EADDRNOTAVAIL|EMFILE|ENFILE|ERR_STREAM_PREMATURE_CLOSE|UND_ERR_(\w+_TIMEOUT|SOCKET)$)/;

/** Returns whether an error has the code of a failure of the network, which may pass. */
export function isNetworkFailure(error: unknown): boolean {
  const { code } = (error ?? {}) as { code?: unknown };
  return typeof code === 'string' && NETWORK.test(code);
}

/** How often a request is made until it counts as failed, and the pause after the first failure. Pauses double. */
export const RETRIES = { tries: 6, pauseMs: 250 };

/** A file on a server. */
export class RemoteFile {
  readonly #name: string;
  readonly #protocol: RemoteProtocol;
  #about: RemoteAbout | undefined;

  constructor(name: string, protocol: RemoteProtocol) {
    this.#name = name;
    this.#protocol = protocol;
  }

  /**
   * Returns the file's size, ETag and version, as they were at the first call.
   * @throws LossError `ERR_INVALID_INPUT` if the file cannot be read.
   */
  async about(): Promise<RemoteAbout> {
    this.#about ??= await retried(this.#name, () => this.#protocol.about());
    return this.#about;
  }

  /**
   * Yields the bytes from `start` to before `end`.
   * @param end the end of the file by default.
   * @throws LossError `ERR_INVALID_INPUT` if the bytes cannot be read, or if the file has changed since about().
   */
  async *read(start = 0, end?: number): AsyncGenerator<Uint8Array> {
    const { size, version } = await this.about();
    const last = Math.min(end ?? size, size);
    let failures = 0;
    for (let at = start; at < last; ) {
      const abort = new AbortController();
      try {
        const opened = await this.#protocol.open(at, last, abort.signal);
        if (opened.version !== version) throw this.#changed(version, opened.version);
        for await (const chunk of opened.chunks) {
          const wanted = chunk.subarray(0, last - at);
          at += wanted.length;
          if (wanted.length > 0) failures = 0;
          yield wanted;
          // A server may send more than it was asked for.
          if (at === last) break;
        }
        if (at < last) throw new PassingFailure(`the connection ended ${last - at} bytes early`);
      } catch (error) {
        failures = await pause(this.#name, error, failures);
      } finally {
        abort.abort();
      }
    }
  }

  #changed(before: string | undefined, now: string | undefined): LossError {
    return badFile(this.#name, {
      expected: `a file that nobody writes while it is read, with the version ${before}`,
      received: `the version ${now}`,
    });
  }
}

/**
 * Makes a request, again if it fails for a passing reason.
 * @param name the name of the file, for error messages.
 */
export async function retried<T>(name: string, request: () => Promise<T>): Promise<T> {
  for (let failures = 0; ; )
    try {
      return await request();
    } catch (error) {
      failures = await pause(name, error, failures);
    }
}

/** Waits before another try. Returns the number of failures; throws if there will be no other try. */
async function pause(name: string, error: unknown, before: number): Promise<number> {
  if (!(error instanceof PassingFailure)) throw error;
  const failures = before + 1;
  if (failures < RETRIES.tries) {
    await setTimeout(RETRIES.pauseMs * 2 ** before);
    return failures;
  }
  throw badFile(name, {
    expected: 'a server that answers',
    received: `${describeFailure(error)} ${failures} times in a row`,
  });
}
