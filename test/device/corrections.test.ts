/** Tests corrections and masks on a CUDA device, real or emulated. */
import assert from 'node:assert/strict';
import { CORRECTION_FN, upload } from '../../lib/index.js';
import { EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { paddedBatch } from '../support/subject.js';
import { assertSameArray } from '../support/tolerance.js';

const DEVICE = 'cuda:0';
const REJECTION = { rollout_rs: 'token_k1,seq_mean_k3', rollout_rs_threshold: '1.2,0.02' };

describe(`corrections on ${DEVICE}`, () => {
  it('gives the weights and the mask of a resident batch', async () => {
    const correction = CORRECTION_FN.create('verl/rollout_correction', { rollout_is: 'token', ...REJECTION });
    const padded = paddedBatch(
      makeBatch({ ...EDGE_LENGTHS, rowLengths: undefined, rows: 3, columns: 50, packed: false } as never),
    );
    const here = correction.computeSync(padded);
    using resident = await upload(padded, DEVICE);
    const there = await correction.compute(resident);
    assert.deepEqual(there.keptMask, here.keptMask);
    assertSameArray(there.weights!, here.weights!, 'weights');
  });
});
