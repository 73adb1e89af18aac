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
  about(signal: AbortSignal): Promise<RemoteAbout>;
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

/** The limits on files from servers. The command line sets them for the process. */
export const DOWNLOADS = {
  /** The largest number of bytes of one file, or of one range of it. */
  maxBytes: 2 ** 36,
  /** How long a server may take for an answer, and for each `progressBytes` of it. */
  stallMs: 30_000,
  /** The bytes that a request must bring, so that requests that failed before it do not count. */
  progressBytes: 2 ** 16,
};

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
    if (this.#about) return this.#about;
    const about = await retried(this.#name, (signal) => this.#protocol.about(signal));
    if (!Number.isSafeInteger(about.size) || about.size < 0)
      throw badFile(this.#name, { expected: 'a size of less than 2^53 bytes', received: String(about.size) });
    this.#about = about;
    return about;
  }

  /**
   * Yields the bytes from `start` to before `end`.
   * @param end the end of the file by default.
   * @throws LossError `ERR_INVALID_INPUT` if the bytes cannot be read, come too slowly or are too many, or if the file has
   * changed since about().
   */
  async *read(start = 0, end?: number): AsyncGenerator<Uint8Array> {
    const { size, version } = await this.about();
    const last = Math.min(end ?? size, size);
    const { maxBytes, progressBytes } = DOWNLOADS;
    if (last - start > maxBytes)
      throw badFile(this.#name, {
        expected: `at most ${maxBytes} bytes to download`,
        received: String(last - start),
        hint: (spell) => `If the file is correct, raise ${spell('maxDownload')}`,
      });
    let failures = 0;
    for (let at = start; at < last; ) {
      const begin = at;
      try {
        for await (const chunk of this.#request(at, last, version)) {
          at += chunk.length;
          yield chunk;
        }
        if (at < last) throw new PassingFailure(`the connection ended ${last - at} bytes early`);
      } catch (error) {
        failures = await pause(this.#name, error, at - begin < progressBytes ? failures : 0);
      }
    }
  }

  /** Yields the bytes that one request brings. Time does not count while the caller works on them. */
  async *#request(start: number, end: number, version: string | undefined): AsyncGenerator<Uint8Array> {
    const abort = new AbortController();
    let waited = 0;
    const inTime = async <T>(answer: Promise<T>): Promise<T> => {
      const before = performance.now();
      const result = await orStalled(answer, DOWNLOADS.stallMs - waited);
      waited += performance.now() - before;
      return result;
    };
    try {
      const opened = await inTime(this.#protocol.open(start, end, abort.signal));
      if (opened.version !== version) throw this.#changed(version, opened.version);
      const chunks = opened.chunks[Symbol.asyncIterator]();
      let progress = 0;
      for (let at = start; at < end; ) {
        const { value, done } = await inTime(chunks.next());
        if (done) return;
        // A server may send more than it was asked for.
        const wanted = value.subarray(0, end - at);
        at += wanted.length;
        progress += wanted.length;
        if (progress >= DOWNLOADS.progressBytes) [progress, waited] = [0, 0];
        yield wanted;
      }
    } finally {
      abort.abort();
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
export async function retried<T>(name: string, request: (signal: AbortSignal) => Promise<T>): Promise<T> {
  for (let failures = 0; ; ) {
    const abort = new AbortController();
    try {
      return await orStalled(request(abort.signal), DOWNLOADS.stallMs);
    } catch (error) {
      failures = await pause(name, error, failures);
    } finally {
      abort.abort();
    }
  }
}

/** Waits for an answer, but not for ever. */
async function orStalled<T>(answer: Promise<T>, ms: number): Promise<T> {
  const timer = new AbortController();
  const stalled = setTimeout(Math.max(0, ms), undefined, { signal: timer.signal }).then(() => {
    throw new PassingFailure(`too few bytes in ${DOWNLOADS.stallMs / 1000} s`);
  });
  // Only one of them is waited for to the end.
  for (const promise of [answer, stalled]) promise.catch(() => {});
  try {
    return await Promise.race([answer, stalled]);
  } finally {
    timer.abort();
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
