/** Tests the commands with losses of values and of rewards, and with pairs of rows. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { LOSS_FN } from '../../../lib/index.js';
import { bytes, global, Opcodes, pickle, tensor, torchFile, tuple } from '../../support/pickle.js';
import { generator } from '../../support/random.js';
import { assertFailed, Files, fails, norm, parseCsv, run, runJson } from './support.js';

interface ValueRow {
  values: number[];
  old_values: number[];
  returns: number[];
  action_mask: number[];
  task_id: number;
}

const draws = generator(3);
const list = (length: number) => Array.from({ length }, () => Math.fround(4 * draws.uniform() - 2));
const VALUES: ValueRow[] = Array.from({ length: 14 }, (_, i) => {
  const length = draws.integer(1, 6);
  const [values, old_values, returns] = [list(length), list(length), list(length)] as const;
  return {
    values,
    old_values,
    returns,
    action_mask: values.map((_, t) => Number((i + t) % 5 > 0)),
    task_id: i,
  };
});
const REWARDS = Array.from({ length: 12 }, (_, i) => ({
  reward: list(1)[0]!,
  margin: (i >> 1) / 8,
  task_id: i >> 1,
}));

/** Returns what the library computes of rows with values. */
async function ofValues(name: string, args: object = {}, rows: readonly ValueRow[] = VALUES) {
  const cuSeqlens = [0];
  for (const { values } of rows) cuSeqlens.push(cuSeqlens.at(-1)! + values.length);
  const flat = (of: (row: ValueRow) => number[]) => rows.flatMap(of);
  const actionMask = flat((row) => row.action_mask);
  const batch = {
    cuSeqlens,
    values: flat((row) => row.values),
    oldValues: flat((row) => row.old_values),
    returns: flat((row) => row.returns),
    actionMask,
  };
  const { loss, metrics, gradValues } = (await LOSS_FN.create(name, { ...args }).compute(batch, {
    grad: true,
  })) as { loss: number; metrics: object; gradValues: Float32Array };
  const expected = {
    ...{ name, loss, metrics, rows: rows.length },
    tokens: actionMask.reduce((sum, m) => sum + m, 0),
    gradNorm: norm(
      gradValues,
      rows.map(({ values }) => ({ logprobs: values })),
    ),
    variable: 'values',
  };
  return { expected, grad: gradValues };
}

/** Returns what the library computes of rewards. */
async function ofRewards(name: string, args: object = {}) {
  const batch = { rewards: REWARDS.map(({ reward }) => reward), margin: REWARDS.map(({ margin }) => margin) };
  const { loss, metrics, gradRewards } = (await LOSS_FN.create(name, { ...args }).compute(batch, {
    grad: true,
  })) as { loss: number; metrics: object; gradRewards: Float32Array };
  const gradNorm = norm(
    gradRewards,
    REWARDS.map(() => ({ logprobs: [0] })),
  );
  const expected = {
    ...{ name, loss, metrics, rows: REWARDS.length, tokens: 0, gradNorm },
    variable: 'rewards',
  };
  return { expected, grad: gradRewards };
}

