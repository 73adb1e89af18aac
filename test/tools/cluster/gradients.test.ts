/** Tests `policy-loss gradients --queue`: its files have, in the order of their numbers, the rows of the one file. */
import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { version } from '../../../lib/tools/cli/about.js';
import { GradientFiles } from '../../../lib/tools/cli/gradient-files.js';
import { storedPlan } from '../../../lib/tools/cluster/index.js';
import { assertFailed, EXAMPLE, ROWS, run } from '../cli/support.js';
import { Cluster, needsRedis, withoutBatches } from './support.js';

describe('policy-loss gradients --queue', () => {
  let cluster: Cluster;
  before(async function () {
    needsRedis(this);
    cluster = await Cluster.start();
  });
  after(() => cluster?.end());
  afterEach(async () => {
    await cluster.endPrograms();
    await cluster.clear();
  });

  const SUBJECT = [EXAMPLE, '--algorithm', 'grpo', '--ids', 'id,task_id'];
  const folderOf = (name: string) => {
    const folder = join(cluster.folder, name);
    mkdirSync(folder, { recursive: true });
    return folder;
  };
  const read = (file: string) =>
    (file.endsWith('.gz') ? gunzipSync(readFileSync(file)) : readFileSync(file)).toString();

  for (const ending of ['jsonl', 'jsonl.gz'])
    it(`writes a file of ${ending} per shard, and can be left and joined`, async () => {
      const folder = folderOf(`left-${ending}`);
      const out = join(folder, `g.${ending}`);
      const words = ['gradients', ...SUBJECT, '--json'];
      const left = cluster.run(...words, '--shard-size', '60K', '--out', out);
      const [id] = /[0-9a-f]{16}/.exec(await left.says(/run [0-9a-f]{16}: /))!;
      left.signal('SIGINT');
      await left.end();
      assert.deepEqual(readdirSync(folder), []);
      assertFailed(
        await cluster.run('join', id).end(),
        2,
        new RegExp(`--out: expected a name that ends in \\.${ending}, got nothing`),
      );
      const joins = cluster.run('join', id, '--json', '--out', out);
      await joins.says(/run [0-9a-f]{16}: /);
      await cluster.worker();
      // Another submitter has its own files.
      const others = folderOf(`others-${ending}`);
      const submits = cluster.run(...words, '--shard-size', '60K', '--out', join(others, `h.${ending}`));
      const [joined, other] = await Promise.all([joins.end(), submits.end()]);
      for (const { code, stderr } of [joined, other]) assert.equal(code, 0, stderr);

      const single = join(cluster.folder, `single.${ending}`);
      const alone = await run(...words, '--out', single);
      const { files, bytes, ...rest } = withoutBatches(joined.stdout) as { files: string[]; bytes: number };
      const { file: _, bytes: __, ...expected } = JSON.parse(alone.stdout);
      assert.deepEqual(rest, expected);
      assert.ok(files.length > 5);
      assert.deepEqual(
        files,
        files.map((_, shard) => join(folder, `g-${String(shard).padStart(5, '0')}.${ending}`)),
      );
      assert.equal(
        bytes,
        files.reduce((sum, file) => sum + readFileSync(file).length, 0),
      );
      assert.equal(files.map(read).join(''), read(single));
      assert.deepEqual(
        readdirSync(folder).sort(),
        files.map((file) => file.slice(folder.length + 1)),
      );
      assert.equal(readdirSync(others).length, files.length);
      assert.equal(statSync(files[0]!).nlink, 1);
      assert.deepEqual(readdirSync(cluster.parts), []);
    });

  it('writes the gradients of --dtype', async () => {
    const words = ['gradients', ...SUBJECT, '--dtype', 'bfloat16'];
    const out = join(folderOf('half'), 'g.safetensors');
    await cluster.worker();
    const { code, stderr } = await cluster.run(...words, '--shard-size', '1G', '--out', out).end();
    assert.equal(code, 0, stderr);
    const single = join(cluster.folder, 'half.safetensors');
    await run(...words, '--out', single);
    assert.deepEqual(readFileSync(out.replace('g.', 'g-00000.')), readFileSync(single));
  });

  it('overwrites the files of an earlier run, but refuses to leave some of them', async () => {
    const folder = folderOf('stale');
    const out = join(folder, 'gradients.parquet');
    const words = ['gradients', ...SUBJECT, '--shard-size', '200K', '--out', out];
    await cluster.worker();
    for (const name of ['gradients-00000.parquet', 'gradients-x0009.parquet', 'gradients-00009.jsonl'])
      writeFileSync(join(folder, name), 'old');
    const { code, stdout, stderr } = await cluster.run(...words).end();
    assert.equal(code, 0, stderr);
    assert.match(stdout, /files +\S*gradients-00000\.parquet\n +\S*gradients-00001\.parquet/);
    assert.equal(readFileSync(join(folder, 'gradients-00000.parquet')).toString('latin1', 0, 4), 'PAR1');
    writeFileSync(join(folder, 'gradients-00009.parquet'), 'old');
    assertFailed(
      await cluster.run(...words).end(),
      2,
      /gradients-00009\.parquet: --out: expected a folder without gradients of more than \d shards/,
    );
  });

  it('has no file for a shard without good rows, not even an old one', async () => {
    const folder = folderOf('bad');
    const input = join(cluster.folder, 'bad.jsonl');
    const [first, second] = ROWS.map((row) => JSON.stringify(row));
    writeFileSync(input, [first, '{"logprobs": "none"}', second].join('\n'));
    writeFileSync(join(folder, 'gradients-00001.jsonl'), 'old');
    await cluster.worker();
    const words = ['gradients', input, '--loss', 'sft', '--skip-bad-rows', '--shard-size', '1'];
    const out = join(folder, 'gradients.jsonl');
    const { code, stdout, stderr } = await cluster.run(...words, '--out', out, '--json').end();
    assert.equal(code, 0, stderr);
    assert.equal(JSON.parse(stdout).skipped, 1);
    assert.deepEqual(readdirSync(folder).sort(), ['gradients-00000.jsonl', 'gradients-00002.jsonl']);
  });

  it('leaves the files of an earlier run alone if the run is gone before its files are placed', async () => {
    const folder = folderOf('gone');
    const out = join(folder, 'g.jsonl');
    const words = ['gradients', EXAMPLE, '--loss', 'ppo', '--shard-size', '200K', '--out', out];
    const submitter = cluster.run(...words);
    const [id] = /[0-9a-f]{16}/.exec(await submitter.says(/run [0-9a-f]{16}: /))!;
    const plan = await storedPlan(cluster.parts, id, version);
    submitter.signal('SIGINT');
    await submitter.end();
    const files = await GradientFiles.of(plan, out);
    for (const name of files!.names) writeFileSync(name, 'old');
    await assert.rejects(files!.place(join(folder, 'gone')), /expected a part that can be read/);
    for (const name of files!.names) assert.equal(readFileSync(name, 'utf8'), 'old');
  });

  it('refuses other names', async () => {
    const out = join(cluster.folder, 'gradients.npz');
    assertFailed(
      await cluster.run('gradients', ...SUBJECT, '--out', out).end(),
      2,
      /--out: expected a name that ends in \.safetensors, \.parquet, \.jsonl, \.jsonl\.gz/,
    );
    // Before the files are read: this one does not exist.
    for (const [name, status, message] of [
      ['s3://bucket/g.jsonl', 2, /--out: expected a local file, got a URL/],
      [join(EXAMPLE, 'g.jsonl'), 1, /g\.jsonl: expected .*(EEXIST|ENOTDIR)/],
    ] as const)
      assertFailed(
        await cluster.run('gradients', 'none.jsonl', '--loss', 'ppo', '--out', name).end(),
        status,
        message,
      );
    const submitter = cluster.run('evaluate', EXAMPLE, '--loss', 'ppo', '--shard-size', '60K');
    const [id] = /[0-9a-f]{16}/.exec(await submitter.says(/run [0-9a-f]{16}: /))!;
    assertFailed(
      await cluster.run('join', id, '--out', 'gradients.jsonl').end(),
      2,
      /--out: expected no file, because this run has no gradients/,
    );
    const input = folderOf('input');
    writeFileSync(join(input, 'g-00000.jsonl'), readFileSync(EXAMPLE));
    assertFailed(
      await cluster
        .run('gradients', join(input, 'g-00000.jsonl'), '--loss', 'ppo', '--out', join(input, 'g.jsonl'))
        .end(),
      2,
      /--out .*g-00000\.jsonl: expected a file other than the files that are read/,
    );
  });
});
