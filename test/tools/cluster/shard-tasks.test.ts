/** Tests how a worker's process runs the jobs of shards, and which jobs and plans it refuses. */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ShardTasks } from '../../../lib/tools/cluster/index.js';
import { runOf } from '../../../lib/tools/cluster/jobs.js';
import { checkNoCode, runFolder, storePlan } from '../../../lib/tools/cluster/run-folder.js';
import {
  evaluateFiles,
  lossSubject,
  makePlan,
  mergePlan,
  type Plan,
} from '../../../lib/tools/parts/index.js';
import { drawRows } from '../../support/rollout-rows.js';
import { Files } from '../cli/support.js';
import { planOf, settingsOf, VERSION } from '../parts/support.js';

describe('jobs of shards', () => {
  let files: Files;
  let parts: string;
  let input: string;
  const subject = lossSubject('ppo');
  before(() => {
    files = new Files();
    input = files.write('rows.jsonl', drawRows(1, 30));
  });
  beforeEach(() => {
    parts = mkdtempSync(files.path('parts-'));
  });
  after(() => files.remove());

  const stored = async (plan: Plan) => {
    await storePlan(parts, plan);
    return runOf(plan);
  };
  const planned = (shardSize: number) => planOf(files.directory, [input], [subject], { shardSize });
  const tasks = () =>
    new ShardTasks({
      parts,
      program: VERSION,
      subjectsOf: async () => [subject],
      settingsOf: () => settingsOf({}),
    });

  it('give the parts of a plan', async () => {
    const plan = await planned(2000);
    const run = await stored(plan);
    const worker = tasks();
    const shards = plan.shards.map((_, shard) => shard);
    let rows = 0;
    for (const shard of shards) rows += (await worker.run({ run, phase: 'count', shard })).rows;
    assert.equal(rows, 30);
    const merged = await worker.run({ run, phase: 'merge', shard: 0 });
    for (const shard of shards) await worker.run({ run, phase: 'compute', shard });
    const { subjects, tokens } = await mergePlan(plan, [subject], [runFolder(parts, run)]);
    const alone = await evaluateFiles([input], [subject], settingsOf({}));
    assert.deepEqual(merged, { rows: 30, tokens });
    assert.equal(subjects[0]!.loss, alone.subjects[0]!.loss);
    assert.equal(subjects[0]!.gradNorm, alone.subjects[0]!.gradNorm);
  });

  it('compute no shard again that has a part, unless the part is damaged', async () => {
    const run = await stored(await planned(2000));
    const job = { run, phase: 'count', shard: 1 };
    const done = await tasks().run(job);
    const file = join(runFolder(parts, run), 'count-00001.part');
    const [text, { ino }] = [readFileSync(file, 'utf8'), statSync(file)];
    assert.deepEqual(await tasks().run(job), done);
    assert.equal(statSync(file).ino, ino);
    writeFileSync(file, text.slice(0, -9));
    assert.deepEqual(await tasks().run(job), done);
    assert.equal(readFileSync(file, 'utf8'), text);
  });

  it('of many runs take turns', async () => {
    const runs: string[] = [];
    for (const size of [1000, 2000, 3000, 4000]) runs.push(await stored(await planned(size)));
    assert.equal(new Set(runs).size, runs.length);
    const worker = tasks();
    for (const shard of [0, 1])
      for (const run of runs) assert.ok((await worker.run({ run, phase: 'count', shard })).rows > 0);
    for (const run of runs)
      assert.deepEqual(readdirSync(runFolder(parts, run)).sort(), [
        'count-00000.part',
        'count-00001.part',
        'plan.json',
      ]);
  });

  it('are refused if they are invalid', async () => {
    const run = await stored(await planned(2000));
    const job = { run, phase: 'count', shard: 0 };
    for (const [data, says] of [
      [null, /a job of policy-loss-shards: expected an object/],
      [{ ...job, run: `../${run.slice(3)}` }, /run: expected 16 hexadecimal digits/],
      [{ ...job, run: run.toUpperCase().replace(/^./, 'G') }, /run: expected 16 hexadecimal digits/],
      [{ ...job, phase: 'whole' }, /phase: expected 'count' or 'compute' or 'merge'/],
      [{ ...job, shard: -1 }, /shard: expected a whole number/],
      [{ ...job, shard: 1000 }, /expected a shard from 0 to \d+, got 1000/],
      [{ ...job, run: '0'.repeat(16) }, /expected a run that nobody has cancelled or removed/],
    ] as const)
      await assert.rejects(tasks().run(data), { name: 'LossError', message: says });
  });

  it('are refused if the plan has a loss of a --loss-file', async () => {
    const plan = await planned(2000);
    const { configuration, hash: _, ...rest } = plan;
    const withFunction = (choice: string) =>
      makePlan({
        ...rest,
        configuration: {
          ...configuration,
          functions: [{ choice, name: 'mine', options: [], program: 'a'.repeat(64) }],
        },
      });
    for (const choice of ['--loss', '--algorithm', '--config']) {
      const run = await stored(withFunction(choice));
      await assert.rejects(tasks().run({ run, phase: 'count', shard: 0 }), {
        code: 'ERR_INVALID_OPTION',
        message: new RegExp(
          `^${choice} mine: expected a loss of this package .*because workers load no code`,
        ),
      });
    }
    checkNoCode(withFunction('--loss-expr').configuration);
    rmSync(parts, { recursive: true });
  });
});
