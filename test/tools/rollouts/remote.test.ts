/** Tests that rollouts are read from web servers and from S3: the same rows, in ranges, in spite of failures that pass. */
import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { PutObjectCommand, S3Client } from '@aws-sdk/client-s3';
import { checkRange, cutFile } from '../../../lib/tools/rollouts/cut.js';
import { expandFiles, readRollouts, streamRollouts } from '../../../lib/tools/rollouts/index.js';
import { RETRIES } from '../../../lib/tools/rollouts/remote/remote.js';
import { runAlone } from '../../support/alone.js';
import { setEnvironment } from '../../support/environment.js';
import { FileServer, S3_ENVIRONMENT, startS3, useS3 } from '../../support/file-server.js';
import { isLossError } from '../../support/loss-error.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

const fixture = (name: string) => fileURLToPath(new URL(`fixtures/${name}`, import.meta.url));
const ROLLOUTS = new URL('../../../lib/tools/rollouts/index.js', import.meta.url).href;
const EXAMPLE = fileURLToPath(new URL('../../../examples/rollouts.jsonl', import.meta.url));

/** One file of each kind of reader. */
const FILES = [
  'rollouts.jsonl',
  'rollouts.jsonl.gz',
  'rollouts.csv',
  'padded.safetensors',
  'stored.npz',
  'deflated.npz',
  'rollouts.sqlite',
  'parquet/arrow-groups.parquet',
];
const nameOf = (file: string) => file.split('/').at(-1)!;
/** The names of databases are followed by that of the table. */
const tableOf = (file: string) => (file.endsWith('.sqlite') ? '#rollouts' : '');

