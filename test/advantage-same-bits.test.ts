/**
 * Tests that advantages have the same bits in whatever form they are requested: synchronously or not, on any number of
 * threads, for packed and padded rows with any padding, and for 16-bit columns and their widened values. Covers every
 * advantage function.
 */
import { cpus } from 'node:os';
import fc from 'fast-check';
import { type AdvantageResult, type Batch, setThreads } from '../lib/index.js';
import type { RewardedBatch } from './reference/advantage.js';
import { rowPositions } from './reference/batch.js';
import { assertSameAdvantages, create } from './support/advantages.js';
import { ADVANTAGE_ARGUMENTS, inHalf, layOut, makeRewarded, type RewardSpec } from './support/draw.js';

const SPEC: RewardSpec = {
  seed: 31,
  rows: 8,
  columns: 40_001,
  // Lengths on both sides of the numbers of tokens at which loops, tiles, sums and parts of a row end.
  rowLengths: [1, 31, 65, 1023, 1025, 2100, 17_000, 40_001],
  values: 'moderate',
  mask: 'random',
  packed: true,
  groups: 'some',
  rewards: 'normal',
  perToken: true,
};
const BATCHES = [true, false].map((perToken) => {
  const batch = makeRewarded({ ...SPEC, perToken });
  return { batch, laid: layOut(batch), half: inHalf(batch, 'bfloat16') };
});
const PADDING = 1500;

/** Returns a packed batch in the padded layout, with zeros and masked tokens after each row. */
function padded(batch: RewardedBatch): Batch {
  const columns = batch.columns + PADDING;
  const packed = layOut(batch);
  const wide: Record<string, unknown> = { ...packed, shape: [batch.rows, columns] };
  delete wide.cuSeqlens;
  const tokens = batch.rowLengths!.reduce((sum, length) => sum + length);
  for (const [key, column] of Object.entries(packed)) {
    if (!(column instanceof Float32Array || column instanceof Uint8Array) || column.length !== tokens)
      continue;
    const out = new (column.constructor as Float32ArrayConstructor)(batch.rows * columns);
    let at = 0;
    for (let b = 0; b < batch.rows; b++)
      for (let t = 0; t < batch.rowLengths![b]!; t++) out[b * columns + t] = column[at++]!;
    wide[key] = out;
  }
  return wide;
}

/** Removes the padding from a result for padded(). */
function unpadded(batch: RewardedBatch, result: AdvantageResult): AdvantageResult {
  const columns = batch.columns + PADDING;
  const places = Array.from({ length: batch.rows }, (_, b) =>
    [...rowPositions(batch, b)].map((at) => b * columns + (at - b * batch.columns)),
  ).flat();
  const without = (values: Float32Array) => Float32Array.from(places, (at) => values[at]!);
  return { ...result, advantages: without(result.advantages), returns: without(result.returns) };
}

describe('the same advantages in any form', () => {
  after(() => setThreads(cpus().length));

  for (const [name, drawn] of Object.entries(ADVANTAGE_ARGUMENTS))
    for (const args of fc.sample(drawn, { seed: 7, numRuns: 2 }))
      it(`${name} ${JSON.stringify(args)}`, async () => {
        const fn = create(name, args);
        for (const { batch, laid, half } of BATCHES) {
          if (name !== 'rloo' && !fn.selectKeys.includes('token_level_rewards') && batch.tokenLevelRewards)
            continue;
          const once = fn.computeSync(laid);
          for (const threads of [1, 2, 3]) {
            setThreads(threads);
            assertSameAdvantages(fn.computeSync(laid), once);
            assertSameAdvantages(await fn.compute(laid), once);
          }
          assertSameAdvantages(unpadded(batch, fn.computeSync(padded(batch))), once);
          assertSameAdvantages(fn.computeSync(half.laid), fn.computeSync(layOut(half.rounded)));
        }
      }).timeout(20_000);
});
