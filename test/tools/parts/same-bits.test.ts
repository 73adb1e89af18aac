/**
 * Tests that planning, running and merging gives the results of an evaluation in one process, to the last bit: for every
 * loss and algorithm, for files of several formats, for shards of any size, and in any order of the shards.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { ByteWriter, ParquetWriter } from 'hyparquet-writer';
import { ALGORITHM_TYPE, type ObjectiveConfig } from '../../../lib/index.js';
import { evaluateFiles, lossSubject, objectiveSubject } from '../../../lib/tools/parts/index.js';
import { writeGradients } from '../../../lib/tools/rollouts/index.js';
import { type Columns, drawRows, lossesInParts } from '../../support/rollout-rows.js';
import { Files } from '../cli/support.js';
import { assertSame, planned, settingsOf } from './support.js';

const algorithm = (name: string, config: ObjectiveConfig = {}, seed?: number) =>
  objectiveSubject(ALGORITHM_TYPE.get(name).objective(config), seed);

/** Writes rows as Parquet with row groups of the given number of rows. */
function parquet(rows: readonly Columns[], rowGroupSize: number): Uint8Array {
  const floats = (name: string) => [
    { name, converted_type: 'LIST', repetition_type: 'REQUIRED', num_children: 1 } as const,
    { name: 'list', repetition_type: 'REPEATED', num_children: 1 } as const,
    { name: 'element', type: 'FLOAT', repetition_type: 'REQUIRED' } as const,
  ];
  const lists = ['logprobs', 'old_logprobs', 'ref_logprobs'];
  const writer = new ByteWriter();
  const file = new ParquetWriter({
    writer,
    schema: [
      { name: 'rows', num_children: lists.length + 2 },
      ...lists.flatMap((name) => floats(name).map((element) => ({ ...element, name: element.name }))),
      { name: 'reward', type: 'DOUBLE', repetition_type: 'REQUIRED' },
      { name: 'task_id', type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: 'REQUIRED' },
    ],
  });
  file.write({
    columnData: [...lists, 'reward', 'task_id'].map((name) => ({ name, data: rows.map((row) => row[name]) })),
    rowGroupSize,
  });
  file.finish();
  return new Uint8Array(writer.getBuffer());
}

