/**
 * Tests that a CUDA device computes the same bits per token as the CPU. Processors without fused multiply-adds are left
 * out, because their results differ in the last bit.
 */
import assert from 'node:assert/strict';
import { devices, KL_FN } from '../../lib/index.js';
import { ARGUMENTS, EDGE_LENGTHS, everyFunction, fitting, makeBatch } from '../support/draw.js';
import { packedBatch, paddedBatch, subject } from '../support/subject.js';
import { assertSameArray } from '../support/tolerance.js';

describe('the same bits per token on the CPU and on a CUDA device', () => {
  before(function () {
    if (devices()[0]!.isa === 'sse4') this.skip();
  });

  for (const { family, name, args, title } of everyFunction(2))
    it(title, async () => {
      const on = subject(family, name, args);
      const batch = makeBatch(fitting(name, args, EDGE_LENGTHS));
      for (const laid of [packedBatch(batch), paddedBatch(batch)])
        assertSameArray(
          (await on.async(laid, { device: 'cuda:0' })).grad,
          (await on.async(laid)).grad,
          'gradient',
        );
    });

  for (const name of Object.keys(ARGUMENTS.kl))
    it(`values of ${name}`, async () => {
      const fn = KL_FN.create(name);
      const laid = packedBatch(makeBatch(EDGE_LENGTHS));
      const [there, here] = await Promise.all([
        fn.calculateKl(laid, { device: 'cuda:0' }),
        fn.calculateKl(laid),
      ]);
      assert.ok(here.length > 0);
      assertSameArray(there, here, 'values');
    });
});
