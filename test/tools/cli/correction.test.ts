/** Tests the options `--correction` and `--masks`, which every policy loss accepts. */
import assert from 'node:assert/strict';
import { ADVANTAGE_FN, ALGORITHM_TYPE, lossFromExpression } from '../../../lib/index.js';
import { batchOf, Files, fails, fromLibrary, fromObjective, ROWS, runJson } from './support.js';

const rows = ROWS.map((row) => ({
  ...row,
  rollout_logprobs: row.old_logprobs.map((lp, i) => lp + 0.02 * (((i * 7) % 11) - 5)),
}));
const rolloutLogprob = rows.flatMap((row) => row.rollout_logprobs);
const WORDS = ['--correction', 'rollout_is=token', '--correction', 'rollout_is_threshold=1.05'];
const correction = { rollout_is: 'token', rollout_is_threshold: 1.05 };

describe('policy-loss --correction and --masks', () => {
  let files: Files;
  let file: string;
  before(() => {
    files = new Files();
    file = files.write('rollouts.jsonl', rows);
  });
  after(() => files.remove());

  it('correct a loss, also where the rows would be computed in parts', async () => {
    const expected = await fromLibrary('ppo', { correction }, rows, { rolloutLogprob });
    const { advantages, ...printed } = await runJson('evaluate', file, '--loss', 'ppo', ...WORDS);
    assert.equal(advantages, 'grpo');
    assert.deepEqual(printed, expected);
    assert.ok('rollout_corr/kl' in expected.metrics);
  });

  it('correct an expression', async () => {
    const batch = batchOf(rows);
    const { advantages } = ADVANTAGE_FN.create('grpo').computeSync(batch);
    const masks = { overlong_length: 40 };
    const loss = lossFromExpression('-A*r', { correction, masks: { overlongLength: 40 } });
    const expected = loss.computeSync({ ...batch, advantages, rolloutLogprob });
    const words = ['--loss-expr', '-A*r', ...WORDS, '--masks', `overlong_length=${masks.overlong_length}`];
    const printed = await runJson('evaluate', file, ...words);
    assert.equal(printed.loss, expected.loss);
    assert.deepEqual(printed.metrics, expected.metrics);
  });

  it('leave out tokens with a low entropy', async () => {
    const words = ['--loss', 'ppo', '--masks', 'top_entropy_quantile=0.3'];
    const { advantages: _, ...printed } = await runJson('evaluate', file, ...words);
    const expected = await fromLibrary('ppo', { masks: { top_entropy_quantile: 0.3 } });
    assert.deepEqual(printed, expected);
    assert.ok(expected.metrics['mask/low_entropy_fraction']! > 0.5);
    const lacking = files.write(
      'lacking.jsonl',
      rows.map(({ entropy, ...row }) => row),
    );
    await fails(1, ['evaluate', lacking, ...words], /entropy/);
  });

  it('correct the policy loss of an algorithm', async () => {
    const objective = ALGORITHM_TYPE.get('grpo').objective({
      policy_loss_fn_args: { masks: { overlong_length: 40 } },
    });
    const { advantages, ...printed } = await runJson(
      'evaluate',
      file,
      '--algorithm',
      'grpo',
      '--masks',
      'overlong_length=40',
    );
    const expected = await fromObjective(objective, rows);
    assert.deepEqual(printed.metrics, expected.metrics);
    assert.equal(printed.loss, expected.loss);
  });

  it('are swept', async () => {
    const { axes, points } = await runJson(
      'sweep',
      file,
      '--loss',
      'sft',
      '--masks',
      'overlong_length=20,40',
    );
    assert.deepEqual(axes, { 'masks.overlong_length': [20, 40] });
    assert.equal(points.length, 2);
  });

  it('are checked', async () => {
    await fails(
      2,
      ['evaluate', file, '--loss', 'ppo', '--masks', 'delt=3'],
      /^error: Did you mean 'delta'\? .*masks: delt: got an unknown name/,
    );
    await fails(2, ['evaluate', file, '--loss', 'ppo', '--masks', 'delta'], /Expected a name and a value/);
    await fails(2, ['evaluate', file, '--loss', 'ppo', '--correction', 'name=verl'], /unknown correction/);
  });
});
