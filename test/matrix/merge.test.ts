/**
 * Tests what parts of a batch are merged from and into, and that masks on other tokens do not change the gradient of a
 * row. Covers every function.
 */
import assert from 'node:assert/strict';
import { type Batch, LossError } from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import { type Computed, countable } from '../support/countable.js';
import { type BatchSpec, EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { fitting } from '../support/draw-arguments.js';
import { everyFunction } from '../support/functions.js';
import { generator } from '../support/random.js';
import { packedBatch, unpack } from '../support/subject.js';
import { assertSameArray } from '../support/tolerance.js';
import { objectives } from './composed.js';
import { assertForms, variations } from './forms.js';
import { divisible } from './tested.js';

const batches = new Map<string, RewardedBatch>();

/** Returns the batch of a description, which is made once. */
function batchOf(spec: BatchSpec): RewardedBatch {
  const key = JSON.stringify(spec);
  const batch = batches.get(key) ?? makeBatch(spec);
  batches.set(key, batch);
  return batch;
}

function assertSameNumbers(actual: Computed, expected: Computed, what: string): void {
  const { loss, metrics } = expected;
  assert.deepStrictEqual({ loss: actual.loss, metrics: actual.metrics }, { loss, metrics }, what);
}

/** Returns the first `length` tokens of row `row` of a padded column. */
const tokensOf = (column: Float32Array, columns: number, row: number, length: number) =>
  column.subarray(row * columns, row * columns + length);

describe('an objective of a large batch', () => {
  // The engine takes padded rows of this length for a batch that does not fit into the caches, and computes the terms of
  // an objective in other turns than for the packed rows.
  it('has the same bits in any form', async () => {
    const [ofPpo] = objectives();
    const batch = batchOf({
      ...EDGE_LENGTHS,
      rows: 4,
      columns: 140_001,
      rowLengths: [140_001, 7, 20_000, 300],
    });
    await assertForms(
      ofPpo!,
      batch,
      variations(ofPpo!, ['layout', 'call', 'parts'], { seed: 1, combined: 1 }),
      'a large batch',
    );
  });
});

describe('masks on other tokens', () => {
  // With token-mean and given counts, the weight of a row does not depend on its mask.
  const functions = everyFunction(1).filter(
    ({ family, name, args }) =>
      family !== 'reward' && // Losses of rewards read no tokens.
      [undefined, 'token-mean'].includes(args.loss_agg_mode as string) &&
      !countable(family, name, divisible(name, args)).readsWholeBatch,
  );

  for (const { family, name, args } of functions)
    it(`${family} ${name}: other rows' masks do not change the gradient of a row`, () => {
      const given = divisible(name, args);
      const batch = batchOf(fitting(name, given, { ...EDGE_LENGTHS, mask: 'ones' }));
      const fn = countable(family, name, given);
      const counts = fn.countSync(packedBatch(batch));
      const before = unpack(batch, fn.sync(packedBatch(batch), counts).grad!);
      const { uniform } = generator(5);
      const kept = [2, 3, 8, 9]; // whole pairs, for dpo
      const actionMask = Array.from(batch.actionMask, (unmasked, i) =>
        kept.includes(Math.floor(i / batch.columns)) || uniform() < 0.5 ? unmasked : 0,
      );
      const masked = { ...batch, actionMask };
      const after = unpack(batch, fn.sync(packedBatch(masked), counts).grad!);
      for (const b of kept) {
        const [row, expected] = [after, before].map((grad) =>
          tokensOf(grad, batch.columns, b, batch.rowLengths![b]!),
        );
        assertSameArray(row!, expected!, `gradient of row ${b}`);
      }
    });
});

describe('merge', () => {
  const batch = batchOf(EDGE_LENGTHS);
  const fn = countable('policy', 'ppo', { clip_range: 0.2 });
  const laid: Batch = packedBatch(batch);
  const counts = fn.countSync(laid);
  const { part } = fn.sync(laid, counts, { part: true }) as { part: Float64Array };
  const refused = (parts: unknown, code: string, index?: number) =>
    assert.throws(
      () => fn.merge(parts as Float64Array[], counts),
      (error) => error instanceof LossError && error.code === code && error.index === index,
    );

  it('accepts parts that were sent as JSON', () => {
    const sent = JSON.parse(JSON.stringify(Array.from(part))) as number[];
    assertSameNumbers(fn.merge([sent as unknown as Float64Array], counts), fn.sync(laid, counts), 'sent');
  });

  it('refuses what is not a list of parts of the function', () => {
    refused([], 'ERR_INVALID_INPUT');
    refused(undefined, 'ERR_INVALID_INPUT');
    refused([part, [1, 2]], 'ERR_INVALID_INPUT', 1);
    refused([part, null], 'ERR_INVALID_INPUT', 1);
    refused([part, new Array(2 ** 32 - 1)], 'ERR_INVALID_INPUT', 1);
    refused(new Array(2 ** 32 - 1), 'ERR_INVALID_INPUT');
    refused(new Array(2), 'ERR_INVALID_INPUT', 0);
    refused([Array.from(part, String)], 'ERR_INVALID_INPUT', 0);
    const kl = countable('kl', 'k3', { loss_agg_mode: 'token-mean' }).sync(laid, counts, { part: true }).part;
    refused([kl], 'ERR_INVALID_INPUT');
    refused([part, kl], 'ERR_INVALID_INPUT');
  });

  it('reads each count of the normalizer once', () => {
    let reads = 0;
    const changing = Object.defineProperty({ ...counts }, 'columns', {
      get: () => (reads++ === 0 ? counts.columns : assert.fail('read twice')),
    });
    assertSameNumbers(fn.merge([part], changing), fn.sync(laid, counts), 'with a getter');
  });

  it('propagates NaN and Infinity', () => {
    for (const value of [Number.NaN, Number.POSITIVE_INFINITY]) {
      const bad = {
        ...batch,
        advantages: Array.from(batch.advantages!, (x, i) => (i === 3 * batch.columns ? value : x)),
      };
      bad.actionMask = Array.from(batch.actionMask, (m, i) => (i === 3 * batch.columns ? 1 : m));
      const whole = fn.sync(packedBatch(bad), counts, { part: true });
      assert.ok(!Number.isFinite(whole.loss));
      assertSameNumbers(
        fn.merge([whole.part!, part], counts),
        { ...whole, metrics: fn.merge([whole.part!, part], counts).metrics },
        'with another part',
      );
    }
  });
});
