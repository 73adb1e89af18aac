/** Tests `policy-loss cancel`: workers stop the shards of the run, nothing of it is left, and other runs go on. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { Queue } from 'bullmq';
import { readAddress } from '../../../lib/tools/cluster/address.js';
import { runFolder } from '../../../lib/tools/cluster/index.js';
import { RUNS, SHARDS } from '../../../lib/tools/cluster/jobs.js';
import { FileServer } from '../../support/file-server.js';
import { assertFailed, EXAMPLE, Files, ROWS, run } from '../cli/support.js';
import { Cluster, needsRedis, type Program, until, withoutBatches } from './support.js';

const CANCELLED = /run [0-9a-f]{16}: expected a run that nobody has cancelled, got a cancelled one/;

describe('policy-loss cancel', () => {
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

  const submit = async (...words: string[]): Promise<{ submitter: Program; id: string }> => {
    const submitter = cluster.run('evaluate', ...words);
    const said = await submitter.says(/run [0-9a-f]{16}: /);
    return { submitter, id: said.slice(4, 20) };
  };
  const cancel = async (id: string, ...words: string[]): Promise<string> => {
    const { code, stdout, stderr } = await cluster.run('cancel', id, ...words).end();
    assert.equal(code, 0, stderr);
    assert.equal(stdout, '');
    return stderr;
  };

  /** Asserts that neither the queue nor the folder has anything of a run. */
  const assertGone = async (id: string): Promise<void> => {
    assert.ok(!existsSync(runFolder(cluster.parts, id)));
    const client = cluster.client();
    try {
      assert.deepEqual(await client.keys(`bull:*${id}*`), []);
      for (const name of [RUNS, SHARDS]) {
        const queue = new Queue(name, { connection: readAddress(cluster.url).connection });
        try {
          const counts = await queue.getJobCounts('active', 'waiting', 'delayed', 'waiting-children');
          assert.deepEqual(counts, { active: 0, waiting: 0, delayed: 0, 'waiting-children': 0 });
        } finally {
          await queue.close();
        }
      }
    } finally {
      client.disconnect();
    }
  };

  const words = [EXAMPLE, '--loss', 'ppo', '--shard-size', '60K', '--json'];

  it('ends all who follow the run, and can be repeated', async () => {
    const { submitter, id } = await submit(...words);
    const joined = cluster.run('join', id);
    await joined.says(/run [0-9a-f]{16}: /);
    assert.equal(await cancel(id), `run ${id} is cancelled\n`);
    for (const program of [submitter, joined]) assertFailed(await program.end(), 1, CANCELLED);
    await assertGone(id);
    assert.equal(await cancel(id), `run ${id} is cancelled; ${cluster.parts} has no parts of it\n`);
    assert.equal(await cancel(id, '--quiet'), '');
    const gone = /expected a run that nobody has cancelled or removed, got no file/;
    assertFailed(await cluster.run('join', id).end(), 1, gone);
  });

  it('is an error for a run that is unknown, and for another text', async () => {
    const unknown = await cluster.run('cancel', 'fedcba9876543210').end();
    const says = /run fedcba9876543210: expected a run of this queue, got a name that neither/;
    assertFailed(unknown, 1, says);
    const other = join(runFolder(cluster.parts, 'fedcba9876543210'), 'other');
    mkdirSync(other, { recursive: true });
    assertFailed(await cluster.run('cancel', 'fedcba9876543210').end(), 1, says);
    assert.ok(existsSync(other));
    assertFailed(await cluster.run('cancel', '../parts').end(), 1, /expected the name of a run/);
  });

  it('leaves a run that is submitted again alone', async () => {
    const { submitter, id } = await submit(...words);
    await cancel(id);
    await submitter.end();
    const again = cluster.run('evaluate', ...words);
    await again.says(new RegExp(`run ${id}: `));
    await cluster.worker();
    const { code, stdout, stderr } = await again.end();
    assert.equal(code, 0, stderr);
    assert.deepEqual(
      withoutBatches(stdout),
      withoutBatches((await run('evaluate', ...words.slice(0, 3), '--json')).stdout),
    );
  });

  it('stops shards in progress at once, does not try them again, and lets other runs go on', async () => {
    const files = new Files();
    const server = new FileServer(files.directory);
    await server.start();
    try {
      files.write('rows.jsonl', ROWS);
      let [hangs, hung] = [false, 0];
      server.reset({
        // When the run is planned, its shards wait for ever.
        async onRequest() {
          if (!hangs) return;
          hung++;
          await new Promise(() => {});
        },
      });
      const { submitter, id } = await submit(
        server.url('rows.jsonl'),
        '--loss',
        'ppo',
        '--shard-size',
        '60K',
      );
      hangs = true;
      const worker = await cluster.worker(['--concurrency', '2']);
      await until('workers hold shards', () => hung >= 2);
      const other = cluster.run('evaluate', ...words);
      await other.says(/run [0-9a-f]{16}: /);
      assert.match(
        await cancel(id),
        /^waiting until workers have stopped 2 shards\nrun [0-9a-f]{16} is cancelled\n$/,
      );
      assertFailed(await submitter.end(), 1, CANCELLED);
      const { code, stderr } = await other.end();
      assert.equal(code, 0, stderr);
      await assertGone(id);
      const about = worker.stderr.split('\n').filter((line) => line.includes(id));
      const stopped = about.filter((line) => / stopped, because the run is cancelled$/.test(line));
      assert.equal(stopped.length, 2, worker.stderr);
      assert.doesNotMatch(worker.stderr, /failed/);
      worker.signal('SIGTERM');
      assert.equal((await worker.end()).code, 0, worker.stderr);
      assert.deepEqual(readdirSync(cluster.parts), []);
    } finally {
      await server.stop();
      files.remove();
    }
  });

  it('cancels a run whose jobs the queue has lost', async () => {
    const { submitter, id } = await submit(...words);
    submitter.signal('SIGINT');
    await submitter.end();
    const client = cluster.client();
    try {
      await client.flushall();
    } finally {
      client.disconnect();
    }
    await cancel(id);
    await assertGone(id);
  });

  it('and a submitter of the same run do not disturb each other', async () => {
    const killed = await cluster.worker([], { name: 'disturbed', part: '^count' });
    const { submitter, id } = await submit(...words);
    await cluster.held('disturbed');
    killed.signalAll('SIGKILL');
    await cluster.lockFor(120_000);
    const cancelling = cluster.run('cancel', id);
    await cancelling.says(/waiting until workers have stopped/);
    assertFailed(await submitter.end(), 1, CANCELLED);
    // Both wait for the lock, and then one of them removes the jobs.
    const again = cluster.run('evaluate', ...words);
    await cluster.lockFor(2000);
    assert.equal((await cancelling.end()).code, 0, cancelling.stderr);
    await cluster.worker();
    const { code, stderr } = await again.end();
    assert.equal(code, 0, stderr);
    assert.deepEqual(readdirSync(cluster.parts), []);
  });

  it('waits for the lock of a worker that was killed', async () => {
    const killed = await cluster.worker([], { name: 'killed', part: '^count' });
    const { submitter, id } = await submit(...words);
    await cluster.held('killed');
    killed.signalAll('SIGKILL');
    // However long the program takes to start, it finds the shard locked.
    await cluster.lockFor(120_000);
    const cancelling = cluster.run('cancel', id);
    await cancelling.says(/^waiting until workers have stopped 1 shard\n/);
    await cluster.lockFor(100);
    assert.equal((await cancelling.end()).code, 0, cancelling.stderr);
    assertFailed(await submitter.end(), 1, CANCELLED);
    await assertGone(id);
  });
});
