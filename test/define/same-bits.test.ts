/**
 * Tests that losses from expressions give the same bits in whatever form a result is requested, with any number of
 * threads, and whatever the values of masked tokens are.
 */
import assert from 'node:assert/strict';
import { cpus } from 'node:os';
import fc from 'fast-check';
import { setThreads } from '../../lib/index.js';
import type { Expression } from '../reference/expression.js';
import { assertSameInAnyForm } from '../support/any-form.js';
import { countableLoss } from '../support/countable.js';
import { type BatchSpec, EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { EXPRESSIONS } from '../support/expressions.js';
import { HOSTILE, poison } from '../support/poison.js';
import { packedBatch, paddedBatch } from '../support/subject.js';
import { assertSameBits } from '../support/tolerance.js';
import { asyncOf, syncOf, userLoss } from '../support/user-loss.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
const LEVELS = ['token', 'row', 'batch'] as const;

/** Draws pairs of expressions: a loss and a metric. */
const drawn = (level: (typeof LEVELS)[number], count: number): [Expression, Expression][] =>
  fc.sample(fc.tuple(EXPRESSIONS[level], EXPRESSIONS[level]), { seed: SEED, numRuns: count });

describe('losses from expressions have the same bits', () => {
  after(() => setThreads(cpus().length));

  const edges = makeBatch(EDGE_LENGTHS);
  for (const level of LEVELS)
    it(`in any form: ${level} expressions`, async () => {
      for (const [loss, metric] of drawn(level, 40)) {
        const { fn, readsWholeBatch } = userLoss(loss, 'seq-mean-token-sum-norm', { metric });
        await assertSameInAnyForm(countableLoss(fn), edges, readsWholeBatch ? 'whole' : 1);
      }
    });

  const LONG: BatchSpec = {
    ...EDGE_LENGTHS,
    rows: 6,
    columns: 20_000,
    rowLengths: [1, 9000, 700, 20_000, 64, 3],
  };
  const long = packedBatch(makeBatch(LONG));
  for (const level of LEVELS)
    it(`on any number of threads: ${level} expressions`, async () => {
      for (const [loss, metric] of drawn(level, 15)) {
        const { fn } = userLoss(loss, 'seq-mean-token-mean', { metric });
        setThreads(1);
        const once = syncOf(fn, long);
        for (const threads of [2, 3, 8]) {
          setThreads(threads);
          assertSameBits(syncOf(fn, long), once);
          assertSameBits(await asyncOf(fn, long), once);
        }
      }
    });

  for (const packed of [false, true])
    it(`whatever is masked, ${packed ? 'packed' : 'padded'}`, () => {
      const spec = { seed: 11, rows: 6, columns: 37, values: 'moderate', mask: 'random', packed } as const;
      const lay = packed ? packedBatch : paddedBatch;
      for (const mask of ['random', 'emptyrows', 'zero'] as const) {
        const batch = makeBatch({ ...spec, mask });
        const laid = lay(batch);
        const poisoned = HOSTILE.map((value) => lay(poison(batch, value)));
        for (const [loss, metric] of drawn('batch', 60)) {
          const { fn } = userLoss(loss, 'token-mean', { metric });
          const computed = syncOf(fn, laid);
          for (const other of poisoned) assertSameBits(syncOf(fn, other), computed);
          (laid.actionMask as Uint8Array).forEach((unmasked, i) => {
            if (!unmasked) assert.ok(Object.is(computed.grad[i], 0), `grad[${i}] is ${computed.grad[i]}`);
          });
          if (mask === 'zero') assert.equal(computed.loss, 0);
        }
      }
    });
});
