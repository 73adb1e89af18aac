/**
 * Tests the arrays that calls return: that native code writes all of their elements, whatever the memory held before, and
 * that they are ordinary arrays, which the event loop need not wait for.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { halfResultArray, resultArray } from '../../lib/base/result-arrays.js';
import { KL_FN, logprobsBackwardSync } from '../../lib/index.js';
import { type BatchSpec, EDGE_LENGTHS, laidOut, makeBatch } from '../support/draw.js';
import { inMemoryOf } from '../support/result-memory.js';
import { assertSameArray } from '../support/tolerance.js';

// Several chunks, and rows that end within tiles.
const LARGE: BatchSpec = {
  ...EDGE_LENGTHS,
  rows: 12,
  columns: 9000,
  rowLengths: [1, 31, 64, 65, 500, 1023, 1025, 2048, 2100, 3000, 4000, 9000],
};
const MASKS = ['emptyrows', 'zero'] as const;
const MIB = 2 ** 20;

/** Calls `compute` with results in memory of zeros, and with results in memory of NaN. */
const inZeros = <T>(compute: () => T | Promise<T>) => inMemoryOf(0, compute);
const inNaN = <T>(compute: () => T | Promise<T>) => inMemoryOf(255, compute);

describe('every element of a result is written', () => {
  for (const name of KL_FN.names())
    it(`KL values and penalties of ${name}`, async () => {
      const fn = KL_FN.create(name, name === 'adaptive' ? { target_kl: 1, horizon: 1 } : {});
      for (const mask of MASKS) {
        const batch = laidOut(makeBatch({ ...LARGE, mask }));
        if (name === 'none') return assert.ok((await fn.calculateKl(batch)).every((kl) => kl === 0));
        const values = await inZeros(() => fn.calculateKl(batch));
        assertSameArray(await inNaN(() => fn.calculateKl(batch)), values, 'KL');
        const scored = { ...batch, tokenLevelScores: values };
        const { tokenLevelRewards } = await inZeros(() => fn.applyKlPenaltyToReward(scored));
        const again = await inNaN(() => fn.applyKlPenaltyToReward(scored));
        assertSameArray(again.tokenLevelRewards, tokenLevelRewards, 'rewards');
      }
    });

  it('a gradient with respect to logits', async () => {
    const [rows, vocabulary] = [8, 4100];
    const options = {
      shape: [rows, vocabulary],
      targets: new Int32Array(rows).fill(5),
      actionMask: Uint8Array.from({ length: rows }, (_, row) => row % 2),
      gradLogprob: new Float64Array(rows).fill(1),
    } as const;
    const logits = Float32Array.from({ length: rows * vocabulary }, (_, i) => Math.sin(i));
    const expected = await inZeros(() => logprobsBackwardSync(logits, options));
    assertSameArray(await inNaN(() => logprobsBackwardSync(logits, options)), expected, 'gradient');
  });
});

describe('the arrays of results', () => {
  it('have a buffer of their own, of exactly their size', () => {
    const buffers = new Set<ArrayBuffer>();
    for (const length of [0, 0, 1, 2, 3, 7, 8, 1023, 1024, 2047, 2049, 20_001])
      for (const array of [resultArray('results', length), halfResultArray('results', length)]) {
        const { buffer, byteOffset, byteLength } = array;
        assert.equal(array.length, length);
        assert.deepEqual([byteOffset, buffer.byteLength], [0, byteLength]);
        assert.equal(Object.getPrototypeOf(buffer), ArrayBuffer.prototype);
        assert.ok(!buffers.has(buffer));
        buffers.add(buffer);
      }
  });

  it('that are too large are an error', () => {
    for (const length of [2 ** 40, 2 ** 53])
      assert.throws(() => resultArray('results', length), { code: 'ERR_OUT_OF_MEMORY' });
  });

  it('go to other threads and outlive the thread that made them', async () => {
    const worker = new Worker(
      `import('tsx/esm/api').then(async ({ register }) => {
        register();
        const { resultArray } = await import(${JSON.stringify(new URL('../../lib/base/result-arrays.js', import.meta.url).href)});
        const { parentPort } = require('node:worker_threads');
        parentPort.once('message', (received) => {
          for (let i = 0; i < received.length; i++) received[i]++;
          const made = resultArray('results', ${MIB / 4}).fill(5);
          parentPort.postMessage([received, made], [received.buffer, made.buffer]);
        });
      });`,
      { eval: true },
    );
    const sent = resultArray('results', MIB / 4).fill(3);
    worker.postMessage(sent, [sent.buffer]);
    assert.equal(sent.length, 0);
    const [[returned, made]] = (await once(worker, 'message')) as [[Float32Array, Float32Array]];
    await once(worker, 'exit');
    assert.ok(returned.every((value) => value === 4));
    assert.ok(made.every((value) => value === 5));
  });
});
