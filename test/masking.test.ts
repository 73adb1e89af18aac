/**
 * Tests that the values of masked tokens do not change a single bit of the loss, the metrics or the gradient. Also
 * tests that the gradient of masked tokens is exactly 0. Covers every function with every aggregation, padded and
 * packed.
 */
import assert from 'node:assert/strict';
import type { Batch } from '../lib/index.js';
import type { ReferenceBatch } from './reference/index.js';
import { everyFunction, fitting, makeBatch } from './support/draw.js';
import { HOSTILE, poison } from './support/poison.js';
import { packedBatch, paddedBatch, type Subject, subject, unpack } from './support/subject.js';
import { assertComputed, assertSameBits } from './support/tolerance.js';

describe('masking', () => {
  for (const { family, name, args, title } of everyFunction()) {
    let made: Subject | undefined;
    const on = () => {
      made ??= subject(family, name, args);
      return made;
    };
    const layouts: [string, boolean, (batch: ReferenceBatch) => Batch][] = [
      ['padded', false, paddedBatch],
      ['packed', true, packedBatch],
    ];
    for (const [layout, packed, lay] of layouts) {
      const spec = fitting(name, args, {
        seed: 11,
        rows: 6,
        columns: 37,
        values: 'moderate',
        mask: 'random',
        packed,
      });

      it(`${title}: ${layout}, masked tokens have no effect`, () => {
        const batch = makeBatch(spec);
        const fn = on();
        const computed = fn.sync(lay(batch));
        for (const value of HOSTILE) {
          assertSameBits(fn.sync(lay(poison(batch, value, args.enable_sequence_masking === true))), computed);
        }
        const grad = packed ? unpack(batch, computed.grad) : computed.grad;
        grad.forEach((g, i) => {
          if (!batch.actionMask[i]) assert.ok(Object.is(g, 0), `grad[${i}] is ${g} under the mask`);
        });
      });

      it(`${title}: ${layout}, rows and batches without an unmasked token`, () => {
        for (const mask of ['emptyrows', 'zero'] as const) {
          const batch = makeBatch({ ...spec, mask });
          const fn = on();
          const computed = fn.sync(lay(poison(batch, Number.NaN, args.enable_sequence_masking === true)));
          const grad = packed ? unpack(batch, computed.grad) : computed.grad;
          assertComputed({ ...computed, grad }, fn.reference(batch));
          for (const number of [computed.loss, ...Object.values(computed.metrics), ...grad]) {
            assert.ok(Number.isFinite(number), `${number} is not finite`);
          }
          if (mask === 'zero')
            assert.ok(
              grad.every((g) => Object.is(g, 0)),
              'a gradient without a token',
            );
        }
      });
    }
  }
});
