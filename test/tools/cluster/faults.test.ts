/**
 * Tests that a queue loses nothing and counts nothing twice, while workers are killed and stopped and Redis is
 * restarted.
 */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { drawRows } from '../../support/rollout-rows.js';
import { run } from '../cli/support.js';
import { Cluster, needsRedis, withoutBatches } from './support.js';

const SHARDS = 200;

describe('queue with faults', () => {
  let cluster: Cluster;
  before(async function () {
    needsRedis(this);
    cluster = await Cluster.start();
  });
  after(() => cluster?.end());

  it('gives the bits of one process', async () => {
    const files = [0, 1, 2, 3].map((i) => {
      const file = join(cluster.folder, `${i}.jsonl`);
      const rows = drawRows(i, SHARDS / 4);
      writeFileSync(file, rows.map((row) => JSON.stringify(row)).join('\n'));
      return file;
    });
    const words = ['evaluate', ...files, '--algorithm', 'grpo', '--kl-coef', '0.01', '--json'];
    const alone = await run(...words);
    assert.equal(alone.code, 0, alone.stderr);

    const last = `compute-00${SHARDS - 1}`;
    // Long enough for a slow machine: a job that stalls six times fails its run.
    const lock = ['--lock-seconds', '3'];
    const counting = await cluster.worker(lock, { name: 'counting', part: '^count' });
    const computing = await cluster.worker(lock, { name: 'computing', part: '^compute' });
    const stopped = await cluster.worker(lock, { name: 'stopped', part: '^compute' });
    // With shards of a byte, every line is a shard.
    const submitter = cluster.run(...words, '--shard-size', '1');
    await submitter.says(new RegExp(`run [0-9a-f]{16}: ${SHARDS} shards`));

    await cluster.held('counting');
    counting.signalAll('SIGKILL');
    // Both hold a shard before a worker starts that could finish the run without them.
    const lost = await cluster.held('computing');
    const paused = await cluster.held('stopped');
    computing.signalAll('SIGKILL');
    stopped.signalAll('SIGSTOP');
    const steady = await cluster.worker([...lock, '--concurrency', '2'], { name: 'steady', part: last });
    await cluster.stopServer();
    await cluster.startServer();
    // The last shard keeps the run from its end.
    assert.equal(await cluster.held('steady'), `${last}.part`);
    const doneBy = (part: string) => {
      const [, phase, shard] = /^(\w+)-0*(\d+)\.part$/.exec(part)!;
      return new RegExp(`: ${phase} ${shard}: `);
    };
    for (const part of [lost, paused]) await steady.says(doneBy(part));
    stopped.signalAll('SIGCONT');
    cluster.release('stopped');
    await cluster.released('stopped');
    cluster.release('steady');

    const { code, stdout, stderr } = await submitter.end();
    assert.equal(code, 0, stderr);
    assert.deepEqual(withoutBatches(stdout), withoutBatches(alone.stdout));
    assert.equal(JSON.parse(stdout).batches, SHARDS);

    const logs = [counting, computing, stopped, steady].map(({ stderr }) => stderr).join('');
    const done = [...logs.matchAll(/: (\w+ \d+): \d+ rows/g)].map(([, job]) => job!);
    assert.ok(done.length > SHARDS, logs);
    assert.equal(new Set(done).size, done.length, 'no job is done twice');
    await cleanedUp(cluster);
  });
});

/** Waits until neither the queue nor the folder has anything of a run. */
async function cleanedUp(cluster: Cluster): Promise<void> {
  const client = cluster.client();
  try {
    const jobs = (await client.keys('bull:policy-loss-*')).filter((key) => /:[0-9a-f]{16}-/.test(key));
    assert.deepEqual(jobs, []);
  } finally {
    client.disconnect();
  }
  assert.deepEqual(existsSync(cluster.parts) ? readdirSync(cluster.parts) : [], []);
}
