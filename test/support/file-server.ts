/** Servers of files for the tests of remote files: one for HTTP with faults on request, and one for S3. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type OutgoingHttpHeaders, type ServerResponse } from 'node:http';
import { createRequire } from 'node:module';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { setEnvironment } from './environment.js';

/** How a server of files misbehaves. */
export interface Faults {
  /** The statuses of the next answers, before others are right. */
  statuses: number[];
  /** Ends the connection after this many bytes of a body, for as many answers as `cuts`. */
  cutAfter: number;
  cuts: number;
  /** Answers a request for a range with the whole file. */
  withoutRanges: boolean;
  /** Sends no ETag and no time. */
  withoutEtag: boolean;
  /** Further headers of the answers with bytes. */
  headers: OutgoingHttpHeaders;
  /** Called before each answer, which waits for the returned promise. */
  onRequest: (request: IncomingMessage) => void | Promise<void>;
}

const NONE: Faults = {
  statuses: [],
  cutAfter: 0,
  cuts: 0,
  withoutRanges: false,
  withoutEtag: false,
  headers: {},
  onRequest: () => {},
};

/** A web server that serves the files of a folder by ranges. */
export class FileServer {
  faults: Faults = { ...NONE };
  /** The ranges that were requested, as [path, first byte, last byte]. */
  requests: [path: string, first: number, last: number][] = [];
  readonly #folder: string;
  readonly #server = createServer((request, response) => this.#answer(request, response));

  constructor(folder: string) {
    this.#folder = folder;
  }

  async start(): Promise<void> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
  }

  async stop(): Promise<void> {
    this.#server.close();
    this.#server.closeAllConnections();
    await once(this.#server, 'close');
  }

  /** Makes the server behave, except for the given faults, and forgets the requests. */
  reset(faults: Partial<Faults> = {}): void {
    this.faults = { ...NONE, ...faults };
    this.requests = [];
  }

  url(name: string): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/${name}`;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { faults } = this;
    await faults.onRequest(request);
    const status = faults.statuses.shift();
    if (status !== undefined) return void response.writeHead(status).end('no');
    const file = join(this.#folder, decodeURIComponent(request.url!));
    if (!existsSync(file)) return void response.writeHead(404).end();
    const all = readFileSync(file);
    const [first, last] = /^bytes=(\d+)-(\d+)$/
      .exec(request.headers.range ?? '')!
      .slice(1)
      .map(Number) as [number, number];
    this.requests.push([request.url!, first, last]);
    if (faults.withoutRanges) return void response.writeHead(200).end(all);
    if (first >= all.length)
      return void response.writeHead(416, { 'content-range': `bytes */${all.length}` }).end();
    const body = all.subarray(first, last + 1);
    response.writeHead(206, {
      'content-range': `bytes ${first}-${first + body.length - 1}/${all.length}`,
      'content-length': body.length,
      ...(!faults.withoutEtag && { etag: `"${createHash('md5').update(all).digest('hex')}"` }),
      ...faults.headers,
    });
    if (faults.cuts <= 0 || body.length <= faults.cutAfter) return void response.end(body);
    faults.cuts--;
    response.write(body.subarray(0, faults.cutAfter), () => response.socket!.destroy());
  }
}

interface S3rver {
  run(): Promise<AddressInfo>;
  close(): Promise<void>;
}

/** The environment for a client of the S3 server, which knows only these credentials. Hides the user's own settings. */
export const S3_ENVIRONMENT = {
  AWS_ACCESS_KEY_ID: 'S3RVER',
  AWS_SECRET_ACCESS_KEY: 'S3RVER',
  AWS_SESSION_TOKEN: undefined,
  AWS_REGION: 'us-east-1',
  AWS_PROFILE: undefined,
  AWS_CONFIG_FILE: '/dev/null',
  AWS_SHARED_CREDENTIALS_FILE: '/dev/null',
  AWS_IGNORE_CONFIGURED_ENDPOINT_URLS: undefined,
};

/** Makes this process's S3 clients use a server. Returns a function that restores the environment. */
export function useS3(endpoint: string): () => void {
  return setEnvironment({ ...S3_ENVIRONMENT, AWS_ENDPOINT_URL_S3: endpoint });
}

/** Starts a server with the protocol of S3, which has one bucket and keeps its objects in a folder. */
export async function startS3(
  directory: string,
  bucket: string,
): Promise<{ endpoint: string; stop(): Promise<void> }> {
  const Server = createRequire(import.meta.url)('s3rver') as new (options: object) => S3rver;
  const server = new Server({
    address: '127.0.0.1',
    port: 0,
    silent: true,
    directory,
    configureBuckets: [{ name: bucket, configs: [] }],
  });
  const { port } = await server.run();
  return { endpoint: `http://127.0.0.1:${port}`, stop: () => server.close() };
}
