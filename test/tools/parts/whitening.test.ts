/**
 * Tests that advantages that are whitened over the tokens of all rows, or weigh rows by their tokens, have the same bits
 * however the rows are divided into shards and parts.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  LossError,
  type Objective,
  type ObjectiveConfig,
} from '../../../lib/index.js';
import { evaluateFiles, objectiveSubject, type Subject } from '../../../lib/tools/parts/index.js';
import { streamRollouts, writeGradients } from '../../../lib/tools/rollouts/index.js';
import { assertPartsAddUp, evaluated } from '../../support/parts.js';
import { type Columns, drawRows } from '../../support/rollout-rows.js';
import { Files } from '../cli/support.js';
import { assertSame, planned, settingsOf } from './support.js';

const WHITENING = ADVANTAGE_FN.names().filter((name) => ADVANTAGE_FN.create(name).definition.whitens);

const objective = (name: string, config: ObjectiveConfig = {}): Objective =>
  ALGORITHM_TYPE.get(name).objective(config);

/** An objective with each advantage function that whitens, each algorithm with one, and OPO, which weighs rows. */
const OBJECTIVES: readonly Objective[] = [
  ...[...WHITENING, 'verl/opo'].map((advantage_fn) => objective('grpo', { advantage_fn })),
  ...ALGORITHM_TYPE.names()
    .map((name) => objective(name))
    .filter(({ advantageFn }) => advantageFn?.definition.whitens),
];

/** Objectives with penalties, discounts, and a loss that reads the advantages of masked tokens. */
const PENALISED: readonly Objective[] = WHITENING.flatMap((advantage_fn) => [
  objective('rloo', { advantage_fn, kl_penalty_fn: 'k2', kl_penalty_fn_args: { kl_coef: 0.2 } }),
  objective('rloo', {
    advantage_fn,
    kl_penalty_fn: 'k1',
    kl_penalty_fn_args: { kl_coef: 0.3, adaptive: true, target_kl: 0.1, horizon: 100 },
    policy_loss_fn_args: { enable_sequence_masking: true, delta_sequence_masking: 0.05 },
    ...('gamma' in ADVANTAGE_FN.get(advantage_fn).defaultArgs() && { advantage_fn_args: { gamma: 0.9 } }),
  }),
]);

const subjectsOf = (objectives: readonly Objective[]): Subject[] =>
  objectives.map((each) => objectiveSubject(each));

/** Draws rows of which some are longer than the tiles in which native code measures rows. */
function drawLongRows(seed: number, count: number): Columns[] {
  return drawRows(seed, count).map((row, b) => {
    if (b % 7 !== 3) return row;
    const times = 100 * (1 + (b % 5));
    const repeated = (value: unknown) =>
      Array.isArray(value) ? Array.from({ length: times }, () => value).flat() : value;
    return Object.fromEntries(Object.entries(row).map(([name, value]) => [name, repeated(value)]));
  });
}

const withTokenRewards = (row: Columns): Columns => ({
  ...row,
  token_level_rewards: (row.logprobs as number[]).map((x, t) => (t % 3 ? 0 : x)),
});

