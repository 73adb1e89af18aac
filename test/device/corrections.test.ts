/** Tests corrections and masks on a CUDA device, real or emulated. */
import assert from 'node:assert/strict';
import { CORRECTION_FN, devices, POLICY_LOSS_FN, upload } from '../../lib/index.js';
import { EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { type Computed, packedBatch, paddedBatch } from '../support/subject.js';
import { assertNumber, assertSameArray, assertSameBits } from '../support/tolerance.js';

const DEVICE = 'cuda:0';
const REJECTION = { rollout_rs: 'token_k1,seq_mean_k3', rollout_rs_threshold: '1.2,0.02' };
const CORRECTIONS = {
  tokens: { correction: { rollout_is: 'token', rollout_is_threshold: '0.9_1.1' } },
  rows: { correction: { rollout_is: 'sequence', ...REJECTION } },
  normalized: { correction: { rollout_is: 'token', rollout_is_batch_normalize: true, ...REJECTION } },
  masks: { masks: { delta: 1.1, overlong_length: 60, off_policy_mask_threshold: 0.01 } },
  entropies: { masks: { top_entropy_quantile: 0.3 } },
};
const LOSSES = { ppo: { clip_range: 0.2 }, gspo: { clip_range: 0.2 }, mix: { clip_range: 0.2 } };
const EXPRESSIONS = { 'verl/geo_mean': {}, 'trl/dapo': {}, ce_gppo: {} };

describe(`corrections on ${DEVICE}`, () => {
  const small = { ...EDGE_LENGTHS, columns: 500, rowLengths: [1, 31, 33, 64, 65, 500, 127, 128, 129, 300] };
  const batch = packedBatch(makeBatch(small));

  for (const [name, args] of Object.entries({ ...LOSSES, ...EXPRESSIONS }))
    for (const [kind, correction] of Object.entries(CORRECTIONS))
      it(`${name}: ${kind}`, async () => {
        const fn = POLICY_LOSS_FN.create(name, { ...args, ...correction });
        const there = (await fn.compute(batch, { grad: true, device: DEVICE })) as Computed;
        using resident = await upload(batch, DEVICE);
        assertSameBits((await fn.compute(resident, { grad: true })) as Computed, there);
        assertSameBits(fn.computeSync(resident, { grad: true }) as Computed, there);
        assert.deepEqual(await fn.count(resident), fn.countSync(batch));
        const here = fn.computeSync(batch, { grad: true }) as Computed;
        assertNumber(there.loss, here.loss, 'loss');
        for (const [metric, value] of Object.entries(here.metrics))
          assertNumber(there.metrics[metric], value, metric);
        if (devices()[0]!.isa !== 'sse4' && kind !== 'normalized')
          assertSameArray(there.grad, here.grad, 'grad');
      });

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