describe('policy-loss with losses of values and of rewards', () => {
  let files: Files;
  let values: string;
  let rewards: string;
  before(() => {
    files = new Files();
    values = files.write('values.jsonl', VALUES);
    rewards = files.write('rewards.jsonl', REWARDS);
  });
  after(() => files.remove());

  describe('evaluate', () => {
    for (const name of LOSS_FN.names().filter((each) => each.endsWith('/value')))
      it(`${name}: prints the library's result to the bit`, async () => {
        const { expected } = await ofValues(name);
        assert.deepEqual(await runJson('evaluate', values, '--loss', name), expected);
      });

    for (const name of ['trl/reward', 'openrlhf/reward', 'nemo/reward', 'areal/reward'])
      it(`${name}: prints the library's result to the bit, from rows that only have rewards`, async () => {
        const { expected } = await ofRewards(name);
        assert.deepEqual(await runJson('evaluate', rewards, '--loss', name), expected);
      });

    it('takes the options of the loss, and no correction', async () => {
      const { expected } = await ofValues('verl/value', {
        cliprange_value: 0.1,
        loss_agg_mode: 'seq-mean-token-sum',
      });
      const words = [
        '--loss',
        'verl/value',
        '--cliprange-value',
        '0.1',
        '--loss-agg-mode',
        'seq-mean-token-sum',
      ];
      assert.deepEqual(await runJson('evaluate', values, ...words), expected);
      await fails(
        2,
        ['evaluate', values, ...words, '--masks', 'x'],
        /unknown option of verl\/value: .*got '--masks'/,
      );
      const help = await run('evaluate', '--loss', 'trl/reward', '--help');
      assert.match(help.stdout, /Options of trl\/reward:\n +--center-rewards-coefficient/);
      assert.doesNotMatch(help.stdout, /--correction/);
    });

    it('says by which column the gradient is', async () => {
      const { stdout } = await run('evaluate', values, '--loss', 'trl/value');
      assert.match(stdout, /^gradient norm \(values\) +\d/m);
      assert.match(
        (await run('evaluate', rewards, '--loss', 'reward')).stdout,
        /^gradient norm \(rewards\) +\d/m,
      );
    });

    it('says which column can stand in for old values', async () => {
      const file = files.write(
        'no-old.jsonl',
        VALUES.map(({ old_values: _, ...row }) => row),
      );
      const pattern =
        /verl\/value: old_values: expected this column in every row.* --column old_values=values\n$/;
      await fails(1, ['evaluate', file, '--loss', 'verl/value'], pattern);
      const { expected } = await ofValues(
        'verl/value',
        {},
        VALUES.map((row) => ({ ...row, old_values: row.values })),
      );
      const words = ['--loss', 'verl/value', '--column', 'old_values=values'];
      assert.deepEqual(await runJson('evaluate', file, ...words), expected);
    });

    it('names the row whose reward is not finite', async () => {
      const file = files.write(
        'nan.jsonl',
        REWARDS.map((row, i) => (i === 7 ? { ...row, reward: null } : row)),
      );
      const { stderr } = await run('evaluate', file, '--loss', 'openrlhf/reward', '--json');
      assert.match(
        stderr,
        /^warning: openrlhf\/reward: the loss is NaN, first because of .*nan\.jsonl, line 8, where reward is NaN\n$/,
      );
    });

    it('computes parts, and refuses them by name where a loss reduces over all rows', async () => {
      for (const [file, name, size, own] of [
        [values, 'trl/value', '9', await ofValues('trl/value')],
        [rewards, 'trl/reward', '2', await ofRewards('trl/reward')],
      ] as const) {
        const parted = await runJson('evaluate', file, '--loss', name, '--batch-tokens', size);
        assert.ok(parted.batches > 4);
        assert.equal(parted.loss, own.expected.loss);
        assert.equal(parted.gradNorm, own.expected.gradNorm);
      }
      for (const [file, name] of [
        [values, 'slime/value'],
        [rewards, 'areal/reward'],
      ] as const) {
        const words = ['evaluate', file, '--loss', name, '--batch-tokens', '2'];
        await fails(
          2,
          words,
          new RegExp(`${name} reduces over all rows of a batch: --batch-tokens: expected at least`),
        );
      }
    });

    it('computes micro-batches', async () => {
      const { microBatches, ...whole } = await runJson(
        'evaluate',
        rewards,
        '--loss',
        'trl/reward',
        '--micro-batches',
        '3',
      );
      assert.deepEqual(whole, (await ofRewards('trl/reward')).expected);
      assert.deepEqual(microBatches.rows, [4, 4, 4]);
      // Three means of equally many pairs.
      for (const { loss, gradDifference } of microBatches.weighings) {
        assert.ok(Math.abs(loss - whole.loss) < 1e-6);
        assert.ok(gradDifference < 1e-6);
      }
      assert.deepEqual(
        microBatches.weighings.map(({ name }: { name: string }) => name),
        ['whole', 'equal', 'by rows'],
      );
      await fails(
        2,
        ['evaluate', rewards, '--loss', 'reward', '--micro-batches', '7'],
        /at most 6, .* pairs of rows/,
      );
    });
  });

  describe("verl's files", () => {
    const PADDED = { values: [1, 2, 9, -1, 3, 0.5], returns: [2, 0, 9, 1, 1, 1], mask: [1, 1, 0, 1, 1, 1] };
    const float = (numbers: readonly number[]) => Buffer.from(Float32Array.from(numbers).buffer);
    const rowsOf = (old: readonly number[], now: readonly number[]): ValueRow[] =>
      [0, 3].map((from, task_id) => {
        const cut = (numbers: readonly number[]) => numbers.slice(from, from + 3 - Number(from === 0));
        return {
          ...{ values: cut(now), old_values: cut(old), returns: cut(PADDED.returns) },
          ...{ action_mask: cut(PADDED.mask), task_id },
        };
      });
    const shapes = {
      values: tensor('0', 6, [2, 3]),
      returns: tensor('1', 6, [2, 3]),
      response_mask: tensor('2', 6, [2, 3]),
    };
    const storages = { '0': float(PADDED.values), '1': float(PADDED.returns), '2': float(PADDED.mask) };

    it('have the values from before the update, which are then the current ones too', async () => {
      const proto = new Opcodes(
        new Opcodes(global('verl.protocol', 'DataProto').bytes, ')', 0x81).bytes,
        tuple(bytes(torchFile(shapes, storages)), {}, {}).bytes,
        'b',
      );
      const { expected } = await ofValues('verl/value', {}, rowsOf(PADDED.values, PADDED.values));
      for (const [name, content] of [
        ['batch.pkl', pickle(proto)],
        ['critic.pth', torchFile(shapes, storages)],
      ] as const) {
        const file = files.writeBytes(name, content);
        assert.deepEqual(await runJson('evaluate', file, '--loss', 'verl/value'), expected);
      }
    });

    it('have an attention mask that begins with the prompts', async () => {
      const content = torchFile(
        { ...shapes, attention_mask: tensor('3', 8, [2, 4]) },
        { ...storages, '3': float([0, 1, 1, 1, 1, 1, 1, 1]) },
      );
      const file = files.writeBytes('attended.pth', content);
      const { metrics } = await runJson('evaluate', file, '--loss', 'easyr1/value');
      // It also counts the token that response_mask leaves out.
      const { values, returns } = PADDED;
      const variance = (of: readonly number[]) => {
        const mean = of.reduce((sum, x) => sum + x, 0) / of.length;
        return of.reduce((sum, x) => sum + (x - mean) ** 2, 0);
      };
      const explained = 1 - variance(returns.map((x, i) => x - values[i]!)) / variance(returns);
      assert.ok(Math.abs(metrics['critic/vf_explained_var'] - explained) < 1e-4, String(explained));
    });

    it('can have the current values as vpreds', async () => {
      const vpreds = [0.5, 2.25, 9, -1, 4, 0];
      const content = torchFile(
        { ...shapes, vpreds: tensor('3', 6, [2, 3]) },
        { ...storages, '3': float(vpreds) },
      );
      const { expected } = await ofValues('verl/value', {}, rowsOf(PADDED.values, vpreds));
      const file = files.writeBytes('critic.pth', content);
      assert.deepEqual(await runJson('evaluate', file, '--loss', 'verl/value'), expected);
    });
  });

  it('compare shows them side by side, with the cosines of their gradients', async () => {
    const words = ['--loss', 'trl/reward', '--loss', 'openrlhf/reward_logexp'];
    const { subjects, cosines } = await runJson('compare', rewards, ...words);
    const [a, b] = [await ofRewards('trl/reward'), await ofRewards('openrlhf/reward_logexp')];
    assert.deepEqual(
      subjects.map(({ loss, gradNorm }: { loss: number; gradNorm: number }) => [loss, gradNorm]),
      [a, b].map(({ expected: { loss, gradNorm } }) => [loss, gradNorm]),
    );
    const product = a.grad.reduce((sum, x, i) => sum + x * b.grad[i]!, 0);
    assert.ok(Math.abs(cosines[0][1] - product / (a.expected.gradNorm * b.expected.gradNorm)) < 1e-12);
    const { stdout } = await run('compare', rewards, ...words, '--csv');
    assert.equal(parseCsv(stdout)[1]!.loss, String(b.expected.loss));
    assert.equal(stdout.match(/\bloss\b/g)!.length, 1);
  });

  it('compare and plan refuse gradients by different columns', async () => {
    const says =
      /expected losses with gradients by the same column, .*got ppo \(by logprob\) and verl\/value \(by values\)/;
    await fails(2, ['compare', values, '--loss', 'ppo', '--loss', 'verl/value'], says);
    const plan = ['plan', values, '--loss', 'ppo', '--loss', 'verl/value', '--out', files.path('plan.json')];
    await fails(2, plan, says);
  });

  it('sweep varies their options', async () => {
    const { points } = await runJson('sweep', values, '--loss', 'verl/value', '--cliprange-value', '0.1,0.4');
    for (const { options, loss } of points)
      assert.equal(
        loss,
        (await ofValues('verl/value', { cliprange_value: options['cliprange-value'] })).expected.loss,
      );
    const { stdout } = await run(
      'sweep',
      rewards,
      '--loss',
      'nemo/reward',
      '--global-valid-seqs',
      '2,4',
      '--csv',
    );
    assert.match(stdout, /^global-valid-seqs,loss,gradNorm,accuracy,/);
  });

  it('gradients writes them per token or per row', async () => {
    for (const [file, name, { grad, expected }] of [
      [values, 'trl/value', await ofValues('trl/value')],
      [rewards, 'trl/reward', await ofRewards('trl/reward')],
    ] as const) {
      const out = files.path('gradients.jsonl');
      const { gradNorm } = await runJson('gradients', file, '--loss', name, '--ids', 'task_id', '--out', out);
      assert.equal(gradNorm, expected.gradNorm);
      const rows = readFileSync(out, 'utf8')
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line));
      assert.equal(rows.length, expected.rows);
      assert.deepEqual(Float32Array.from(rows.flatMap((row) => row.grad)), grad);
      assert.ok(name !== 'trl/reward' || rows.every((row, i) => row.grad.length === 1 && row.row === i + 1));
      const tensors = files.path('gradients.safetensors');
      await runJson('gradients', file, '--loss', name, '--ids', 'task_id', '--out', tensors);
      assert.ok(readFileSync(tensors).includes(Buffer.from(grad.buffer)));
    }
  });

  it('diff computes them on both dumps', async () => {
    const other = files.write(
      'other.jsonl',
      REWARDS.map((row) => ({ ...row, reward: -row.reward })),
    );
    const { columns, losses } = await runJson('diff', rewards, other, '--loss', 'trl/reward');
    assert.equal(columns.find(({ column }: { column: string }) => column === 'reward').differing, 12);
    const { loss, gradNorm, metrics } = (await ofRewards('trl/reward')).expected;
    assert.deepEqual(losses[0].a, { loss, gradNorm, metrics });
    assert.notEqual(losses[0].b.loss, loss);
  });

  it('doctor reads their files', async () => {
    for (const file of [values, rewards]) assert.equal((await run('doctor', file)).code, 0);
  });

  it('plan, run and merge print what evaluate prints', async () => {
    for (const [file, name, { expected, grad }] of [
      [values, 'trl/value', await ofValues('trl/value')],
      [rewards, 'openrlhf/reward', await ofRewards('openrlhf/reward')],
    ] as const) {
      const [plan, parts] = [files.path('families.json'), files.path(`parts-${name.replace('/', '-')}`)];
      const words = ['--shard-size', '200', '--gradients', 'jsonl', '--out', plan];
      const { shards } = await runJson('plan', file, '--loss', name, ...words);
      assert.ok(shards > 2);
      const { runs } = await runJson('run', plan, '--out', parts);
      const { batches, ...merged } = await runJson('merge', plan, parts);
      assert.deepEqual(merged, expected);
      assert.equal(batches, shards);
      const written = (runs as { files: string[] }[])
        .flatMap((each) => each.files.filter((part) => part.endsWith('.jsonl')))
        .flatMap((part) => readFileSync(part, 'utf8').trim().split('\n'));
      assert.deepEqual(Float32Array.from(written.flatMap((line) => JSON.parse(line).grad)), grad);
    }
    const words = [
      'plan',
      values,
      '--loss',
      'slime/value',
      '--shard-size',
      '200',
      '--out',
      files.path('plan.json'),
    ];
    await fails(2, words, /slime\/value reduces over all rows of a batch: --shard-size: expected one shard/);
  });
});

