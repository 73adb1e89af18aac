/** Compares losses from expressions with PyTorch's results, within the tolerances of test/golden/README.md. */
import { lossFromExpression } from '../../lib/index.js';
import { cutRows, expressionCases, goldenBatch, referenceBatch } from '../support/golden.js';
import { packedBatch, unpack } from '../support/subject.js';
import { assertComputed, assertSameBits } from '../support/tolerance.js';
import { asyncOf, syncOf } from '../support/user-loss.js';

describe('golden expressions', () => {
  for (const { id, expression, args, loss_agg_mode, inputs, expected } of expressionCases)
    it(`${id}: ${expression}`, async () => {
      const fn = lossFromExpression(expression, { options: args, lossAggMode: loss_agg_mode });
      const wanted = { loss: expected.loss, metrics: {}, grad: expected.grad_logprob.data };
      const computed = syncOf(fn, goldenBatch(inputs));
      assertComputed(computed, wanted);
      assertSameBits(await asyncOf(fn, goldenBatch(inputs)), computed);
      const cut = cutRows(referenceBatch(inputs));
      const packed = syncOf(fn, packedBatch(cut));
      assertComputed({ ...packed, grad: unpack(cut, packed.grad) }, wanted);
    });
});
