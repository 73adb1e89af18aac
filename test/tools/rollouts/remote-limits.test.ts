/** Tests the limits on what servers may make a reader do: on bytes, on the time without them, and on repeated requests. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { readRollouts } from '../../../lib/tools/rollouts/index.js';
import { DOWNLOADS, RETRIES } from '../../../lib/tools/rollouts/remote/remote.js';
import { setEnvironment } from '../../support/environment.js';
import { isLossError } from '../../support/loss-error.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

const EXAMPLE = fileURLToPath(new URL('../../../examples/rollouts.jsonl', import.meta.url));
const TERABYTES = 2 ** 40;

describe('servers', () => {
  const folder = temporaryFolder();
  const [limits, retries] = [{ ...DOWNLOADS }, { ...RETRIES }];
  let requests = 0;
  let answer: (response: ServerResponse, first: number, last: number) => void;
  const server = createServer(({ headers }, response) => {
    requests++;
    const [first, last] = /(\d+)-(\d+)/.exec(headers.range!)!.slice(1).map(Number) as [number, number];
    answer(response, first, last);
  });
  const url = (name: string) => `http://127.0.0.1:${(server.address() as AddressInfo).port}/${name}`;
  /** Begins an answer about a file of this size. */
  const begin = (response: ServerResponse, first: number, size: number | string) =>
    response.writeHead(206, { 'content-range': `bytes ${first}-${first}/${size}`, etag: '"1"' });
  /** The first bytes of a pickle, as many as are asked for. */
  const beginning = (first: number, last: number) =>
    Buffer.alloc(Math.min(last + 1 - first, 512), '\x80\x02');
  const refuses = (name: string, ...patterns: RegExp[]) =>
    assert.rejects(readRollouts([url(name)]), isLossError('ERR_INVALID_INPUT', ...patterns));
  let restoreTemporary: () => void;

  before(async () => {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    restoreTemporary = setEnvironment({ TMPDIR: folder.directory });
  });
  beforeEach(() => {
    requests = 0;
    RETRIES.pauseMs = 1;
  });
  afterEach('leave no copies', () => {
    Object.assign(DOWNLOADS, limits);
    Object.assign(RETRIES, retries);
    assert.deepEqual(readdirSync(folder.directory), []);
  });
  after(() => {
    restoreTemporary();
    server.close();
    server.closeAllConnections();
  });

  it('that claim more bytes than the limit are not asked for them', async () => {
    answer = (response, first, last) => begin(response, first, 8 * TERABYTES).end(beginning(first, last));
    const message =
      /expected at most 68719476736 bytes to download, got 8796093022208\. .* raise maxDownload/;
    await refuses('large.pkl', message);
    await refuses('large.jsonl', message);
    assert.ok(requests <= 8, `${requests} requests`);
  });

  it('may send a file that the limit allows, and no more', async () => {
    const bytes = readFileSync(EXAMPLE);
    answer = (response, first, last) =>
      begin(response, first, bytes.length).end(bytes.subarray(first, last + 1));
    DOWNLOADS.maxBytes = bytes.length;
    assert.ok((await readRollouts([url('rollouts.jsonl')])).rows > 0);
    DOWNLOADS.maxBytes = bytes.length - 1;
    await refuses('rollouts.jsonl', new RegExp(`expected at most ${bytes.length - 1} bytes to download`));
  });

  it('that send a byte for each request are asked six times', async () => {
    answer = (response, first) => begin(response, first, 4096).end('{');
    await refuses(
      'bytes.jsonl',
      /expected a server that answers, got .*ended \d+ bytes early\) 6 times in a row/,
    );
    assert.ok(requests <= 12, `${requests} requests`);
  });

  it('may end each request early, if it brought enough', async () => {
    const bytes = readFileSync(EXAMPLE);
    DOWNLOADS.progressBytes = 4096;
    answer = (response, first, last) =>
      begin(response, first, bytes.length).end(bytes.subarray(first, Math.min(last + 1, first + 5000)));
    assert.ok((await readRollouts([url('rollouts.jsonl')])).rows > 0);
    assert.ok(requests > bytes.length / 5000);
  });

  for (const [what, respond] of [
    ['never answer', () => {}],
    [
      'answer and send nothing',
      (response: ServerResponse) => begin(response, 0, TERABYTES / 64).flushHeaders(),
    ],
    [
      'send a byte now and then',
      (response: ServerResponse, first: number, last: number) => {
        begin(response, first, TERABYTES / 64);
        if (last - first < 256) return void response.end(' '.repeat(last - first + 1));
        const timer = setInterval(() => response.write(' '), 5);
        response.on('close', () => clearInterval(timer));
      },
    ],
  ] as const)
    it(`that ${what} are not waited for without end`, async () => {
      DOWNLOADS.stallMs = 50;
      answer = respond;
      for (const name of ['stalled.jsonl', 'stalled.parquet'])
        await refuses(
          name,
          /expected a server that answers, got an error \(too few bytes in 0\.05 s\) 6 times/,
        );
    });

  for (const size of ['9007199254740992', '9'.repeat(400), '-1', '1e3', '*'])
    it(`that state the size ${size.slice(0, 20)} get a clear error`, async () => {
      answer = (response, first) => begin(response, first, size).end('\x80');
      for (const name of ['size.pkl', 'size.jsonl'])
        await refuses(name, /expected (the size of the file|a size of less than 2\^53 bytes)/, /^.{0,400}$/s);
    });

  it('have files that cannot be copied without a folder for temporary files', async () => {
    answer = (response, first, last) => begin(response, first, 512).end(beginning(first, last));
    const missing = folder.path('missing');
    const restore = setEnvironment({ TMPDIR: missing });
    try {
      await refuses('copy.pkl', /missing: expected a folder for temporary files, got nothing: no such file/);
      assert.ok(!existsSync(missing));
    } finally {
      restore();
    }
  });
});
