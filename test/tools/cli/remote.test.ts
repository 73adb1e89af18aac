/** Tests `plan`, `run`, `merge` and `evaluate` on files of a web server and of S3. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { appendFileSync, copyFileSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { PutObjectCommand, S3Client } from '@aws-sdk/client-s3';
import { FileServer, startS3, useS3 } from '../../support/file-server.js';
import { EXAMPLE, Files, fails, PROGRAM, resultOf, run, runJson, runProcess } from './support.js';

const PARQUET = fileURLToPath(new URL('../rollouts/fixtures/parquet/arrow-groups.parquet', import.meta.url));

describe('files on servers, on the command line', () => {
  let files: Files;
  let server: FileServer;
  beforeEach(async () => {
    files = new Files();
    copyFileSync(EXAMPLE, files.path('rollouts.jsonl'));
    copyFileSync(PARQUET, files.path('groups.parquet'));
    server = new FileServer(files.directory);
    await server.start();
  });
  afterEach(async () => {
    await server.stop();
    files.remove();
  });

  /** Plans and runs all shards one by one. Returns what merge prints, without what depends on the division. */
  async function merged(words: readonly string[], size = '60K') {
    const folder = mkdtempSync(files.path('run-'));
    const [plan, parts] = [join(folder, 'plan.json'), join(folder, 'parts')];
    const { shards, phases } = await runJson('plan', ...words, '--shard-size', size, '--out', plan);
    assert.ok(shards > 1);
    for (const phase of phases)
      for (let shard = 0; shard < shards; shard++)
        await runJson('run', plan, '--phase', phase, '--shard', String(shard), '--out', parts);
    const { batches, ...result } = await runJson('merge', plan, parts);
    assert.equal(batches, shards);
    return { result, plan: JSON.parse(readFileSync(plan, 'utf8')) };
  }

  it('give the result of local files, in shards and in one process', async () => {
    const words = ['--algorithm', 'grpo'];
    const expected = await runJson('evaluate', EXAMPLE, ...words);
    const url = server.url('rollouts.jsonl');
    server.reset({ cutAfter: 30_000, cuts: 3 });
    const { result, plan } = await merged([url, ...words]);
    assert.deepEqual(result, expected);
    assert.match(plan.files[0].etag, /^"[0-9a-f]{32}"$/);
    server.reset({ withoutEtag: true });
    const plain = await merged([url, ...words]);
    assert.deepEqual(plain.result, expected);
    assert.equal(plain.plan.files[0].etag, undefined);
    assert.deepEqual(await runJson('evaluate', url, ...words), expected);
    const { batches, ...twice } = await runJson('evaluate', url, ...words, '--batch-tokens', '1000');
    assert.ok(batches > 1);
    assert.deepEqual(twice, expected);
  });

  it('are limited by --max-download and --stall-seconds', async () => {
    const url = server.url('rollouts.jsonl');
    const words = ['evaluate', url, '--loss', 'ppo'];
    await fails(
      1,
      [...words, '--max-download', '1000'],
      /expected at most 1000 bytes to download, got \d+\. If the file is correct, raise --max-download$/m,
    );
    await run(...words);
    await fails(2, [...words, '--max-download', '0'], /--max-download.*whole number/);
    await fails(2, [...words, '--stall-seconds', 'x'], /--stall-seconds.*a number of seconds/);
    const plan = files.path('plan.json');
    await run('plan', url, '--loss', 'ppo', '--out', plan);
    const one = ['run', plan, '--out', files.path('parts')];
    await fails(1, [...one, '--max-download', '1000'], /expected at most 1000 bytes to download/);
  });

  it('give the result of local Parquet files, by row groups', async () => {
    const words = ['--loss', 'ppo'];
    const { result, plan } = await merged([server.url('groups.parquet'), ...words], '1');
    const { batches: _, ...expected } = await runJson('evaluate', PARQUET, ...words);
    assert.deepEqual(result, expected);
    assert.equal(plan.shards[0][0].sha256, undefined);
  });

  it('are planned with one request each if they are not cut, several at once, in order', async () => {
    const names = Array.from({ length: 40 }, (_, i) => `step-${i}.jsonl`);
    for (const name of names) copyFileSync(EXAMPLE, files.path(name));
    const plan = files.path('plan.json');
    const words = ['--loss', 'ppo', '--max-rows', '100000', '--out', plan];
    const { shards } = await runJson('plan', ...names.map((name) => server.url(name)), ...words);
    assert.equal(shards, 1);
    assert.deepEqual(
      JSON.parse(readFileSync(plan, 'utf8')).files.map(({ file }: { file: string }) => file),
      names.map((name) => server.url(name)),
    );
    // The columns are checked on the first file, and the sizes of all are for the progress bar.
    const requests = server.requests.filter(([path]) => path === '/step-30.jsonl');
    assert.ok(requests.length <= 2, JSON.stringify(requests));
    await fails(1, ['plan', server.url(names[0]!), server.url('none.jsonl'), ...words], /none\.jsonl: .*404/);
  });

  for (const etag of ['with', 'without'] as const)
    it(`must not have changed since the plan: ${etag} an ETag`, async () => {
      const [plan, parts] = [files.path('plan.json'), files.path('parts')];
      const file = files.path('rollouts.jsonl');
      server.reset({ withoutEtag: etag === 'without' });
      await runJson(
        'plan',
        server.url('rollouts.jsonl'),
        '--loss',
        'ppo',
        '--shard-size',
        '60K',
        '--out',
        plan,
      );
      const whole = readFileSync(file);
      const changed = Buffer.from(whole);
      changed[whole.indexOf('0.')] = 0x31;
      writeFileSync(file, changed);
      const words = ['run', plan, '--phase', 'count', '--shard', '0', '--out', parts];
      await fails(
        1,
        words,
        /rollouts\.jsonl: expected .*(ETag|SHA-256).*The file has changed since the plan was made\. Make a new plan/,
      );
      writeFileSync(file, whole);
      assert.equal((await run(...words)).code, 0);
      appendFileSync(file, '\n');
      await fails(1, words, /expected \d+ bytes, as when it was planned, got \d+ bytes/);
    });

  it('may not have credentials in their names', async () => {
    const url = server.url('rollouts.jsonl').replace('//', '//user:secret@');
    for (const words of [
      ['evaluate', url, '--loss', 'ppo'],
      [
        'plan',
        `${server.url('rollouts.jsonl')}?token=secret`,
        '--loss',
        'ppo',
        '--out',
        files.path('plan.json'),
      ],
    ]) {
      const { code, stdout, stderr } = await run(...words);
      assert.equal(code, 2);
      assert.match(stderr, /expected a URL without a user, a password and a query/);
      assert.doesNotMatch(stdout + stderr, /secret/);
    }
  });

  it('need the client of S3 for its objects', () => {
    const hook = `export async function resolve(name, context, next) {
      if (name === '@aws-sdk/client-s3') throw new Error('Cannot find package');
      return next(name, context);
    }`;
    const register = `import { register } from 'node:module';
      register('data:text/javascript,' + encodeURIComponent(${JSON.stringify(hook)}));`;
    const words = ['--import', `data:text/javascript,${encodeURIComponent(register)}`, PROGRAM];
    const { status, stderr } = spawnSync(
      process.execPath,
      [...words, 'evaluate', 's3://rollouts/a.jsonl', '--loss', 'ppo'],
      { encoding: 'utf8', timeout: 60_000 },
    );
    assert.equal(status, 1);
    assert.match(
      stderr,
      /s3:\/\/: expected the package @aws-sdk\/client-s3, got .*npm install @aws-sdk\/client-s3\n$/,
    );
  });

  it('can be read by every command', async () => {
    const url = server.url('rollouts.jsonl');
    for (const words of [
      ['compare', url, '--loss', 'ppo', '--loss', 'gspo'],
      ['sweep', url, '--loss', 'ppo', '--clip-range', '0.1:0.2:0.1'],
      ['gradients', url, '--loss', 'ppo', '--out', files.path('gradients.parquet')],
      ['doctor', url],
      ['diff', url, EXAMPLE],
      ['identify', url, '--logged', 'loss=-0.12', '--loss', 'ppo', '--micro-batches', '1'],
    ]) {
      const { code, stderr } = await run(...words, '--json');
      assert.equal(code, 0, `${words[0]}: ${stderr}`);
    }
  });

  it('can be objects of S3', async () => {
    const { endpoint, stop } = await startS3(files.path('s3'), 'rollouts');
    const restore = useS3(endpoint);
    try {
      const client = new S3Client({ forcePathStyle: true, requestChecksumCalculation: 'WHEN_REQUIRED' });
      const body = readFileSync(EXAMPLE);
      const put = (Body: Buffer) =>
        client.send(new PutObjectCommand({ Bucket: 'rollouts', Key: 'step 1/rollouts.jsonl', Body }));
      await put(body);
      const name = 's3://rollouts/step 1/rollouts.jsonl';
      const words = ['--loss', 'ppo'];
      // A process of its own, because it must end by itself although the client keeps connections.
      const evaluated = await runProcess('evaluate', name, ...words, '--json');
      assert.equal(evaluated.code, 0, evaluated.stderr);
      const expected = await runJson('evaluate', EXAMPLE, ...words);
      assert.deepEqual(JSON.parse(evaluated.stdout), expected);

      const [plan, parts] = [files.path('plan.json'), files.path('parts')];
      const planned = await run('plan', name, ...words, '--shard-size', '60K', '--out', plan, '--json');
      assert.equal(planned.code, 0, planned.stderr);
      await run('run', plan, '--out', parts);
      const { batches: _, ...result } = resultOf(await run('merge', plan, parts, '--json'));
      assert.deepEqual(result, expected);

      await put(Buffer.concat([body.subarray(0, -1), Buffer.from(' ')]));
      const again = await run('run', plan, '--out', parts);
      assert.equal(again.code, 1);
      assert.match(again.stderr, /expected the ETag .*The file has changed since the plan was made/);
      assert.doesNotMatch(again.stderr + evaluated.stderr, /S3RVER/);
      client.destroy();
    } finally {
      restore();
      await stop();
    }
  });
});
