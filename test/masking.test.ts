/**
 * Tests that the values of masked tokens do not change a single bit of the loss, the metrics or the gradient. Also
 * tests that the gradient of masked tokens is exactly 0. Covers every function with every aggregation, padded and
 * packed. Masks that end early end before, at and after the limits of blocks, tiles and chunks.
 */
import assert from 'node:assert/strict';
import type { Batch } from '../lib/index.js';
import type { ReferenceBatch } from './reference/index.js';
import { type BatchSpec, fitting, makeBatch } from './support/draw.js';
import { everyFunction } from './support/functions.js';
import { HOSTILE, poison } from './support/poison.js';
import { packedBatch, paddedBatch, type Subject, subject, unpack } from './support/subject.js';
import { assertComputed, assertSameBits } from './support/tolerance.js';

// Masks of rows that end after so many tokens. The engine computes 64 tokens as a block, 512 or 1,024 as a tile, and 16,384
// as a chunk of a row of more than 32,768.
const ENDS = [0, 1, 63, 64, 65, 511, 512, 513, 1024, 1025, 1500, 1600];
const ENDS_OF_LONG_ROWS = [16_384, 33_000, 16_385, 0];

interface Ended {
  readonly batch: ReferenceBatch;
  readonly laid: Batch;
  /** The batch with hostile values in its masked tokens. */
  readonly poisoned: readonly Batch[];
}

const known = new Map<string, Ended>();

/** Draws a batch whose rows end early. Most functions get the same one. */
function ended(spec: BatchSpec, ends: readonly number[], keepSigns: boolean): Ended {
  const key = JSON.stringify([spec, ends, keepSigns]);
  const before = known.get(key);
  if (before) return before;
  const batch = endRows(makeBatch(spec), ends);
  const poisoned = HOSTILE.map((value) => paddedBatch(poison(batch, value, keepSigns)));
  const made = { batch, laid: paddedBatch(batch), poisoned };
  known.set(key, made);
  return made;
}

/** Returns a batch whose rows are masked from these ends on, in turn. Every third row also has a hole. */
function endRows(batch: ReferenceBatch, ends: readonly number[]): ReferenceBatch {
  const { rows, columns } = batch;
  const actionMask = Uint8Array.from({ length: rows * columns }, (_, i) => {
    const row = Math.floor(i / columns);
    const end = ends[row % ends.length]!;
    const t = i % columns;
    return t < end && !(row % 3 === 2 && t === end >> 1) ? 1 : 0;
  });
  return { ...batch, actionMask };
}

describe('masking', () => {
  const seen = new Set<string>();
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

      // The first arguments of a function stand for all.
      const endings = packed || seen.has(`${family} ${name}`) ? [] : [ENDS, ENDS_OF_LONG_ROWS];
      seen.add(`${family} ${name}`);
      for (const ends of endings) {
        const columns = ends === ENDS ? 1600 : 33_000;
        it(`${title}: masks that end early in rows of ${columns} tokens`, () => {
          const { batch, laid, poisoned } = ended(
            { ...spec, rows: ends.length, columns },
            ends,
            args.enable_sequence_masking === true,
          );
          const fn = on();
          const computed = fn.sync(laid);
          assertComputed(computed, fn.reference(batch));
          for (const hostile of poisoned) assertSameBits(fn.sync(hostile), computed);
          computed.grad.forEach((g, i) => {
            if (!batch.actionMask[i]) assert.ok(Object.is(g, 0), `grad[${i}] is ${g} under the mask`);
          });
        });
      }

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
