/** Compares random expressions with the float64 reference, in all aggregations. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { LOSS_AGG_MODES } from '../../lib/base/options.js';
import { batchSpec, makeBatch } from '../support/draw.js';
import { assertJudged, EXPRESSIONS, judge } from '../support/expressions.js';
import { packedBatch, paddedBatch, unpack } from '../support/subject.js';
import { syncOf, userLoss } from '../support/user-loss.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
const RUNS = Number(process.env.FC_RUNS ?? 200);

describe('random expressions agree with the reference', () => {
  for (const level of ['token', 'row', 'batch', 'pairs'] as const)
    for (const mode of LOSS_AGG_MODES)
      it(`${level} expressions, ${mode}`, () => {
        const expression = EXPRESSIONS[level];
        let compared = 0;
        fc.assert(
          fc.property(expression, expression, batchSpec, (loss, metric, spec) => {
            const batch = makeBatch(
              level === 'pairs' ? { ...spec, rows: spec.rows + (spec.rows % 2) } : spec,
            );
            const { fn, formula, args } = userLoss(loss, mode, { metric });
            const judged = judge(formula, args, batch);
            if (!judged) return;
            const computed = syncOf(fn, batch.rowLengths ? packedBatch(batch) : paddedBatch(batch));
            const grad = batch.rowLengths ? unpack(batch, computed.grad) : computed.grad;
            assertJudged({ ...computed, grad }, judged);
            if (grad.some((g) => g !== 0)) compared++;
          }),
          { numRuns: RUNS, seed: SEED + LOSS_AGG_MODES.indexOf(mode) },
        );
        assert.ok(compared > RUNS / 5, `only ${compared} losses have a gradient`);
      });
});
