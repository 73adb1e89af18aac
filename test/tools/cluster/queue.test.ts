/** Tests runs on a queue: several at once, leaving and joining, failures, and how workers and submitters end. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { Queue } from 'bullmq';
import { Command } from 'commander';
import { plannedSubjects } from '../../../lib/tools/cli/planning.js';
import { runPlan } from '../../../lib/tools/cli/queue-run.js';
import { readAddress } from '../../../lib/tools/cluster/address.js';
import { runFolder, SubmittedRun, storedPlan } from '../../../lib/tools/cluster/index.js';
import { RUNS, runId, SHARDS } from '../../../lib/tools/cluster/jobs.js';
import type { RunProgress } from '../../../lib/tools/cluster/run-watch.js';
import { type Plan, readPlan } from '../../../lib/tools/parts/index.js';
import { assertFailed, EXAMPLE, PROGRAM, ROOT, ROWS, run, TOKENS, TRINITY } from '../cli/support.js';
import { Cluster, endWithTests, needsRedis, type Program, until, withoutBatches } from './support.js';

const LOSS_FILE = join(ROOT, 'examples', 'my-losses.mjs');
const PASSWORD = 'hunter2/secret';
const { version } = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8'));

describe('queue', () => {
  let cluster: Cluster;
  // Those of the suite, which its tests share.
  let programs = 0;
  before(async function () {
    needsRedis(this);
    cluster = await Cluster.start(PASSWORD);
  });
  after(() => cluster?.end());
  beforeEach(() => {
    programs = cluster.programs;
  });
  // A test that fails must not leave its workers and runs to the next one.
  afterEach(async function () {
    await cluster.endPrograms(programs);
    if (this.currentTest?.isFailed()) await cluster.clear();
  });

  const plan = async (name: string, ...words: string[]): Promise<Plan> => {
    const file = join(cluster.folder, name);
    const made = await run('plan', ...words, '--out', file);
    assert.equal(made.code, 0, made.stderr);
    return readPlan(file, version);
  };
  const submitted = (of: Plan, follows = false) =>
    SubmittedRun.of(of, {
      follows,
      address: readAddress(cluster.url),
      parts: cluster.parts,
      onError: (error) => assert.fail(error),
    });

  for (const words of [
    ['evaluate', EXAMPLE, '--loss', 'gspo', '--clip-range', '0.3', '--json'],
    ['sweep', EXAMPLE, '--loss', 'gspo', '--clip-range', '0.2,0.3', '--json'],
    ['compare', EXAMPLE, '--loss', 'gspo', '--loss', 'ppo', '--json'],
  ])
    it(`lets ${words[0]} wait for a worker, and be left and joined`, async () => {
      const left = cluster.run(...words, '--shard-size', '60K');
      const [id] = /[0-9a-f]{16}/.exec(await left.says(/run [0-9a-f]{16}: /))!;
      await left.says(/No worker is connected/);
      left.signal('SIGINT');
      assert.equal((await left.end()).stdout, '');
      const worker = await cluster.worker();

      const joined = await cluster.run('join', id, '--json').end();
      assert.equal(joined.code, 0, joined.stderr);
      const alone = await run(...words);
      assert.deepEqual(withoutBatches(joined.stdout), withoutBatches(alone.stdout));
      assertFailed(
        await cluster.run('join', id).end(),
        1,
        /expected a run that nobody has cancelled or removed/,
      );
      await endAll([worker]);
    });

  it('submits a run again that the queue has lost', async () => {
    const of = await plan('lost.json', EXAMPLE, '--loss', 'ppo', '--shard-size', '60K');
    const run = await submitted(of);
    const client = cluster.client();
    try {
      await run.submit();
      let times = 0;
      const followed = run.follow(() => times++);
      await until('the run is followed', () => times > 0);
      await client.flushall();
      const worker = await cluster.worker();
      await followed;
      await run.remove();
      await endAll([worker]);
    } finally {
      client.disconnect();
      await run.close();
    }
  });

  it('submits a run again that somebody has removed', async () => {
    const submitter = cluster.run('evaluate', EXAMPLE, '--loss', 'ppo', '--shard-size', '60K', '--json');
    await submitter.says(/No worker is connected/);
    await cluster.clear();
    const worker = await cluster.worker();
    const { code, stderr } = await submitter.end();
    assert.equal(code, 0, stderr);
    await endAll([worker]);
  });

  it('lets the last submitter that follows a run remove it', async () => {
    const of = await plan('followed.json', EXAMPLE, '--loss', 'ppo', '--shard-size', '60K');
    const worker = await cluster.worker();
    const [one, other] = [await submitted(of, true), await submitted(of)];
    try {
      await one.submit();
      await one.follow(() => {});
      await other.remove();
      assert.equal(await one.isRemoved(), false);
      await one.close();
      await other.remove();
      assert.equal(await other.isRemoved(), true);
      assert.deepEqual(readdirSync(cluster.parts), []);
    } finally {
      await one.close();
      await other.close();
    }
    await endAll([worker]);
  });

  it('begins a run again whose job was lost after a shard had failed', async () => {
    const file = join(cluster.folder, 'moved.jsonl');
    writeFileSync(file, ROWS.map((row) => JSON.stringify(row)).join('\n'));
    const of = await plan('stray.json', file, '--loss', 'ppo', '--shard-size', '60K');
    const worker = await cluster.worker();
    const run = await submitted(of);
    const queue = new Queue(RUNS, { connection: readAddress(cluster.url).connection });
    try {
      renameSync(file, `${file}.away`);
      await run.submit();
      await assert.rejects(
        run.follow(() => {}),
        /after 5 tries/,
      );
      await queue.remove(runId(run.id), { removeChildren: false });
      renameSync(`${file}.away`, file);
      await run.submit();
      let ended = false;
      const followed = run
        .follow(() => {})
        .finally(() => {
          ended = true;
        });
      await until('the run has ended', () => ended);
      await followed;
      await run.remove();
    } finally {
      await queue.close();
      await run.close();
    }
    await endAll([worker]);
  });

  it('gives its result without a queue that is gone', async () => {
    const of = await plan('gone.json', EXAMPLE, '--loss', 'ppo', '--shard-size', '60K');
    const worker = await cluster.worker();
    const subjects = await plannedSubjects(join(cluster.folder, 'gone.json'), of, new Command());
    const { end } = await runPlan(of, subjects, {
      ...{ address: readAddress(cluster.url), parts: cluster.parts, quiet: true, submits: true },
      ...{ show: () => ({ json: () => ({}), csv: () => '', text: () => '' }), report: undefined },
    });
    await endAll([worker]);
    await cluster.stopServer();
    try {
      await end();
    } finally {
      await cluster.startServer();
    }
    await cluster.clear();
  });

  it('refuses what it can before it reads the files', async () => {
    const bad = join(cluster.folder, 'bad.jsonl');
    writeFileSync(bad, '{');
    for (const [words, says] of [
      [['--loss', 'ppo', '--report', join(cluster.folder, 'none', 'r.html')], /--report .*can be written/],
      [['--loss-file', LOSS_FILE, '--loss', 'penalised'], /workers load no code/],
    ] as const)
      assertFailed(await cluster.run('evaluate', bad, ...words).end(), 2, says);
  });

  it('adds no shard twice if the worker that adds them is lost meanwhile', async () => {
    const of = await plan('twice.json', EXAMPLE, '--loss', 'ppo', '--shard-size', '60K');
    const worker = await cluster.worker([], { name: 'adding', part: '^compute' });
    const run = await submitted(of);
    const queue = new Queue(RUNS, { connection: readAddress(cluster.url).connection });
    try {
      await run.submit();
      await cluster.held('adding');
      // As if the worker had been lost before it could note what it had added.
      await (await queue.getJob(runId(run.id)))!.updateData({ run: run.id, begun: 0 });
      cluster.release('adding');
      await run.follow(() => {});
      await run.remove();
    } finally {
      await queue.close();
      await run.close();
    }
    // It tells what it has done after the queue knows it.
    await endAll([worker]);
    const done = [...worker.stderr.matchAll(/: (\w+ \d+): \d+ rows/g)].map(([, job]) => job!);
    assert.equal(done.length, 2 * of.shards.length + 1, worker.stderr);
    assert.equal(new Set(done).size, done.length, worker.stderr);
  });

  describe('with a worker', () => {
    let worker: Program;
    before(async () => {
      worker = await cluster.worker(['--concurrency', '2']);
    });
    after(() => endAll([worker]));

    it('computes several runs at once', async () => {
      const runs = [
        ['evaluate', '--loss', 'ppo'],
        ['evaluate', '--algorithm', 'rloo', '--skip-bad-rows'],
        ['evaluate', '--loss-expr', '-A*r*scale', '--set', 'scale=2'],
        ['evaluate', '--config', TRINITY],
        ['sweep', '--algorithm', 'grpo', '--kl-coef', '0.1,0.2', '--advantage-fn', 'grpo,rloo'],
        ['compare', '--loss', 'ppo', '--loss', 'gspo', '--algorithm', 'grpo', '--config', TRINITY],
      ].map(([command, ...subject]) => [command!, EXAMPLE, ...subject, '--json']);
      const results = await Promise.all(
        runs.map((words) => cluster.run(...words, '--shard-size', '60K').end()),
      );
      for (const [i, { code, stdout, stderr }] of results.entries()) {
        assert.equal(code, 0, stderr);
        assert.deepEqual(withoutBatches(stdout), withoutBatches((await run(...runs[i]!)).stdout));
      }
    });

    it('gives each of several submitters the result of their run', async () => {
      const words = ['evaluate', EXAMPLE, '--loss', 'cispo', '--json'];
      const alone = withoutBatches((await run(...words)).stdout);
      const submitters = [1, 2, 3].map(() => cluster.run(...words, '--shard-size', '60K'));
      for (const { code, stdout, stderr } of await Promise.all(submitters.map((each) => each.end()))) {
        assert.equal(code, 0, stderr);
        assert.deepEqual(withoutBatches(stdout), alone);
      }
      assert.deepEqual(readdirSync(cluster.parts), []);
    });

    it('reports the progress over all workers', async () => {
      const of = await plan('progress.json', EXAMPLE, '--loss', 'ppo', '--shard-size', '60K');
      const run = await submitted(of);
      const seen: RunProgress[] = [];
      try {
        await run.submit();
        await run.follow((progress) => seen.push(progress));
        const jobs = of.shards.length;
        assert.deepEqual(seen.at(-1), {
          ...{ phase: 'compute', jobs, done: jobs, rows: ROWS.length, tokens: TOKENS },
          ...{ retried: 0, failed: 0, workers: 1 },
        });
        assert.ok(seen.every(({ done, jobs }) => done <= jobs));

        // A run that has ended begins again, but the shards have parts.
        const parts = () => readdirSync(runFolder(cluster.parts, run.id)).sort();
        const before = parts();
        assert.ok(before.includes('compute-00001.part'), String(before));
        rmSync(join(runFolder(cluster.parts, run.id), 'compute-00001.part'));
        await run.submit();
        await run.follow(() => {});
        assert.deepEqual(parts(), before);
        await run.remove();
        assert.deepEqual(readdirSync(cluster.parts), []);
      } finally {
        await run.close();
      }
    });

    for (const [command, ...subjects] of [
      ['evaluate', '--loss', 'ppo'],
      ['compare', '--loss', 'ppo', '--algorithm', 'grpo'],
    ])
      it(`writes the report of merged parts for ${command}`, async () => {
        const folder = mkdtempSync(join(cluster.folder, 'report-'));
        const file = (name: string) => join(folder, name);
        const words = [EXAMPLE, ...subjects, '--shard-size', '60K'];
        const submitted = cluster.run(command!, ...words, '--report', file('one.html'));
        const { code, stderr } = await submitted.end();
        assert.equal(code, 0, stderr);
        for (const words of [
          ['plan', EXAMPLE, ...subjects, '--shard-size', '60K', '--for-report', '--out', file('plan.json')],
          ['run', file('plan.json'), '--out', file('parts')],
          ['merge', file('plan.json'), file('parts'), '--report', file('other.html')],
        ])
          assert.equal((await run(...words)).code, 0);
        assert.equal(readFileSync(file('one.html'), 'utf8'), readFileSync(file('other.html'), 'utf8'));
      });

    it('shows one progress bar over all workers in a terminal', async function () {
      if (spawnSync('script', ['--version']).error) this.skip();
      const words = ['evaluate', EXAMPLE, '--loss', 'ppo', '--shard-size', '1'];
      const command = [PROGRAM, ...words, '--queue', cluster.url, '--parts', cluster.parts];
      const quoted = [process.execPath, ...command].map((word) => `'${word}'`).join(' ');
      // The bar is cut at the width of the terminal.
      const wide = `stty cols 160; ${quoted}`;
      const terminal = spawn('script', ['-qec', wide, '/dev/null'], { detached: true });
      endWithTests(terminal);
      let shown = '';
      terminal.stdout.setEncoding('utf8').on('data', (text: string) => {
        shown += text;
      });
      const [code] = await once(terminal, 'close');
      assert.equal(code, 0, shown);
      assert.match(shown, /computing .* rows \| .* tokens\/s \| .* left \| \d+\/256 shards, 1 worker/);
    });

    it('fails a run with the file and the row of a shard that fails five times', async () => {
      const file = join(cluster.folder, 'poisoned.jsonl');
      const lines = ROWS.slice(0, 40).map((row) => JSON.stringify(row));
      lines[30] = JSON.stringify({ ...ROWS[30], logprobs: ['x'] });
      writeFileSync(file, lines.join('\n'));
      const words = ['evaluate', file, '--loss', 'ppo', '--shard-size', '20K'];
      const failed = await cluster.run(...words).end();
      assertFailed(failed, 1, /error: run \w+, shard 2, count after 5 tries: .*poisoned\.jsonl, line 31: /);
      await worker.says(/count 2 failed, try 5: .*line 31/);

      // The shards that nobody needs any more are gone.
      const client = cluster.client();
      try {
        await until('none waits', async () => (await client.llen(`bull:${SHARDS}:wait`)) === 0);
      } finally {
        client.disconnect();
      }
      const [id] = /[0-9a-f]{16}/.exec(failed.stderr)!;
      assertFailed(await cluster.run('join', id).end(), 1, /after 5 tries: .*line 31/);

      // When the file is right again, its plan is another one.
      lines[30] = JSON.stringify(ROWS[30]);
      writeFileSync(file, lines.join('\n'));
      const right = await cluster.run(...words, '--json').end();
      assert.equal(right.code, 0, right.stderr);
      assert.equal(JSON.parse(right.stdout).rows, 40);
    });

    it('tells of a job that is not valid', async () => {
      const queue = new Queue(SHARDS, { connection: readAddress(cluster.url).connection });
      try {
        const job = await queue.add('count', null, { attempts: 1 });
        await worker.says(/^a job that is not valid failed, try 1: a job of policy-loss-shards: expected/m);
        assert.doesNotMatch(worker.stderr, /Cannot/);
        await job.remove();
      } finally {
        await queue.close();
      }
    });

    it('refuses jobs and plans that name code or foreign folders', async () => {
      const of = await plan('refused.json', EXAMPLE, '--loss', 'ppo', '--shard-size', '60K');
      const queue = new Queue(RUNS, { connection: readAddress(cluster.url).connection });
      try {
        for (const [id, data, says] of [
          ['outside', { run: '../../elsewhere0', begun: 0 }, /run: expected 16 hexadecimal digits/],
          [
            'none',
            { run: 'fedcba9876543210', begun: 0 },
            /expected a run that nobody has cancelled or removed/,
          ],
          ['forged', { run: '0123456789abcdef', begun: 0 }, /expected the plan 0123456789abcdef…, got/],
        ] as const) {
          const folder = join(cluster.parts, '0123456789abcdef');
          mkdirSync(folder, { recursive: true });
          writeFileSync(join(folder, 'plan.json'), readFileSync(join(cluster.folder, 'refused.json')));
          const job = await queue.add('run', data, { jobId: id, attempts: 1 });
          await until('the job fails', async () => (await job.getState()) === 'failed');
          assert.match((await queue.getJob(id))!.failedReason!, says);
        }
      } finally {
        await queue.close();
      }
      await assert.rejects(storedPlan(cluster.parts, '..', version), /expected the name of a run/);
      assert.notEqual(runId('0123456789abcdef'), of.hash);
    });
  });

  for (const [what, send] of [
    ['SIGTERM', (worker: Program) => worker.signal('SIGTERM')],
    ['Ctrl-C, which its processes get too,', (worker: Program) => worker.signalAll('SIGINT')],
  ] as const)
    it(`ends a worker at ${what} when its shard is done`, async () => {
      const worker = await cluster.worker([], { name: what, part: '^count' });
      const submitter = cluster.run('evaluate', EXAMPLE, '--loss', 'ppo', '--shard-size', '60K', '--json');
      const [, shard] = /count-0*(\d+)\.part/.exec(await cluster.held(what))!;
      send(worker);
      await worker.says(/ending after the shards in progress/);
      cluster.release(what);
      const { code, stderr } = await worker.end();
      assert.equal(code, 0, stderr);
      assert.match(stderr, new RegExp(`: count ${shard}: \\d+ rows`));
      assert.equal([...stderr.matchAll(/: count \d+:/g)].length, 1);
      const next = await cluster.worker();
      assert.equal((await submitter.end()).code, 0);
      await endAll([next]);
    });

  it('ends a worker at once at the second signal', async () => {
    const lock = ['--lock-seconds', '3'];
    const worker = await cluster.worker(lock, { name: 'twice', part: '^count' });
    const submitter = cluster.run('evaluate', EXAMPLE, '--loss', 'ppo', '--shard-size', '60K', '--json');
    await cluster.held('twice');
    worker.signal('SIGTERM');
    await worker.says(/ending/);
    worker.signal('SIGTERM');
    await until('the worker ends', () => worker.hasEnded);
    await until('the process of its shard ends', () => !worker.hasProcesses);
    const next = await cluster.worker(lock);
    assert.equal((await submitter.end()).code, 0);
    await endAll([next]);
  });

  it('shows no password', async () => {
    const wrong = cluster.url.replace(encodeURIComponent(PASSWORD), 'swordfish');
    for (const url of [
      wrong,
      `redis://:swordfish@127.0.0.1:1`,
      'redis://:swordfish@host:port',
      'swordfish',
    ]) {
      const words = ['--queue', url, '--parts', cluster.parts];
      for (const command of [['worker'], ['evaluate', EXAMPLE, '--loss', 'ppo']]) {
        const failed = await run(...command, ...words);
        assert.ok(failed.code === 1 || failed.code === 2, failed.stderr);
        assert.match(failed.stderr, /queue/);
        assert.doesNotMatch(failed.stdout + failed.stderr, /swordfish/);
      }
    }
  });
});

/** Ends workers, and asserts that they have ended well and shown no password. */
async function endAll(workers: readonly Program[]): Promise<void> {
  for (const worker of workers) worker.signal('SIGTERM');
  for (const worker of workers) {
    const { code, stderr } = await worker.end();
    assert.equal(code, 0, stderr);
    assert.doesNotMatch(stderr, /hunter2/);
  }
}
