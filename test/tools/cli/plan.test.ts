/**
 * Tests `policy-loss plan`, `run` and `merge` on the command line: that they take the functions and options of `evaluate`
 * and print its result, and what they refuse.
 */
import assert from 'node:assert/strict';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import {
  assertFailed,
  EXAMPLE,
  Files,
  fails,
  ROOT,
  ROWS,
  resultOf,
  run,
  runJson,
  runProcess,
  TRINITY,
} from './support.js';

describe('policy-loss plan, run and merge', () => {
  let files: Files;
  let plan: string;
  let parts: string;
  beforeEach(() => {
    files = new Files();
    plan = files.path('plan.json');
    parts = files.path('parts');
  });
  afterEach(() => files.remove());

  /** Plans with shards of 50 kB, runs all of them, and returns what merge prints with --json. */
  async function merged(words: readonly string[], more: readonly string[] = []) {
    const { shards } = await runJson('plan', ...words, '--shard-size', '50K', '--out', plan);
    assert.ok(shards > 5);
    await runJson('run', plan, '--out', parts, ...more);
    const { batches, ...result } = await runJson('merge', plan, parts, ...more);
    assert.equal(batches, shards);
    return result;
  }

  for (const [what, words] of Object.entries({
    'a loss with options': ['--loss', 'ppo', '--clip-range', '0.3', '--loss-agg-mode', 'seq-mean-token-mean'],
    'an algorithm with options': [
      '--algorithm',
      'grpo',
      '--kl-coef',
      '0.01',
      '--advantage-std-threshold',
      '0.35',
    ],
    'an algorithm whose metrics are means over rows': [
      '--algorithm',
      'on_policy_distill',
      '--column',
      'teacher_logprobs=ref_logprobs',
    ],
    'an expression': ['--loss-expr', 'mine: max(-A*r, -A*clip(r, 1-low, 1+low))', '--set', 'low=0.2'],
    'a configuration': ['--config', TRINITY],
    'renamed columns': ['--loss', 'sft', '--column', 'logprobs=old_logprobs', '--batch-tokens', '100000'],
  }))
    it(`print the result of evaluate for ${what}`, async () => {
      assert.deepEqual(await merged([EXAMPLE, ...words]), await runJson('evaluate', EXAMPLE, ...words));
    });

  it('take the configuration from the plan, whose file is no longer needed', async () => {
    const config = files.path('trinity.yaml');
    copyFileSync(TRINITY, config);
    await runJson('plan', EXAMPLE, '--config', config, '--shard-size', '1G', '--out', plan);
    rmSync(config);
    await runJson('run', plan, '--shard', '0', '--out', parts);
    assert.deepEqual(
      await runJson('merge', plan, parts),
      await runJson('evaluate', EXAMPLE, '--config', TRINITY),
    );
  });

  it('print tables and CSV', async () => {
    const words = ['--loss', 'ppo', '--shard-size', '100k', '--out', plan];
    const { stdout } = await run('plan', EXAMPLE, ...words);
    for (const line of [/^function +ppo$/m, /^files +1$/m, /^shards +4$/m, /^phases +count, then compute$/m])
      assert.match(stdout, line);
    const ran = await run('run', plan, '--out', parts);
    for (const line of [/^shards +4$/m, /^rows +256$/m, /^tokens +9164$/m, /^files written +8$/m])
      assert.match(ran.stdout, line);
    assert.match((await run('merge', plan, parts)).stdout, /^pg_loss +-0\.\d+$/m);
    assert.match(
      (await run('plan', EXAMPLE, ...words, '--csv')).stdout,
      /^file,hash,name,files,bytes,shards\n/,
    );
    const csv = await run('run', plan, '--shard', '2', '--out', parts, '--csv');
    assert.match(csv.stdout, /^phase,shard,rows,tokens,files\ncompute,2,\d+,\d+,.*compute-00002\.part\n$/);
    assert.match((await run('merge', plan, parts, '--csv')).stdout, /^name,loss,rows,tokens,/);
  });

  it('count the rows that are skipped', async () => {
    const rows = ROWS.map((row, i) => (i % 50 === 7 ? 'no JSON' : row));
    const input = files.write('bad.jsonl', rows);
    const words = [input, '--loss', 'ppo', '--skip-bad-rows', '--quiet'];
    await run('plan', ...words, '--shard-size', '40K', '--out', plan);
    const ran = await run('run', plan, '--out', parts);
    assert.match(ran.stderr, /skipped: .*bad\.jsonl, line 8: /);
    const { batches, ...result } = await runJson('merge', plan, parts);
    assert.equal(result.skipped, 5);
    assert.deepEqual(result, await runJson('evaluate', ...words));
  });

  it('take a row that lacks a column for a bad one, even if it is the first one of its shard', async () => {
    const rows = [...ROWS.slice(0, 4), { ...ROWS[4]!, task_id: null }, ...ROWS.slice(5, 9)];
    for (const [name, lines] of Object.entries({ late: rows, early: [{ logprobs: 'none' }, ...rows] })) {
      const input = files.write(`${name}.jsonl`, lines);
      const words = [input, '--loss', 'ppo', '--batch-tokens', '1', '--skip-bad-rows', '--quiet'];
      await runJson('plan', ...words, '--shard-size', '1', '--out', plan);
      assert.equal((await run('run', plan, '--out', parts)).code, 0);
      const merged = await runJson('merge', plan, parts);
      assert.equal(merged.skipped, name === 'late' ? 1 : 2);
      assert.deepEqual(merged, await runJson('evaluate', ...words));
      rmSync(parts, { recursive: true });
    }
    const input = files.path('late.jsonl');
    const words = [input, '--loss', 'ppo', '--batch-tokens', '1'];
    await runJson('plan', ...words, '--shard-size', '1', '--out', plan);
    for (const each of [
      ['evaluate', ...words],
      ['run', plan, '--out', parts],
    ])
      await fails(
        1,
        each,
        /late\.jsonl, line 5: task_id: .* in every row or in none, got none here, but one in/,
      );
  });

  it('compute a shard only when all are counted, and do not count the only one', async () => {
    await runJson('plan', EXAMPLE, '--loss', 'sft', '--shard-size', '200K', '--out', plan);
    await fails(
      1,
      ['run', plan, '--shard', '1', '--out', parts],
      /parts: expected a part, or a folder of parts/,
    );
    await runJson('run', plan, '--phase', 'count', '--shard', '1', '--out', parts);
    await fails(
      1,
      ['run', plan, '--shard', '1', '--out', parts],
      /expected the parts of all 2 shards in the phase 'count', got none of shard 0\. Run it with --phase count/,
    );
    await fails(1, ['merge', plan, parts], /phase 'compute', got none of shards 0, 1/);
    await runJson('plan', EXAMPLE, '--loss', 'sft', '--out', plan);
    const counted = await runJson('run', plan, '--phase', 'count', '--out', files.path('other'));
    assert.deepEqual(counted.runs, []);
    await runJson('run', plan, '--shard', '0', '--out', files.path('other'));
    assert.deepEqual(
      await runJson('merge', plan, files.path('other')),
      await runJson('evaluate', EXAMPLE, '--loss', 'sft'),
    );
  });

  it('write gradients with the ids that the plan names', async () => {
    await runJson(
      'plan',
      EXAMPLE,
      '--loss',
      'ppo',
      '--gradients',
      'jsonl',
      '--ids',
      'task_id',
      '--out',
      plan,
    );
    const { runs } = await runJson('run', plan, '--out', parts);
    const out = files.path('all.jsonl');
    await runJson('gradients', EXAMPLE, '--loss', 'ppo', '--ids', 'task_id', '--out', out);
    const [, written] = runs[0].files;
    assert.equal(readFileSync(written, 'utf8'), readFileSync(out, 'utf8'));
  });

  it('compute a loss over the whole batch if there is only one shard', async () => {
    const words = [EXAMPLE, '--loss-expr', '-(A-batch_mean(A))*r'];
    await runJson('plan', ...words, '--out', plan);
    await runJson('run', plan, '--out', parts);
    assert.deepEqual(await runJson('merge', plan, parts), await runJson('evaluate', ...words));
    await runJson('plan', ...words, '--batch-tokens', '500', '--out', plan);
    await fails(2, ['run', plan, '--out', parts], /--batch-tokens: expected at least 9164/);
    for (const [more, says] of [
      [words, /reduces over all rows of a batch: --shard-size: expected one shard, .*got \d+ shards/],
      [[EXAMPLE, '--loss', 'ppo', '--masks', 'delta=4'], /ppo has a correction or masks: --shard-size/],
    ] as const)
      await fails(2, ['plan', ...more, '--shard-size', '50K', '--out', plan], says);
  });

  it('refuse bad usage', async () => {
    const loss = ['--loss', 'ppo'];
    await fails(2, ['plan', EXAMPLE, ...loss], /required option '-o, --out <file>'/);
    await fails(2, ['plan', EXAMPLE, '--out', plan], /one or more of --loss/);
    await fails(2, ['plan', EXAMPLE, ...loss, '--out', plan, '--shard-size', '1T'], /a number of bytes/);
    await fails(2, ['plan', EXAMPLE, ...loss, '--out', plan, '--shard-size', '0'], /a number of bytes/);
    await fails(2, ['plan', EXAMPLE, ...loss, '--out', plan, '--gradients', 'npz'], /Allowed choices/);
    await fails(2, ['plan', EXAMPLE, ...loss, '--out', plan, '--device', 'tpu'], /--device: expected 'cpu'/);
    await fails(
      2,
      ['plan', EXAMPLE, ...loss, '--loss', 'gspo', '--out', plan, '--gradients', 'parquet'],
      /--gradients: expected exactly one loss or algorithm, whose gradients to write, got 2/,
    );
    await runJson('plan', EXAMPLE, ...loss, '--out', plan);
    await fails(2, ['run', plan], /required option '-o, --out <folder>'/);
    await fails(
      2,
      ['run', plan, '--out', parts, '--shard', '1'],
      /--shard: expected a number from 0 to 0, got 1/,
    );
    await fails(2, ['run', plan, '--out', parts, '--shard', '-1'], /argument/);
    await fails(2, ['run', plan, '--out', parts, '--phase', 'sum'], /Allowed choices are count, compute/);
    await fails(1, ['run', EXAMPLE, '--out', parts], /rollouts\.jsonl: expected a plan/);
    assert.ok(!existsSync(parts));
  });

  it('refuse files that workers cannot read, and files without the columns', async () => {
    const words = ['--algorithm', 'grpo', '--out', plan];
    await fails(1, ['plan', files.path('none.jsonl'), ...words], /none\.jsonl: expected a readable file/);
    await fails(1, ['plan', files.write('empty.jsonl', []), ...words], /empty\.jsonl: expected rollouts/);
    const rows = ROWS.map(({ ref_logprobs: _, ...row }) => row);
    await fails(
      1,
      ['plan', files.write('unreferenced.jsonl', rows), ...words],
      /grpo: ref_logprobs: expected this column in every row/,
    );
    assert.ok(!existsSync(plan));
    const database = join(ROOT, 'test', 'tools', 'rollouts', 'fixtures', 'rollouts.sqlite');
    const copy = files.path('rollouts.sqlite');
    copyFileSync(database, copy);
    const sqlite = [`${copy}#rollouts`, '--loss', 'sft', '--out', plan];
    await runJson('plan', ...sqlite);
    await runJson('run', plan, '--out', parts);
    assert.deepEqual(await runJson('merge', plan, parts), await runJson('evaluate', ...sqlite.slice(0, 3)));
  });

  it('never write to a file that they read', async () => {
    const input = files.path('in.jsonl');
    copyFileSync(EXAMPLE, input);
    await fails(2, ['plan', input, '--loss', 'ppo', '--out', input], /--out .*: expected a file other than/);
    mkdirSync(parts);
    const own = join(parts, 'gradients-00000.jsonl');
    copyFileSync(EXAMPLE, own);
    await runJson('plan', own, '--loss', 'ppo', '--gradients', 'jsonl', '--out', plan);
    await fails(2, ['run', plan, '--out', parts], /gradients-00000\.jsonl: expected a file other than/);
    assert.deepEqual(readFileSync(own), readFileSync(EXAMPLE));
  });

  it('need the losses of a module again, which must not have changed', async () => {
    // A loss that the program registers stays registered in its process, so each command has its own.
    mkdirSync(join(ROOT, 'build'), { recursive: true });
    const folder = mkdtempSync(join(ROOT, 'build', 'plan-'));
    const file = join(folder, 'losses.mjs');
    const write = (loss: string) =>
      writeFileSync(
        file,
        `import { defineLoss } from 'policy-loss';\nexport default defineLoss('mine', { loss: '${loss}' });\n`,
      );
    const json = async (...words: string[]) => resultOf(await runProcess(...words, '--json'));
    const own = ['--loss-file', file];
    try {
      write('-A*r');
      await json('plan', EXAMPLE, ...own, '--loss', 'mine', '--shard-size', '200K', '--out', plan);
      await json('run', plan, '--out', parts, ...own);
      const { batches, ...result } = await json('merge', plan, parts, ...own);
      assert.equal(batches, 2);
      assert.deepEqual(result, await json('evaluate', EXAMPLE, ...own, '--loss', 'mine'));
      assertFailed(await runProcess('run', plan, '--out', parts), 2, /unknown loss: .*got 'mine'/);
      write('-A*r*2');
      assertFailed(
        await runProcess('merge', plan, parts, ...own),
        1,
        /plan\.json: mine: expected the same program as when the plan was made/,
      );
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
