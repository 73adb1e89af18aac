/**
 * Tests that computing rows in several parts gives the same loss, metrics, norms and gradients as computing all rows at
 * once, to the last bit. This must hold for every loss and algorithm and for parts of any size, even if the rows of a
 * group lie in different parts.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { ALGORITHM_TYPE, LossError, type ObjectiveConfig } from '../../../lib/index.js';
import {
  type EvaluationSettings,
  evaluateFiles,
  lossSubject,
  objectiveSubject,
} from '../../../lib/tools/parts/index.js';
import { assertPartsAddUp, evaluated } from '../../support/parts.js';
import { type Columns, drawRows, lossesInParts } from '../../support/rollout-rows.js';
import { EXAMPLE, Files, fails, run, runJson } from './support.js';

const algorithm = (name: string, config: ObjectiveConfig = {}, seed?: number) =>
  objectiveSubject(ALGORITHM_TYPE.get(name).objective(config), seed);

describe('rows in parts', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());
  const draw = (seed: number, count: number, change: (row: Columns, b: number) => Columns = (row) => row) =>
    files.write(`${Math.random()}.jsonl`, drawRows(seed, count).map(change));

  it('add up to the whole for every loss', async () => {
    const subjects = lossesInParts();
    subjects.push(lossSubject('ppo', { enable_sequence_masking: true, delta_sequence_masking: 0.05 }));
    for (const seed of [1, 2, 3]) await assertPartsAddUp(draw(seed, 60), subjects, [1, 7, 40, 200]);
  });

  it('add up to the whole for every algorithm', async () => {
    const subjects = ALGORITHM_TYPE.names().map((name) =>
      algorithm(name, { entropy_loss_fn_args: { entropy_coef: 0.01 } }),
    );
    for (const seed of [4, 5, 6]) await assertPartsAddUp(draw(seed, 80), subjects, [1, 11, 150]);
  });

  it('add up to the whole if rows are dropped, repeated, or drawn at random', async () => {
    const grpo = (args: Columns) => algorithm('grpo', { advantage_fn_args: args }, 7);
    const subjects = [
      grpo({ std_threshold: 1 }),
      grpo({ std_threshold: 1.05, duplicate_experiences: true }),
      grpo({ std_cal_level: 'batch' }),
      grpo({ rank_penalty: 0.25 }),
      algorithm('rec', { advantage_fn_args: { drop: 'balance' } }, 3),
      algorithm('opmd', { advantage_fn_args: { opmd_baseline: 'logavgexp' } }),
      algorithm('multi_step_grpo', { advantage_fn_args: { enable_step_norm: true, std_threshold: 0.8 } }),
      algorithm('mix', { advantage_fn_args: { std_threshold: 1 } }),
      algorithm('grpo', {
        advantage_fn_args: { std_threshold: 1 },
        policy_loss_fn_args: { enable_sequence_masking: true, delta_sequence_masking: 0.05 },
      }),
    ];
    for (const seed of [7, 8, 9]) {
      const file = draw(seed, 90);
      const whole = await evaluated(file, subjects, 2 ** 20);
      const { filtered_count } = whole.subjects[0]!.metrics;
      assert.ok(filtered_count! > 0 && filtered_count! < 90, `${filtered_count} rows dropped`);
      await assertPartsAddUp(file, subjects, [3, 50, 210]);
    }
  });

  it('add up to the whole with rewards per token and with a KL penalty', async () => {
    const subjects = [
      algorithm('rloo'),
      algorithm('rloo', { kl_penalty_fn: 'k2', kl_penalty_fn_args: { kl_coef: 0.2 } }),
      algorithm('rloo', { advantage_fn: 'remax' }),
      ...['verl/grpo_vectorized', 'verl/grpo_passk', 'verl/rloo_vectorized', 'verl/gpg'].map((advantage_fn) =>
        algorithm('rloo', { advantage_fn }),
      ),
      algorithm('rloo', { advantage_fn: 'remax', kl_penalty_fn: 'k1', kl_penalty_fn_args: { kl_coef: 0.3 } }),
    ];
    await assertPartsAddUp(draw(10, 70), subjects, [1, 30, 160]);
    const file = draw(11, 70, (row) => ({
      ...row,
      token_level_rewards: (row.logprobs as number[]).map((x, t) => (t % 3 ? 0 : x)),
    }));
    await assertPartsAddUp(file, subjects, [1, 30, 160]);
  });

  it('add up to the whole with advantages from the files, per token or per row', async () => {
    const subjects = [lossSubject('ppo', {}), algorithm('grpo'), algorithm('ppo')];
    const perRow = draw(12, 50, (row, b) => ({ ...row, advantages: (b % 5) - 2 }));
    const perToken = draw(13, 50, (row) => ({ ...row, advantages: row.values }));
    for (const file of [perRow, perToken]) await assertPartsAddUp(file, subjects, [1, 20, 100]);
  });

  it('keep the pairs of dpo together', async () => {
    const rows = drawRows(14, 40);
    const file = files.write('pairs.jsonl', rows);
    await assertPartsAddUp(file, [lossSubject('dpo', {}), algorithm('dpo')], [1, 13, 50]);
    await assert.rejects(
      evaluated(files.write('odd.jsonl', rows.slice(1)), [lossSubject('dpo', {})], 20),
      (error) =>
        error instanceof LossError && error.received === '39' && /even number of rows/.test(error.message),
    );
  });

  it('are rejected if all rows are needed at once, with the size of a sufficient part', async () => {
    const file = draw(15, 40, (row) => ({ ...row, sum_pi_squared: row.old_entropy }));
    for (const [subject, says] of [
      [
        algorithm('grpo', { advantage_fn: 'verl/optimal_token_baseline' }),
        /grpo computes its advantages \(verl\/optimal_token_baseline\) from the tokens or the named rewards of several rows/,
      ],
      [
        algorithm('grpo', {
          advantage_fn: 'verl/gdpo',
          advantage_fn_args: { gdpo_reward_keys: ['reward_baselines'] },
        }),
        /grpo computes its advantages \(verl\/gdpo\) from the tokens or the named rewards/,
      ],
      [lossSubject('dpo', { pairwise: false }), /one margin over all rows/],
    ] as const) {
      const error: unknown = await evaluated(file, [subject], 50).catch((error: unknown) => error);
      assert.ok(error instanceof LossError && error.code === 'ERR_INVALID_OPTION');
      assert.match(error.message, says);
      assert.equal(error.option, 'batchTokens');
      const enough = Number(/\d+/.exec(error.expected!)![0]);
      assert.equal((await evaluated(file, [subject], enough)).parts, 1);
      await assert.rejects(evaluated(file, [subject], enough - 1), LossError);
    }
  });

  it('are rejected if steps differ between parts', async () => {
    const file = draw(16, 30, (row, b) => ({ ...row, step: b < 20 ? 5 : 6 }));
    await assert.rejects(
      evaluated(file, [lossSubject('mix_chord', {})], 30),
      /same step in all rows, .*5 in row 0 and 6 in row 20/,
    );
  });

  it('are reported by file and line if a reward is not finite, in any part', async () => {
    const rows = drawRows(17, 30).map((row) => JSON.stringify(row));
    rows[20] = rows[20]!.replace(/"reward":[^,]*/, '"reward":1e999');
    const file = files.write('infinite.jsonl', rows);
    for (const batchTokens of [2 ** 20, 20])
      await assert.rejects(
        evaluated(file, [algorithm('grpo')], batchTokens),
        /infinite\.jsonl, line 21: reward: expected a finite number, got Infinity/,
      );
  });

  it('are checked for missing columns before all of them are read', async () => {
    const rows = drawRows(18, 50).map(({ ref_logprobs: _, ...row }) => row);
    const file = files.write('unreferenced.jsonl', [...rows, 'no JSON']);
    await assert.rejects(
      evaluated(file, [algorithm('grpo')], 20),
      /grpo: ref_logprobs: expected this column in every row, got no such column in /,
    );
  });

  it('are rejected if a second reading gives other rows', async () => {
    const rows = drawRows(19, 50);
    const file = files.write('changing.jsonl', rows);
    let changed = false;
    const settings: EvaluationSettings = {
      read: {},
      batchTokens: 20,
      progress: {
        begin: (what) => {
          if (what === 'computing') writeFileSync(file, JSON.stringify(rows[7]));
          changed = true;
        },
        advance: () => {},
      },
    };
    await assert.rejects(
      evaluateFiles([file], [lossSubject('sft', {})], settings),
      /expected the same rows on a second reading/,
    );
    assert.ok(changed);
  });

  describe('on the command line', () => {
    it('print the same numbers as all rows at once', async () => {
      const words = ['evaluate', EXAMPLE, '--algorithm', 'grpo', '--advantage-std-threshold', '0.35'];
      const whole = await runJson(...words);
      const { batches, ...parted } = await runJson(...words, '--batch-tokens', '500');
      assert.ok(batches > 10);
      assert.equal(whole.batches, undefined);
      const numbers = (of: Columns) =>
        Object.entries({ ...of, ...(of.metrics as Columns) }).filter(([, x]) => typeof x === 'number');
      assert.deepEqual(
        numbers(parted).map(([name]) => name),
        numbers(whole).map(([name]) => name),
      );
      for (const [i, [name, value]] of numbers(whole).entries())
        assert.equal(numbers(parted)[i]![1], value, name);
    });

    it('are counted in the table', async () => {
      const { stdout } = await run('evaluate', EXAMPLE, '--loss', 'sft', '--batch-tokens', '5000');
      assert.match(stdout, /^batches +2$/m);
    });

    it('are bad usage if all rows are needed at once', () =>
      fails(
        2,
        ['evaluate', EXAMPLE, '--loss-expr', '-(A-batch_mean(A))*r', '--batch-tokens', '5000'],
        /--batch-tokens: expected at least 9164/,
      ));
  });
});
