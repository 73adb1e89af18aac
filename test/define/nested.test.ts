/** Compares losses with deeply nested reductions with the reference. They need many passes over the batch. */

import fc from 'fast-check';
import type { Expression } from '../reference/expression.js';
import { batchSpec, makeBatch } from '../support/draw.js';
import { assertJudged, judge } from '../support/expressions.js';
import { packedBatch, paddedBatch, unpack } from '../support/subject.js';
import { assertSameBits } from '../support/tolerance.js';
import { asyncOf, syncOf, userLoss } from '../support/user-loss.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

/** Nests reductions, which take turns: each one reduces d times the next one. */
function nested(reductions: readonly string[], depth: number): Expression {
  let loss: Expression = 'r';
  for (let i = depth - 1; i >= 0; i--)
    loss = [reductions[i % reductions.length]!, ['*', ['+', 'd', 0.5], loss]];
  return loss;
}

describe('nested reductions agree with the reference', () => {
  const LISTS = [
    ['row_mean'],
    ['batch_mean'],
    ['batch_mean', 'row_mean'],
    ['row_max', 'batch_min'],
    ['batch_max'],
  ];
  for (const reductions of LISTS)
    for (const depth of [2, 3, 4, 5, 8])
      it(`${depth} levels of ${reductions.join(', ')}`, async () => {
        const { fn, formula, args } = userLoss(nested(reductions, depth), 'seq-mean-token-mean');
        for (const spec of fc.sample(batchSpec, { seed: SEED, numRuns: 12 })) {
          const batch = makeBatch({ ...spec, values: 'moderate' });
          const laid = batch.rowLengths ? packedBatch(batch) : paddedBatch(batch);
          const computed = syncOf(fn, laid);
          assertSameBits(await asyncOf(fn, laid), computed);
          const judged = judge(formula, args, batch);
          if (!judged) continue;
          assertJudged(
            { ...computed, grad: batch.rowLengths ? unpack(batch, computed.grad) : computed.grad },
            judged,
          );
        }
      });
});