describe('advantages that are whitened', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());
  let count = 0;
  const write = (rows: readonly Columns[]) => files.write(`${count++}.jsonl`, rows);

  it('belong to the functions that are tested', () => {
    for (const name of ['ppo', 'reinforceplusplus', 'verl/gae', 'verl/gdpo'])
      assert.ok(WHITENING.includes(name));
    assert.ok(OBJECTIVES.some(({ algorithm }) => algorithm === 'ppo'));
  });

  it('have the same bits in parts of any size', async () => {
    for (const [seed, change] of [
      [1, (row: Columns) => row],
      [2, withTokenRewards],
      [3, (row: Columns) => ({ ...row, reward: 1 / 3 })],
    ] as const)
      await assertPartsAddUp(
        write(drawLongRows(seed, 60).map(change)),
        subjectsOf([...OBJECTIVES, ...PENALISED]),
        [1, 13, 300, 5000],
      );
  });

  it('have the same bits in shards of any size', async () => {
    const rows = drawLongRows(4, 70);
    const subjects = subjectsOf([...OBJECTIVES, ...PENALISED]);
    // The shards end at the first line, at odd lines, and at the end of a file.
    const inputs = [write(rows.slice(0, 1)), write(rows.slice(1, 48)), write(rows.slice(48))];
    for (const [shardSize, batchTokens] of [
      [1, 2 ** 20],
      [7919, 17],
      [100_003, 1000],
      [2 ** 30, 60],
    ] as const)
      await assertSame(files, inputs, subjects, { shardSize, batchTokens, seed: shardSize });
    await assertSame(files, [write(rows.map(withTokenRewards))], subjects, { shardSize: 30_000 });
  });

  it('have the same bits if few tokens or none count', async () => {
    const rows = drawRows(5, 12);
    const masked = (kept: number) =>
      rows.map((row, b) => ({
        ...row,
        action_mask: (row.logprobs as number[]).map((_, t) => Number(t === 0 && b < kept)),
      }));
    for (const some of [masked(0), masked(1), masked(4), masked(rows.length)])
      for (const shardSize of [1, 5000])
        await assertSame(files, [write(some)], subjectsOf(OBJECTIVES), { shardSize, batchTokens: 3 });
    const [row] = drawRows(6, 5).filter(({ logprobs }) => (logprobs as number[]).length > 3);
    await assertSame(files, [write([row!])], subjectsOf(OBJECTIVES), { shardSize: 1, batchTokens: 2 });
  });

  it('have the bits that the objective gives for the batch of all rows', async () => {
    const rows = drawLongRows(7, 50);
    const file = write(rows);
    const objectives = [...OBJECTIVES, ...PENALISED];
    const { subjects, gradients, parts } = await evaluated(file, subjectsOf(objectives), 100);
    assert.ok(parts > 10);
    const columns = [...new Set(subjects.flatMap(({ subject }) => subject.columns))];
    const { value: all } = await streamRollouts([file], { columns, maxTokens: 2 ** 20 }).next();
    for (const [i, each] of objectives.entries()) {
      // The coefficient of an adaptive penalty was not changed by the evaluation.
      const { loss, metrics, grad } = await each.compute(all!.batch, { grad: true });
      const what = `${each.algorithm} with ${each.advantageFn!.definition.native.name}`;
      assert.equal(subjects[i]!.loss, loss, what);
      assert.deepEqual(gradients[i]!.grad, Array.from(grad!), what);
      for (const name of ['kl_penalty/kl_coef', 'kl_penalty/kl'])
        if (metrics[name] !== undefined)
          assert.ok(Math.abs(subjects[i]!.metrics[name]! - metrics[name]!) <= 1e-12, `${what}: ${name}`);
    }
  });

  it('give the same files of gradients in shards', async () => {
    const input = write(drawRows(8, 33).map((row, b) => ({ ...row, id: b })));
    const gradients = { ending: 'jsonl', ids: ['id'], padded: false, dtype: 'float32' as const };
    for (const subject of subjectsOf(OBJECTIVES)) {
      const all = files.path(`gradients-${count++}.jsonl`);
      const writer = writeGradients(all, { ids: gradients.ids });
      await evaluateFiles([input], [subject], settingsOf({ gradients }), (part, [given]) =>
        writer.add(part, given!.grad, given!.gradEntropy),
      );
      await writer.close();
      const { folder } = await planned(files.directory, [input], [subject], { shardSize: 5000, gradients });
      const names = readdirSync(folder).filter((name) => name.startsWith('gradients-'));
      assert.ok(names.length > 3);
      const text = names.sort().map((name) => readFileSync(join(folder, name), 'utf8'));
      assert.equal(text.join(''), readFileSync(all, 'utf8'), subject.name);
    }
  });

  it('are not computed if the files have advantages', async () => {
    const given = drawRows(9, 40).map((row) => ({ ...row, advantages: row.values }));
    await assertSame(files, [write(given)], subjectsOf(OBJECTIVES), { shardSize: 6000, batchTokens: 20 });
  });

  it('are errors about a file and line if an input is not finite', async () => {
    const rows = drawRows(10, 30);
    const line = rows.findIndex(({ values }, b) => b > 19 && (values as number[]).length > 2) + 1;
    for (const [change, says] of [
      [{ values: (rows[line - 1]!.values as number[]).map((x, t) => (t === 1 ? '∞' : x)) }, 'values[1]'],
      [{ reward: '∞' }, 'reward'],
    ] as const) {
      const text = rows.map((row, b) => JSON.stringify(b === line - 1 ? { ...row, ...change } : row));
      text[line - 1] = text[line - 1]!.replace('"∞"', '1e999');
      const file = files.write(`${count++}.jsonl`, text);
      for (const batchTokens of [2 ** 20, 20])
        await assert.rejects(evaluated(file, subjectsOf([objective('ppo')]), batchTokens), (error: Error) => {
          assert.ok(error instanceof LossError);
          assert.ok(
            error.message.includes(`line ${line}: ${says}: expected a finite number, got Inf`),
            error.message,
          );
          return true;
        });
    }
  });
});
