/** Tests losses from expressions on a CUDA device, real or emulated: golden cases and random expressions. */
import fc from 'fast-check';
import { devices, lossFromExpression, type PolicyLossFn, upload } from '../../lib/index.js';
import { batchSpec, EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { assertJudged, EXPRESSIONS, judge } from '../support/expressions.js';
import { cutRows, expressionCases, goldenBatch, referenceBatch } from '../support/golden.js';
import { packedBatch, paddedBatch, unpack } from '../support/subject.js';
import { assertComputed, assertSameArray, assertSameBits } from '../support/tolerance.js';
import { asyncOf, syncOf, userLoss } from '../support/user-loss.js';

const DEVICE = 'cuda:0';
const SEED = Number(process.env.FC_SEED ?? 2025);
const LEVELS = ['token', 'row', 'batch'] as const;

type Laid = ReturnType<typeof packedBatch>;

// Computes from a batch in host memory and from its uploaded copy, and asserts that the results have equal bits.
async function onDevice(fn: PolicyLossFn, batch: Laid) {
  const fromHost = await asyncOf(fn, batch, DEVICE);
  using resident = await upload(batch, DEVICE);
  assertSameBits(await asyncOf(fn, resident), fromHost);
  assertSameBits(syncOf(fn, resident), fromHost);
  return fromHost;
}

describe(`golden expressions on ${DEVICE}`, () => {
  for (const { id, expression, args, loss_agg_mode, inputs, expected } of expressionCases)
    it(`${id}: ${expression}`, async () => {
      const fn = lossFromExpression(expression, { options: args, lossAggMode: loss_agg_mode });
      const wanted = { loss: expected.loss, metrics: {}, grad: expected.grad_logprob.data };
      assertComputed(await onDevice(fn, goldenBatch(inputs) as Laid), wanted);
      const cut = cutRows(referenceBatch(inputs));
      const packed = await onDevice(fn, packedBatch(cut));
      assertComputed({ ...packed, grad: unpack(cut, packed.grad) }, wanted);
    });
});

describe(`random expressions on ${DEVICE}`, () => {
  for (const level of LEVELS)
    it(`agree with the reference: ${level} expressions`, () =>
      fc.assert(
        fc.asyncProperty(EXPRESSIONS[level], EXPRESSIONS[level], batchSpec, async (loss, metric, spec) => {
          const batch = makeBatch(spec);
          const { fn, formula, args } = userLoss(loss, 'seq-mean-token-mean', { metric });
          const judged = judge(formula, args, batch);
          if (!judged) return;
          const computed = await onDevice(fn, batch.rowLengths ? packedBatch(batch) : paddedBatch(batch));
          const grad = batch.rowLengths ? unpack(batch, computed.grad) : computed.grad;
          assertJudged({ ...computed, grad }, judged);
        }),
        { numRuns: 60, seed: SEED },
      ));

  for (const level of LEVELS)
    it(`have the same bits per token as on the CPU: ${level} expressions`, async function () {
      if (devices()[0]!.isa === 'sse4') this.skip();
      const laid = packedBatch(makeBatch(EDGE_LENGTHS));
      for (const loss of fc.sample(EXPRESSIONS[level], { seed: SEED, numRuns: 20 })) {
        const { fn } = userLoss(loss);
        const [there, here] = [await asyncOf(fn, laid, DEVICE), await asyncOf(fn, laid)];
        assertSameArray(there.grad, here.grad, 'gradient');
      }
    });
});
