/**
 * Compares the losses of the other frameworks and papers with every result of the frameworks themselves, within the
 * tolerances of test/golden/README.md. The results of drawn batches and options are compared by the cross-validation of
 * all losses.
 */
import assert from 'node:assert/strict';
import { POLICY_LOSS_FN } from '../../lib/index.js';
import { othersFormulas } from '../reference/beyond/others.js';
import { standsOnEdge } from '../reference/index.js';
import {
  cutRows,
  type FrameworkLossCase,
  goldenBatch,
  othersCases,
  referenceBatch,
} from '../support/golden.js';
import { poison } from '../support/poison.js';
import { packedBatch, paddedBatch, unpack } from '../support/subject.js';
import { assertArray, assertNumber, assertSameBits } from '../support/tolerance.js';
import { UNREPORTED } from './unreported.js';

type Computed = { loss: number; metrics: Record<string, number>; grad: ArrayLike<number> };

function holds({ source, fn, expected }: FrameworkLossCase, { loss, metrics, grad }: Computed): void {
  assertNumber(loss, expected.loss, 'loss');
  assertArray(grad, expected.grad_logprob.data, 'grad');
  const unreported = UNREPORTED[`${source} ${fn}`] ?? [];
  const reported = Object.keys(metrics).filter((name) => !unreported.includes(name));
  assert.deepEqual(reported.sort(), Object.keys(expected.metrics).sort());
  for (const [name, value] of Object.entries(expected.metrics))
    assertNumber(metrics[name], value, name, 0, 1e-4);
}

describe('golden policy losses of other frameworks and papers', () => {
  for (const each of othersCases) {
    it(each.id, async () => {
      const { fn, args, inputs } = each;
      const batch = referenceBatch(inputs);
      assert.ok(!standsOnEdge(othersFormulas[fn]!, args, batch), 'a token stands on a threshold');
      const loss = POLICY_LOSS_FN.create(fn, args);
      const computed = loss.computeSync(goldenBatch(inputs), { grad: true }) as Computed & {
        grad: Float32Array;
      };
      holds(each, computed);
      assertSameBits((await loss.compute(goldenBatch(inputs), { grad: true })) as typeof computed, computed);
      assertSameBits(
        loss.computeSync(paddedBatch(poison(batch, Number.NaN)), { grad: true }) as typeof computed,
        computed,
      );
      const cut = cutRows(batch);
      const packed = loss.computeSync(packedBatch(cut), { grad: true }) as typeof computed;
      holds(each, { ...packed, grad: unpack(cut, packed.grad) });
    });
  }
});
