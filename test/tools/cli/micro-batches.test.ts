/** Tests `evaluate --micro-batches`, which shows what computing in micro-batches changes. */
import assert from 'node:assert/strict';
import { LossError } from '../../../lib/index.js';
import { compareMicroBatches, lossSubject, type Weighing } from '../../../lib/tools/parts/index.js';
import type { RolloutPart } from '../../../lib/tools/rollouts/index.js';
import { type Args, referencePolicyLosses } from '../../reference/index.js';
import { makeBatch } from '../../support/draw.js';
import { packedRows, takeRows } from '../../support/rows.js';
import { EXAMPLE, fails, run, runJson } from './support.js';

const ROWS = 10;
const batch = makeBatch({
  seed: 8,
  rows: ROWS,
  columns: 20,
  values: 'moderate',
  mask: 'random',
  packed: true,
});
const part = { batch: packedRows(batch), rows: ROWS } as unknown as RolloutPart;
const near = (actual: number, expected: number) =>
  assert.ok(
    Math.abs(actual - expected) <= 2e-6 * Math.max(1, Math.abs(expected)),
    `${actual}, not ${expected}`,
  );

async function weighingsOf(args: Args, count: number): Promise<Record<string, Weighing>> {
  const { weighings } = await compareMicroBatches(lossSubject('ppo', args), part, count);
  return Object.fromEntries(weighings.map((weighing) => [weighing.name, weighing]));
}

describe('micro-batches', () => {
  it('weigh in each way as the reference says', async () => {
    const args = { clip_range: 0.2, loss_agg_mode: 'token-mean' } as Args;
    const { rows, tokens, weighings } = await compareMicroBatches(lossSubject('ppo', args), part, 3);
    assert.deepEqual(rows, [3, 3, 4]);
    const starts = [0, 3, 6];
    const results = starts.map((from, i) => {
      const own = takeRows(batch, from, rows[i]!);
      assert.equal(
        tokens[i],
        Array.from(own.actionMask).reduce((sum, kept) => sum + kept, 0),
      );
      return referencePolicyLosses.ppo!(args, own);
    });
    const sizes = { equal: [1, 1, 1], 'by rows': rows, 'by tokens': tokens };
    for (const { name, loss, gradNorm } of weighings) {
      if (name === 'whole') {
        const whole = referencePolicyLosses.ppo!(args, batch);
        near(loss, whole.loss);
        near(gradNorm, Math.hypot(...whole.grad));
        continue;
      }
      const total = sizes[name].reduce((sum, size) => sum + size, 0);
      const weights = sizes[name].map((size) => size / total);
      near(
        loss,
        results.reduce((sum, result, i) => sum + weights[i]! * result.loss, 0),
      );
      near(
        gradNorm,
        Math.hypot(...results.flatMap(({ grad }, i) => Array.from(grad, (g) => g * weights[i]!))),
      );
    }
  });

  it('give the whole batch if their weights fit the aggregation', async () => {
    const byToken = await weighingsOf({ loss_agg_mode: 'token-mean' }, 4);
    near(byToken['by tokens']!.loss, byToken.whole!.loss);
    assert.ok(byToken['by tokens']!.gradDifference < 1e-6);
    assert.ok(byToken.equal!.gradDifference > 1e-3);
    assert.ok(byToken.equal!.angle > 0);
    const byRow = await weighingsOf({ loss_agg_mode: 'seq-mean-token-mean' }, 4);
    near(byRow['by rows']!.loss, byRow.whole!.loss);
    assert.ok(byRow['by rows']!.gradDifference < 1e-6);
    assert.ok(byRow['by tokens']!.gradDifference > 1e-3);
  });

  it('are the whole batch if there is one', async () => {
    for (const { gradDifference } of Object.values(await weighingsOf({}, 1))) assert.equal(gradDifference, 0);
  });

  it('keep pairs together', async () => {
    const { rows } = await compareMicroBatches(lossSubject('dpo'), part, 3);
    assert.deepEqual(rows, [2, 4, 4]);
  });

  it('cannot be more than the rows', async () => {
    for (const [name, count] of [
      ['ppo', ROWS + 1],
      ['dpo', ROWS / 2 + 1],
    ] as const)
      await assert.rejects(
        compareMicroBatches(lossSubject(name), part, count),
        (error) => error instanceof LossError && error.code === 'ERR_INVALID_OPTION',
      );
  });

  it('are printed by evaluate', async () => {
    const words = ['evaluate', EXAMPLE, '--loss', 'ppo', '--micro-batches'];
    const { microBatches, loss } = await runJson(...words, '8', '-q');
    assert.equal(microBatches.rows.length, 8);
    assert.equal(microBatches.weighings[0].loss, loss);
    const { stdout } = await run(...words, '8', '-q');
    assert.match(stdout, /In 8 micro-batches of 32 rows and .*\n\nweights +loss .*\nwhole /s);
    await fails(
      2,
      [...words, '8', '--batch-tokens', '500'],
      /--batch-tokens.* expected a number that all rows fit into/,
    );
    await fails(
      2,
      [...words, '300'],
      /--micro-batches.* expected at most 256, as many as there are rows, got 300/,
    );
  });
});