describe('plan, run and merge', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());
  let count = 0;
  const draw = (seed: number, rows: number, change: (row: Columns, b: number) => Columns = (row) => row) =>
    files.write(`${count++}.jsonl`, drawRows(seed, rows).map(change));

  it('give the bits of evaluate for every loss and aggregation', async () => {
    // The rows of pairs go on from file to file.
    const swapped = (row: Columns) => ({ ...row, label: !row.label, chosen: !row.chosen });
    const inputs = [draw(1, 30), draw(2, 1), draw(3, 41, swapped)];
    const all = lossesInParts();
    for (const subjects of [all.filter(({ pairs }) => pairs), all.filter(({ pairs }) => !pairs)])
      for (const shardSize of [1, 5000, 40_000, 2 ** 30])
        await assertSame(files, inputs, subjects, { shardSize, seed: shardSize });
  });

  it('give the bits of evaluate for every algorithm', async () => {
    const subjects = ALGORITHM_TYPE.names().map((name) =>
      algorithm(name, { entropy_loss_fn_args: { entropy_coef: 0.01 } }),
    );
    const inputs = [draw(4, 50), draw(5, 32)];
    for (const shardSize of [1, 7000, 2 ** 30])
      await assertSame(files, inputs, subjects, { shardSize, batchTokens: 40 });
  });

  it('give the bits of evaluate if rows are dropped, repeated or drawn, and with a KL penalty', async () => {
    const grpo = (args: Columns) => algorithm('grpo', { advantage_fn_args: args }, 7);
    const subjects = [
      grpo({ std_threshold: 1 }),
      grpo({ std_threshold: 1.05, duplicate_experiences: true }),
      grpo({ rank_penalty: 0.25 }),
      algorithm('rec', { advantage_fn_args: { drop: 'balance' } }, 3),
      algorithm('multi_step_grpo', { advantage_fn_args: { enable_step_norm: true, std_threshold: 0.8 } }),
      algorithm('rloo', { kl_penalty_fn: 'k2', kl_penalty_fn_args: { kl_coef: 0.2 } }),
      algorithm('rloo', {
        advantage_fn: 'remax',
        kl_penalty_fn: 'k1',
        kl_penalty_fn_args: { kl_coef: 0.3 },
      }),
    ];
    const inputs = [draw(7, 90)];
    for (const shardSize of [1, 3000, 20_000]) await assertSame(files, inputs, subjects, { shardSize });
    const tokenRewards = draw(8, 70, (row) => ({
      ...row,
      token_level_rewards: (row.logprobs as number[]).map((x, t) => (t % 3 ? 0 : x)),
    }));
    await assertSame(files, [tokenRewards], subjects, { shardSize: 9000 });
  });

  it('keep pairs of rows together, also across files', async () => {
    const subjects = [lossSubject('dpo', {}), algorithm('dpo')];
    const rows = drawRows(9, 60);
    const text = rows.map((row) => JSON.stringify(row));
    const inputs = [
      files.write('pairs-1.jsonl', ['', text[0]!, '   ', ...text.slice(1, 17)]),
      files.write('pairs-2.jsonl', text.slice(17, 18)),
      files.path('pairs-3.jsonl.gz'),
      files.write('pairs-4.jsonl', text.slice(31)),
    ];
    writeFileSync(inputs[2]!, gzipSync(text.slice(18, 31).join('\n')));
    const shards = [];
    for (const shardSize of [1, 4000, 30_000])
      shards.push(await assertSame(files, inputs, subjects, { shardSize }));
    assert.ok(shards[0]! >= 20 && shards[0]! <= 30, String(shards));
  });

  it('give the bits of evaluate for files of several formats, with groups in several files', async () => {
    const rows = drawRows(10, 80).map((row) => ({ ...row, task_id: `${row.task_id}, "quoted"` }));
    const columns = ['logprobs', 'old_logprobs', 'ref_logprobs', 'reward', 'task_id'];
    const plain = (part: readonly Columns[]) =>
      part.map((row) => Object.fromEntries(columns.map((name) => [name, row[name]])));
    const cell = (value: unknown) =>
      `"${(typeof value === 'string' ? value : JSON.stringify(value)).replaceAll('"', '""')}"`;
    const csv = plain(rows.slice(50, 60)).map((row) => columns.map((name) => cell(row[name])).join(','));
    const inputs = [
      files.write('a.jsonl', plain(rows.slice(0, 20))),
      files.path('b.jsonl.gz'),
      files.path('c.parquet'),
      files.write('d.csv', [columns.join(','), ...csv]),
      files.write('e.jsonl', plain(rows.slice(60))),
    ];
    writeFileSync(
      inputs[1]!,
      gzipSync(
        plain(rows.slice(20, 30))
          .map((row) => JSON.stringify(row))
          .join('\n'),
      ),
    );
    writeFileSync(inputs[2]!, parquet(rows.slice(30, 50), 3));
    const subjects = [lossSubject('ppo', {}), lossSubject('gspo', {}), algorithm('grpo'), algorithm('rloo')];
    // 20 and 20 lines, 7 row groups, and two files that are not cut.
    assert.equal(await assertSame(files, inputs, subjects, { shardSize: 1 }), 49);
    for (const shardSize of [2000, 10_000, 2 ** 30])
      await assertSame(files, inputs, subjects, { shardSize, batchTokens: 13 });
  });

  it("read trainers' lines and other files as a whole", async () => {
    const lines = drawRows(11, 12).map(({ logprobs, reward }, i) => ({
      token_ids: (logprobs as number[]).map((_, t) => t),
      loss_mask: (logprobs as number[]).map((_, t) => Number(t > 0)),
      inference_logprobs: logprobs,
      trainer_logprobs: logprobs,
      advantages: (logprobs as number[]).map(() => reward),
      reward,
      step: 1,
      i,
    }));
    const input = files.write('prime-rl.jsonl', lines);
    assert.equal(await assertSame(files, [input], [lossSubject('sft', {})], { shardSize: 1 }), 1);
  });

  it('number groups by their ids, whatever their types', async () => {
    const ids = [1, '1', 2 ** 53, '9007199254740992', 'é\u0000"', -0.5, 1e300];
    const input = draw(12, 42, (row, b) => ({ ...row, task_id: ids[b % ids.length] }));
    await assertSame(files, [input], [algorithm('grpo'), algorithm('rloo')], { shardSize: 1 });
  });

  it('skip the same bad rows, even if a shard has no other', async () => {
    const rows = drawRows(13, 30).map((row) => JSON.stringify(row));
    for (const bad of [3, 4, 29]) rows[bad] = '{"logprobs": "none"}';
    const input = files.write('bad.jsonl', rows);
    const subjects = [lossSubject('ppo', {}), algorithm('grpo')];
    for (const shardSize of [1, 2000])
      await assertSame(files, [input], subjects, { shardSize, skipBadRows: true });
    await assertSame(files, [input], [lossSubject('dpo', {})], { shardSize: 1, skipBadRows: true });
  });

  it('give the same numbers if a loss and its gradient are not finite', async () => {
    const text = drawRows(14, 20).map((row) => JSON.stringify(row));
    for (const row of [2, 12])
      text[row] = text[row]!.replace(/"logprobs":\[-?[\d.e-]+/, '"logprobs":[-1e999');
    const input = files.write('infinite.jsonl', text);
    const subjects = [lossSubject('sft', {}), lossSubject('ppo', {}), algorithm('grpo')];
    const { subjects: results } = await planned(files.directory, [input], subjects, { shardSize: 1 });
    assert.ok(!Number.isFinite(results[0]!.loss));
    await assertSame(files, [input], subjects, { shardSize: 1 });
  });

  it('give the bits of the cosines between all gradients, whatever the shards and their order', async () => {
    const subjects = [...['ppo', 'gspo', 'sft', 'ppo'].map((name) => lossSubject(name)), algorithm('grpo')];
    const zero = objectiveSubject(
      ALGORITHM_TYPE.get('sft').objective({
        policy_loss_fn: 'dpo',
        policy_loss_fn_args: { beta: 0 },
        kl_loss_fn_args: { kl_coef: 0 },
      }),
    );
    const inputs = [draw(21, 50), draw(22, 1), draw(23, 40)];
    for (const shardSize of [1, 900, 7000, 2 ** 30])
      for (const seed of [1, 2])
        await assertSame(files, inputs, subjects, { shardSize, seed, batchTokens: 31, compares: true });
    for (const shardSize of [1, 2 ** 30])
      await assertSame(files, [draw(24, 30)], [...subjects, zero], { shardSize, compares: true });
  });

  it('compute more subjects than can be computed together, and pass on their gradients in order', async () => {
    const subjects = Array.from({ length: 1030 }, (_, i) => lossSubject(['sft', 'ppo'][i % 2]!));
    const grads: Float32Array[] = [];
    const { subjects: results } = await evaluateFiles([draw(25, 2)], subjects, settingsOf({}), (_, parts) => {
      grads.push(...parts.map(({ grad }) => grad.slice()));
    });
    assert.equal(grads.length, subjects.length);
    for (const [i, { loss }] of results.entries()) {
      assert.equal(loss, results[i % 2]!.loss);
      assert.deepEqual(grads[i], grads[i % 2]);
    }
  });

  it('write the gradients of `gradients`, in one file per shard', async () => {
    const input = draw(15, 33, (row, b) => ({ ...row, id: b }));
    const subjects = [algorithm('grpo', { entropy_loss_fn_args: { entropy_coef: 0.01 } })];
    const gradients = { ending: 'jsonl', ids: ['id', 'task_id'], padded: false, dtype: 'float32' as const };
    const all = files.path('gradients.jsonl');
    const writer = writeGradients(all, { ids: gradients.ids });
    await evaluateFiles([input], subjects, settingsOf({ gradients }), (part, [given]) =>
      writer.add(part, given!.grad, given!.gradEntropy),
    );
    await writer.close();
    for (const shardSize of [1, 6000, 2 ** 30]) {
      const { folder, shards } = await planned(files.directory, [input], subjects, { shardSize, gradients });
      const names = readdirSync(folder).filter((name) => name.startsWith('gradients-'));
      assert.equal(names.length, shards);
      const text = names.sort().map((name) => readFileSync(`${folder}/${name}`, 'utf8'));
      assert.equal(text.join(''), readFileSync(all, 'utf8'));
    }
  });

  it('cut files into the same shards whatever the number of workers, and at most at each line', async () => {
    const input = draw(16, 25);
    const { plan } = await planned(files.directory, [input], [lossSubject('sft', {})], { shardSize: 1 });
    assert.deepEqual(
      plan.shards.map((pieces) => pieces.map(({ line }) => line)),
      Array.from({ length: 25 }, (_, i) => [i + 1]),
    );
    const again = await planned(files.directory, [input], [lossSubject('sft', {})], {
      shardSize: 1,
      seed: 9,
    });
    assert.equal(again.plan.hash, plan.hash);
    const partsOf = (folder: string) =>
      readdirSync(folder).map((name) => [name, readFileSync(`${folder}/${name}`, 'utf8')]);
    const { folder } = await planned(files.directory, [input], [lossSubject('sft', {})], { shardSize: 1 });
    assert.deepEqual(partsOf(again.folder), partsOf(folder));
  });
});
