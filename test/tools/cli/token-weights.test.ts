/** Tests the column token_weights of rollout files. */
import assert from 'node:assert/strict';
import { Files, fails, fromLibrary, ROWS, runJson } from './support.js';

const rows = ROWS.map((row) => ({ ...row, token_weights: row.old_logprobs.map((_, i) => (i % 4) / 2) }));
const tokenWeights = rows.flatMap((row) => row.token_weights);

describe('policy-loss: rollouts with token_weights', () => {
  let files: Files;
  let file: string;
  before(() => {
    files = new Files();
    file = files.write('rollouts.jsonl', rows);
  });
  after(() => files.remove());

  it('weigh the tokens of a loss', async () => {
    const expected = await fromLibrary('ppo', {}, rows, { tokenWeights });
    const { advantages: _, ...printed } = await runJson('evaluate', file, '--loss', 'ppo');
    assert.deepEqual(printed, expected);
    const { loss } = await fromLibrary('ppo', {}, rows, {});
    assert.notEqual(printed.loss, loss);
  });

  it('weigh the tokens of a loss of values', async () => {
    const critic = [0.5, 1, 2].map((weight) => ({
      values: [0.5, -1],
      old_values: [0, 0],
      returns: [1, weight],
      token_weights: [weight, 0],
    }));
    const { loss } = await runJson('evaluate', files.write('values.jsonl', critic), '--loss', 'trl/value');
    // Of each first token: (0.2 − 1)² / 2.
    assert.ok(Math.abs((loss as number) - ((0.5 + 1 + 2) * 0.32) / 6) < 1e-6);
  });

  it('are refused by a loss of rows', () =>
    fails(1, ['evaluate', file, '--loss', 'trl/gmpo'], /tokenWeights: expected a batch without it/));
});
