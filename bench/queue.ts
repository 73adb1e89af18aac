// Measures what the queue costs. Writes rollouts into a temporary folder, starts redis-server and workers on this
// machine, and compares `evaluate --queue` for several sizes of shards with `evaluate` in one process. The results must
// be the same.
//
//   npm run build:ts && npx tsx bench/queue.ts [--megabytes 500] [--workers 2]
import assert from 'node:assert/strict';
import { createWriteStream } from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { parseArgs } from 'node:util';
import { runProcess } from '../test/tools/cli/support.js';
import { Cluster, withoutBatches } from '../test/tools/cluster/support.js';
import { textOf } from './lib/rollout-text.js';

const { values: flags } = parseArgs({
  options: {
    megabytes: { type: 'string', default: '500' },
    workers: { type: 'string', default: '2' },
    sizes: { type: 'string', default: '256K,1M,4M,16M,64M,256M' },
  },
});

/** Returns the seconds that a call takes, and its result. */
async function timed<T>(call: () => Promise<T>): Promise<[seconds: number, result: T]> {
  const start = performance.now();
  const result = await call();
  return [(performance.now() - start) / 1000, result];
}

/** Returns a number of the server's statistics. */
async function statistic(cluster: Cluster, section: string, name: string): Promise<number> {
  const client = cluster.client();
  const text = await client.info(section);
  client.disconnect();
  return Number(new RegExp(`^${name}:(.*)$`, 'm').exec(text)![1]);
}

const cluster = await Cluster.start();
try {
  const file = join(cluster.folder, 'rollouts.jsonl');
  await pipeline(Readable.from(textOf(Number(flags.megabytes) * 1e6, false)), createWriteStream(file));
  const words = ['evaluate', file, '--algorithm', 'grpo', '--json'];
  const [alone, expected] = await timed(() => runProcess(...words, '--quiet'));
  assert.equal(expected.code, 0, expected.stderr);
  console.log(`${flags.megabytes} MB in one process: ${alone.toFixed(1)} s\n`);

  const workers = Number(flags.workers);
  for (let i = 0; i < workers; i++) await cluster.worker();
  console.log(
    `| shard size | shards | plan | count and compute, ${workers} workers | shards/s | Redis, CPU/shard |`,
  );
  console.log('| ---: | ---: | ---: | ---: | ---: | ---: |');
  for (const size of flags.sizes.split(',')) {
    const plan = [
      'plan',
      ...words.slice(1),
      '--shard-size',
      size,
      '--out',
      join(cluster.folder, 'plan.json'),
    ];
    const [planning, { stdout }] = await timed(() => runProcess(...plan));
    const { shards } = JSON.parse(stdout) as { shards: number };
    const used = () => statistic(cluster, 'cpu', 'used_cpu_user');
    const before = await used();
    const [all, result] = await timed(() => cluster.run(...words, '--shard-size', size, '--quiet').end());
    assert.deepEqual(withoutBatches(result.stdout), withoutBatches(expected.stdout), result.stderr);
    const redis = (1000 * ((await used()) - before)) / shards;
    const running = all - planning;
    console.log(
      `| ${size} | ${shards} | ${planning.toFixed(1)} s | ${running.toFixed(1)} s | ` +
        `${(shards / running).toFixed(1)} | ${redis.toFixed(1)} ms |`,
    );
  }
} finally {
  await cluster.end();
}