describe('policy-loss with pairs of rows', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());

  const logprobs = (length: number) => list(length).map((x) => -Math.abs(x));
  const PAIRS = Array.from({ length: 6 }, (_, i) => {
    const side = (length: number) => ({ logprobs: logprobs(length), ref_logprobs: logprobs(length) });
    return { task_id: `q${i}`, chosen: side(draws.integer(1, 5)), rejected: side(draws.integer(1, 5)) };
  });
  const inTurns = PAIRS.flatMap(({ task_id, chosen, rejected }) => [
    { task_id, ...chosen },
    { task_id, ...rejected },
  ]);

  it('prints the same for all forms of a file', async () => {
    const expected = await runJson('evaluate', files.write('turns.jsonl', inTurns), '--loss', 'dpo');
    assert.equal(expected.rows, 12);
    const inOne = PAIRS.map(({ task_id, chosen, rejected }) => ({
      task_id,
      chosen_logprobs: chosen.logprobs,
      rejected_logprobs: rejected.logprobs,
      ref_chosen_logprobs: chosen.ref_logprobs,
      ref_rejected_logprobs: rejected.ref_logprobs,
    }));
    const byId = PAIRS.flatMap(({ chosen, rejected }, pair_id) => [
      { pair_id, chosen: false, ...rejected },
      { pair_id, chosen: true, ...chosen },
    ]);
    const lastFirst = [...byId.filter((_, i) => i % 3 > 0), ...byId.filter((_, i) => i % 3 === 0)];
    for (const rows of [inOne, byId, lastFirst]) {
      const file = files.write('pairs.jsonl', rows);
      const { loss, ...others } = await runJson('evaluate', file, '--loss', 'dpo');
      assert.ok(Math.abs(loss - expected.loss) < 1e-12);
      assert.deepEqual([others.rows, others.tokens], [expected.rows, expected.tokens]);
      const parted = await runJson('evaluate', file, '--loss', 'dpo', '--batch-tokens', '30');
      assert.deepEqual([parted.loss, parted.gradNorm], [loss, others.gradNorm]);
      assert.ok(parted.batches > 1);
    }
    assert.deepEqual(await runJson('evaluate', files.write('one.jsonl', inOne), '--loss', 'dpo'), expected);
  });

  it('plans rows that hold a pair, and says where ids do not suit shards', async () => {
    const inOne = PAIRS.map(({ chosen, rejected }) => ({
      chosen_logprobs: chosen.logprobs,
      rejected_logprobs: rejected.logprobs,
      chosen_ref_logprobs: chosen.ref_logprobs,
      rejected_ref_logprobs: rejected.ref_logprobs,
    }));
    const byId = [...inTurns.keys()].map((i) => ({ pair_id: i % 6, ...inTurns[i] }));
    const [plan, parts] = [files.path('plan.json'), files.path('parts')];
    const one = files.write('one.jsonl', inOne);
    const { batches, ...merged } = await (async () => {
      await runJson('plan', one, '--loss', 'dpo', '--shard-size', '300', '--out', plan);
      await runJson('run', plan, '--out', parts);
      return runJson('merge', plan, parts);
    })();
    assert.ok(batches > 1);
    assert.deepEqual(merged, await runJson('evaluate', one, '--loss', 'dpo'));
    await runJson(
      'plan',
      files.write('ids.jsonl', byId),
      '--loss',
      'dpo',
      '--shard-size',
      '300',
      '--out',
      plan,
    );
    const says =
      /pair_id: expected two rows with pair_id \d, got one\. Both rows of a pair must be in one shard\. .*--shard-size/;
    assertFailed(await run('run', plan, '--out', files.path('other')), 1, says);
  });

  it('warns once of rows that are no pairs, and refuses an odd number of them', async () => {
    const shifted = files.write('shifted.jsonl', inTurns.slice(1, -1));
    const { code, stderr } = await run('evaluate', shifted, '--loss', 'dpo', '--batch-tokens', '8');
    assert.equal(code, 0);
    assert.match(
      stderr,
      /^warning: .*shifted\.jsonl, line 2: task_id: expected the same as in .*line 1, [^\n]*\n$/,
    );
    assert.equal((await run('evaluate', shifted, '--loss', 'dpo', '--quiet')).stderr, '');
    await fails(1, ['evaluate', shifted, '--loss', 'dpo', '--strict'], /line 2: task_id/);
    const odd = files.write('odd.jsonl', inTurns.slice(0, -1));
    await fails(1, ['evaluate', odd, '--loss', 'dpo'], /expected an even number of rows/);
  });
});
