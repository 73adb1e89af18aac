/** Pairs of rows that pair_ids finds, on a device. */
import assert from 'node:assert/strict';
import { type Batch, type DeviceBatch, LOSS_FN, upload } from '../../lib/index.js';
import { takeRows } from '../reference/objective.js';
import { makeBatch } from '../support/draw.js';
import { readsPairs, requiredArgs } from '../support/draw-arguments.js';
import { isLossError } from '../support/loss-error.js';
import { HOST_ONLY, paddedBatch } from '../support/subject.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

const drawn = makeBatch({ seed: 11, rows: 6, columns: 9, values: 'moderate', mask: 'random', packed: false });
const ORDER = [2, 0, 3, 4, 1, 5];
const batch = {
  ...paddedBatch(takeRows(drawn, ORDER)),
  pairIds: ORDER.map((row) => Math.floor(row / 2)),
} as Batch;

interface Computed {
  loss: number;
  grad?: Float32Array;
  gradRewards?: Float32Array;
}

describe('pairs of rows on a device', () => {
  for (const name of LOSS_FN.names().filter((each) => readsPairs(each)))
    it(name, async () => {
      const args = requiredArgs(LOSS_FN.get(name).declaration);
      const loss = LOSS_FN.create(name, { ...args, ...(name === 'trl/tpo' && { tpo_alpha: 0 }) });
      const expected = loss.computeSync(batch, { grad: true }) as Computed;
      const same = (found: Computed) => {
        assertNumber(found.loss, expected.loss, 'loss');
        assertArray((found.grad ?? found.gradRewards)!, (expected.grad ?? expected.gradRewards)!, 'grad');
      };
      same((await loss.compute(batch, { grad: true, device: 'cuda:0' })) as Computed);
      if (HOST_ONLY.includes(name) && name !== 'trl/tpo') return;
      using resident: DeviceBatch = await upload(batch, 'cuda:0');
      same((await loss.compute(resident, { grad: true })) as Computed);
    });

  it('lack the prompts that trl/orpo reads, if they are uploaded', async () => {
    const loss = LOSS_FN.create('trl/orpo');
    using resident = await upload(batch, 'cuda:0');
    await assert.rejects(
      loss.compute(resident),
      isLossError('ERR_INVALID_INPUT', /attention_mask: expected a batch in host memory/),
    );
    const { attentionMask: _, ...answers } = batch as Batch & { attentionMask: unknown };
    using uploaded = await upload(answers, 'cuda:0');
    const expected = loss.computeSync(answers, { grad: true }) as Computed;
    const found = (await loss.compute(uploaded, { grad: true })) as Computed;
    assertNumber(found.loss, expected.loss, 'loss');
    assertArray(found.grad!, expected.grad!, 'grad');
  });

  it('must be pairs, and three rows of TPO come from the host', async () => {
    using odd = await upload(paddedBatch(takeRows(drawn, [0, 1, 2])) as Batch, 'cuda:0');
    for (const name of ['dpo', 'trl/dpo'])
      await assert.rejects(
        LOSS_FN.create(name).compute(odd),
        isLossError('ERR_SHAPE_MISMATCH', /even number of rows/),
      );
    await assert.rejects(
      LOSS_FN.create('trl/tpo').compute(odd),
      isLossError('ERR_INVALID_INPUT', /host memory/),
    );
  });
});
