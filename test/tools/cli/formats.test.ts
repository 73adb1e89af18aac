/**
 * Runs the program on files of every format, which other programs wrote. The results must have the same bits as the
 * library's results.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { POLICY_LOSS_FN } from '../../../lib/index.js';
import { Files, norm, run, runJson } from './support.js';

const fixture = (name: string) => fileURLToPath(new URL(`../rollouts/fixtures/${name}`, import.meta.url));

interface Rollout {
  logprobs: number[];
  old_logprobs: number[];
  advantages: number | number[];
  action_mask?: (number | boolean)[];
}

/** Computes the expected result with the library, from a file of JSON lines. Uses no file reader under test. */
async function expected(lines: string) {
  const rows: Rollout[] = readFileSync(fixture(lines), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  const cuSeqlens = [0];
  for (const { logprobs } of rows) cuSeqlens.push(cuSeqlens.at(-1)! + logprobs.length);
  const perToken = (of: (row: Rollout) => readonly number[]) => rows.flatMap(of);
  const actionMask = perToken(({ action_mask, logprobs }) =>
    (action_mask ?? logprobs.map(() => 1)).map(Number),
  );
  const { loss, metrics, grad } = await POLICY_LOSS_FN.create('ppo').compute(
    {
      cuSeqlens,
      logprob: perToken(({ logprobs }) => logprobs),
      oldLogprob: perToken(({ old_logprobs }) => old_logprobs),
      advantages: perToken(({ advantages, logprobs }) =>
        typeof advantages === 'number' ? logprobs.map(() => advantages) : advantages,
      ),
      actionMask,
    },
    { grad: true },
  );
  return {
    name: 'ppo',
    loss,
    metrics,
    rows: rows.length,
    tokens: actionMask.reduce((sum, m) => sum + m, 0),
    gradNorm: norm(grad!, rows),
    advantages: 'given',
  };
}

describe('policy-loss on files', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());

  for (const [name, lines] of [
    ['rollouts.jsonl', 'rollouts.jsonl'],
    ['rollouts.jsonl.gz', 'rollouts.jsonl'],
    ['rollouts.csv', 'rollouts.jsonl'],
    ['duckdb.csv', 'rollouts.jsonl'],
    ['parquet/duckdb-snappy.parquet', 'rollouts.jsonl'],
    ['packed.safetensors', 'rollouts.jsonl'],
    ['packed.npz', 'rollouts.jsonl'],
    ['padded.safetensors', 'padded.jsonl'],
    ['stored.npz', 'padded.jsonl'],
    ['deflated.npz', 'padded.jsonl'],
  ] as const)
    it(name, async () => {
      const file = fixture(name);
      assert.deepEqual(await runJson('evaluate', file, '--loss', 'ppo'), await expected(lines));
      const parted = await runJson('evaluate', file, '--loss', 'ppo', '--batch-tokens', '9');
      assert.ok(parted.batches > 1);
      const { loss } = await expected(lines);
      assert.ok(Math.abs(parted.loss - loss) <= 1e-6 * Math.abs(loss));
    });

  it('SQLite, or a message about what reading it needs', async () => {
    const { code, stdout, stderr } = await run(
      ...['evaluate', `${fixture('rollouts.sqlite')}#rollouts`, '--loss', 'ppo', '--json'],
    );
    if (code === 0) assert.deepEqual(JSON.parse(stdout), await expected('rollouts.jsonl'));
    // This version of Node cannot read SQLite.
    else assert.match(stderr, /SQLite/);
  });

  for (const format of ['safetensors', 'parquet', 'jsonl'])
    it(`reads its own gradients from ${format}`, async () => {
      const out = files.path(`gradients.${format}`);
      const input = fixture('rollouts.jsonl');
      const { rows } = await runJson('gradients', input, '--loss', 'ppo', '--out', out);
      const again = await runJson('evaluate', out, '--loss', 'sft', '--column', 'logprobs=grad');
      assert.equal(again.rows, rows);
    });
});