describe('files on servers', () => {
  const folder = temporaryFolder();
  let server: FileServer;
  const { pauseMs } = RETRIES;
  const { TMPDIR } = process.env;
  let restoreTemporary: () => void;
  before(async () => {
    RETRIES.pauseMs = 1;
    // Other test files, which may run at the same time, make copies in the usual folder.
    mkdirSync(folder.path('tmp'));
    restoreTemporary = setEnvironment({ TMPDIR: folder.path('tmp') });
    for (const file of FILES) copyFileSync(fixture(file), folder.path(nameOf(file)));
    copyFileSync(EXAMPLE, folder.path('example.jsonl'));
    server = new FileServer(folder.directory);
    await server.start();
  });
  beforeEach(() => server.reset());
  afterEach('leaves no copies', () => assert.deepEqual(readdirSync(folder.path('tmp')), []));
  after(async () => {
    RETRIES.pauseMs = pauseMs;
    restoreTemporary();
    await server.stop();
  });

  const batchOf = async (file: string) => (await readRollouts([file])).batch;

  for (const file of FILES)
    it(`give the rows of a local file: ${file}`, async () => {
      const url = server.url(nameOf(file)) + tableOf(file);
      assert.deepEqual(await batchOf(url), await batchOf(fixture(file) + tableOf(file)));
      for await (const { places } of streamRollouts([url], { maxTokens: 8 }))
        for (const place of places) assert.equal(place.file, url);
    });

  it('are read on after failures that pass, from the byte at which the connection ended', async () => {
    const expected = await batchOf(EXAMPLE);
    server.reset({ statuses: [503, 500, 429], cutAfter: 40_000, cuts: 5 });
    assert.deepEqual(await batchOf(server.url('example.jsonl')), expected);
    const begins = server.requests.map(([, first]) => first);
    assert.ok(begins.filter((first) => first > 0).length >= 5, String(begins));
    server.reset({ cutAfter: 3000, cuts: 2 });
    const [parquet] = FILES.slice(-1).map(nameOf);
    assert.deepEqual(await batchOf(server.url(parquet!)), await batchOf(folder.path(parquet!)));
  });

  it('fail with the reason if failures do not pass', async () => {
    const url = server.url('rollouts.jsonl');
    server.reset({ statuses: new Array(50).fill(503) });
    await assert.rejects(
      batchOf(url),
      isLossError(
        'ERR_INVALID_INPUT',
        /rollouts\.jsonl: expected a server that answers, got .*503.* 6 times in a row$/,
      ),
    );
    for (const [status, name] of [
      [403, 'rollouts.jsonl'],
      [404, 'nothing.jsonl'],
    ] as const) {
      server.reset({ statuses: status === 403 ? [403] : [] });
      await assert.rejects(
        batchOf(server.url(name)),
        isLossError(
          'ERR_INVALID_INPUT',
          new RegExp(`${name}: expected a readable file, got HTTP status ${status}$`),
        ),
      );
    }
    const gone = new FileServer(folder.directory);
    await gone.start();
    const goneUrl = gone.url('rollouts.jsonl');
    await gone.stop();
    await assert.rejects(
      batchOf(goneUrl),
      isLossError(
        'ERR_INVALID_INPUT',
        /expected a server that answers, got an error \(.*ECONNREFUSED.*\) 6 times/,
      ),
    );
  });

  it('fail at once if no request can be made', async () => {
    // With this pause, the test would time out if there was another try.
    RETRIES.pauseMs = 600_000;
    try {
      for (const [url, reason] of [
        ['http://127.0.0.1:1/rollouts.jsonl', 'bad port'],
        ['http://:/rollouts.jsonl', 'Invalid URL'],
      ] as const)
        await assert.rejects(
          batchOf(url),
          isLossError(
            'ERR_INVALID_INPUT',
            new RegExp(`expected a URL that can be requested, got an error \\(${reason}\\)$`),
          ),
        );
    } finally {
      RETRIES.pauseMs = 1;
    }
  });

  it('need a server that knows ranges', async () => {
    server.reset({ withoutRanges: true });
    await assert.rejects(
      batchOf(server.url('rollouts.jsonl')),
      isLossError('ERR_INVALID_INPUT', /expected a server that answers requests for a range of bytes/),
    );
  });

  it('must not change while they are read', async () => {
    const file = folder.write('changing.jsonl', readFileSync(EXAMPLE));
    let isChanged = false;
    server.reset({
      cutAfter: 50_000,
      cuts: 1,
      onRequest: ({ headers }) => {
        const first = Number(/\d+/.exec(headers.range!)![0]);
        if (first === 0 || isChanged) return;
        isChanged = true;
        writeFileSync(file, readFileSync(file).reverse());
      },
    });
    await assert.rejects(
      batchOf(server.url('changing.jsonl')),
      isLossError(
        'ERR_INVALID_INPUT',
        /expected a file that nobody writes while it is read, with the version "/,
      ),
    );
  });

  it('must not change between the check of their digest and the end of the read', async () => {
    const file = folder.write('late.jsonl', readFileSync(EXAMPLE));
    server.reset({ withoutEtag: true, headers: { etag: 'W/"1"' } });
    const { ranges, size, etag } = await cutFile(server.url('late.jsonl'), 2 ** 30, false);
    const checkAgain = await checkRange(ranges[0]!, size, etag);
    await checkAgain();
    writeFileSync(file, readFileSync(file).reverse());
    server.reset({ withoutEtag: true, headers: { etag: 'W/"2"' } });
    await assert.rejects(
      checkAgain(),
      isLossError('ERR_INVALID_INPUT', /expected a file that nobody writes while it is read, got/),
    );
  });

  it('are empty if they have no bytes', async () => {
    folder.write('empty.jsonl', '');
    await assert.rejects(
      batchOf(server.url('empty.jsonl')),
      isLossError('ERR_INVALID_INPUT', /expected rollouts, got an empty file/),
    );
  });

  it('may not have credentials in their names, which no message shows', async () => {
    for (const url of [
      'https://user:secret@example.com/a.jsonl',
      'https://example.com/a.jsonl?X-Amz-Signature=secret',
      's3://secret@bucket/a.jsonl',
    ])
      for (const call of [expandFiles([url]), batchOf(url)])
        await assert.rejects(call, (error: Error) => {
          isLossError('ERR_INVALID_OPTION', /expected a URL without a user, a password and a query/)(error);
          assert.doesNotMatch(error.message, /secret/);
          return true;
        });
    assert.deepEqual(await expandFiles(['https://example.com/[a]*.jsonl']), [
      'https://example.com/[a]*.jsonl',
    ]);
  });

  it('are cut without reading what the cut does not need', async () => {
    const parquet = nameOf(FILES.at(-1)!);
    const local = await cutFile(folder.path(parquet), 1, true);
    const cut = await cutFile(server.url(parquet), 1, true);
    const places = ({ start, end, groups, rows }: (typeof cut.ranges)[0]) => ({ start, end, groups, rows });
    assert.deepEqual(cut.ranges.map(places), local.ranges.map(places));
    assert.ok(cut.ranges.length > 1);
    assert.match(cut.etag!, /^"[0-9a-f]{32}"$/);
    const read = server.requests.reduce((sum, [, first, last]) => sum + Math.min(last, cut.size) - first, 0);
    assert.ok(read < cut.size, `${read} of ${cut.size} bytes`);
    // A shard of some row groups reads these, the beginning and the footer.
    const [range] = cut.ranges;
    server.reset();
    for await (const { rows } of streamRollouts([range!])) assert.equal(rows, range!.rows);
    const reread = server.requests.reduce(
      (sum, [, first, last]) => sum + Math.min(last, cut.size) - first,
      0,
    );
    assert.ok(reread < cut.size, `${reread} of ${cut.size} bytes`);

    const lines = await cutFile(server.url('example.jsonl'), 100_000, false);
    assert.deepEqual(
      lines.ranges.map(({ start, end, line, sha256 }) => ({ start, end, line, sha256 })),
      (await cutFile(EXAMPLE, 100_000, false)).ranges.map(({ start, end, line, sha256 }) => ({
        start,
        end,
        line,
        sha256,
      })),
    );
    // Neither a weak ETag nor a time proves that a file is the same.
    for (const headers of [{}, { etag: 'W/"1"' }, { 'last-modified': 'Sat, 01 Jan 2000 00:00:00 GMT' }]) {
      server.reset({ withoutEtag: true, headers });
      const plain = await cutFile(server.url(parquet), 1, true);
      assert.equal(plain.etag, undefined);
      assert.deepEqual(
        plain.ranges.map(({ sha256 }) => sha256),
        local.ranges.map(({ sha256 }) => sha256),
      );
    }
  });

  it('leave no copy if a Parquet file cannot be cut', async () => {
    const parquet = readFileSync(folder.path(nameOf(FILES.at(-1)!)));
    // The footer is before its length and the last four bytes.
    const footer = parquet.length - 8 - parquet.readUInt32LE(parquet.length - 8);
    folder.write('damaged.parquet', Buffer.from(parquet).fill(0xff, footer, parquet.length - 8));
    await assert.rejects(
      cutFile(server.url('damaged.parquet'), 1, true),
      isLossError('ERR_INVALID_INPUT', /damaged\.parquet: /),
    );
  });

  it('are asked for their sizes 16 at once', async () => {
    const urls = Array.from({ length: 64 }, (_, i) => server.url(`step-${i}.jsonl`));
    for (const [i] of urls.entries()) copyFileSync(fixture('rollouts.jsonl'), folder.path(`step-${i}.jsonl`));
    let [asked, most] = [0, 0];
    let waiting: (() => void)[] = [];
    server.reset({
      onRequest() {
        // Only the first request for each file waits. Each answer waits until 16 requests do.
        if (++asked > urls.length) return;
        return new Promise((resolve) => {
          most = Math.max(most, waiting.push(resolve));
          if (waiting.length !== 16) return;
          setTimeout(() => {
            for (const answer of waiting) answer();
            waiting = [];
          }, 50);
        });
      },
    });
    let total: number | undefined;
    await readRollouts(urls, { onProgress: ({ totalBytes }) => (total = totalBytes) });
    assert.equal(most, 16);
    assert.equal(total, urls.length * readFileSync(fixture('rollouts.jsonl')).length);
  });

  it('take memory that does not depend on their size', () => {
    const { result } = runAlone<{ rows: number; growth: number }>(
      `const { createServer } = await import('node:http');
       const { once } = await import('node:events');
       const { streamRollouts } = await import(given[0]);
       const line = Buffer.from(JSON.stringify({ logprobs: [-1], prompt: 'x'.repeat(2 ** 20) }) + '\\n');
       const size = 300 * line.length;
       const server = createServer(async (request, response) => {
         const [first, last] = request.headers.range.match(/\\d+/g).map(Number);
         const end = Math.min(last + 1, size);
         response.writeHead(206, { 'content-range': 'bytes ' + first + '-' + (end - 1) + '/' + size, etag: '"1"' });
         for (let at = first; at < end && !response.destroyed; ) {
           const chunk = line.subarray(at % line.length, Math.min(line.length, (at % line.length) + end - at));
           at += chunk.length;
           if (!response.write(chunk)) await Promise.race([once(response, 'drain'), once(response, 'close')]);
         }
         response.end();
       }).listen(0, '127.0.0.1');
       await once(server, 'listening');
       let [rows, before] = [0, 0];
       const url = 'http://127.0.0.1:' + server.address().port + '/long.jsonl';
       for await (const part of streamRollouts([url], { maxTokens: 16 })) {
         rows += part.rows;
         if (before === 0 && rows >= 60) before = peakMemory();
       }
       server.close();
       server.closeAllConnections();
       return { rows, growth: peakMemory() - before };`,
      [ROLLOUTS],
      { env: { ...process.env, TMPDIR } },
    );
    assert.equal(result.rows, 300);
    // The rows after the first 60 take 250 MB in the file.
    assert.ok(result.growth < 125e6, `${result.growth} bytes`);
  });

  it('are not waited for for ever if a store of objects stalls', () => {
    // In a process of its own, because all files share a client.
    const { result } = runAlone<{ message: string; requests: Record<string, number> }>(
      `const { createServer } = await import('node:http');
       const { once } = await import('node:events');
       const { readRollouts } = await import(given[0]);
       const { DOWNLOADS, RETRIES } = await import(given[1]);
       RETRIES.pauseMs = 1;
       DOWNLOADS.stallMs = 500;
       const requests = {};
       const server = createServer((request, response) => {
         const count = (requests[request.method] = (requests[request.method] ?? 0) + 1);
         // The first answer and the beginning of each body come, and then nothing.
         if (request.method === 'HEAD' && count === 1) return;
         response.writeHead(200, { 'content-length': '100', etag: '"1"' });
         if (request.method === 'HEAD') response.end();
         else response.flushHeaders();
       }).listen(0, '127.0.0.1');
       await once(server, 'listening');
       process.env.AWS_ENDPOINT_URL_S3 = 'http://127.0.0.1:' + server.address().port;
       const { message } = await readRollouts(['s3://rollouts/a.jsonl']).catch((error) => error);
       server.close();
       server.closeAllConnections();
       return { message, requests };`,
      [ROLLOUTS, new URL('remote/remote.js', ROLLOUTS).href],
      { env: { ...process.env, ...S3_ENVIRONMENT, TMPDIR } },
    );
    assert.match(
      result.message,
      /expected a server that answers, got an error \(too few bytes in 0\.5 s\) 6 times in a row$/,
    );
    // Both kinds of requests were made again.
    assert.ok(result.requests.HEAD! > 1 && result.requests.GET! > 1, JSON.stringify(result.requests));
  });

  describe('on S3', () => {
    const bucket = 'rollouts';
    let stop: () => Promise<void>;
    let restore: () => void;
    before(async () => {
      const started = await startS3(folder.path('s3'), bucket);
      stop = started.stop;
      restore = useS3(started.endpoint);
      const client = new S3Client({
        forcePathStyle: true,
        requestChecksumCalculation: 'WHEN_REQUIRED',
      });
      for (const file of [...FILES.map(fixture), EXAMPLE])
        await client.send(
          new PutObjectCommand({
            Bucket: bucket,
            Key: `runs/${file === EXAMPLE ? 'example.jsonl' : nameOf(file)}`,
            Body: readFileSync(file),
          }),
        );
      client.destroy();
    });
    after(async () => {
      restore();
      await stop();
    });

    it('give the rows of local files', async () => {
      for (const file of FILES)
        assert.deepEqual(
          await batchOf(`s3://${bucket}/runs/${nameOf(file)}${tableOf(file)}`),
          await batchOf(fixture(file) + tableOf(file)),
          file,
        );
    });

    it('are cut into the ranges of local files', async () => {
      const cut = await cutFile(`s3://${bucket}/runs/example.jsonl`, 100_000, false);
      const local = await cutFile(EXAMPLE, 100_000, false);
      assert.deepEqual(
        cut.ranges.map(({ start, end, sha256 }) => [start, end, sha256]),
        local.ranges.map(({ start, end, sha256 }) => [start, end, sha256]),
      );
      assert.ok(cut.etag);
    });

    it('are listed by folders', async () => {
      const found = await expandFiles([`s3://${bucket}/runs/`]);
      const names = [...FILES.map(nameOf), 'example.jsonl'].sort();
      assert.deepEqual(
        found,
        names.map((name) => `s3://${bucket}/runs/${name}`),
      );
      await assert.rejects(
        expandFiles([`s3://${bucket}/none/`]),
        isLossError(
          'ERR_INVALID_INPUT',
          /s3:\/\/rollouts\/none\/: expected a directory with files, got none/,
        ),
      );
    });

    it('are an error if they are missing', async () => {
      await assert.rejects(
        batchOf(`s3://${bucket}/runs/none.jsonl`),
        isLossError(
          'ERR_INVALID_INPUT',
          /s3:\/\/rollouts\/runs\/none\.jsonl: expected a readable object, got .*404/,
        ),
      );
      await assert.rejects(
        batchOf('s3://rollouts'),
        isLossError('ERR_INVALID_INPUT', /expected s3:\/\/BUCKET\/KEY/),
      );
    });
  });
});
