/**
 * Tests the arrays that calls return: that native code writes all of their elements, whatever the memory held before, and
 * that memory is used again only when nothing refers to it any more.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Worker } from 'node:worker_threads';
import fc from 'fast-check';
import { native } from '../lib/core/native.js';
import { resultArray } from '../lib/core/result-arrays.js';
import { KL_FN, logprobsBackwardSync } from '../lib/index.js';
import type { RewardedBatch } from './reference/advantage.js';
import { assertSameAdvantages, create } from './support/advantages.js';
import { oneOfEach } from './support/countable.js';
import {
  ADVANTAGE_ARGUMENTS,
  type BatchSpec,
  EDGE_LENGTHS,
  fitting,
  laidOut,
  layOut,
  makeBatch,
  makeRewarded,
} from './support/draw.js';
import { subject } from './support/subject.js';
import { assertSameArray } from './support/tolerance.js';

// Large enough that the memory of results is recycled.
const LARGE: BatchSpec = {
  ...EDGE_LENGTHS,
  rows: 12,
  columns: 9000,
  rowLengths: [1, 31, 64, 65, 500, 1023, 1025, 2048, 2100, 3000, 4000, 9000],
};
const TOKENS = LARGE.rowLengths!.reduce((sum, length) => sum + length);
const MASKS = ['emptyrows', 'zero'] as const;
const MIB = 2 ** 20;

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

const { takeRecycled } = native;

/** Calls `compute` with results in memory that is full of the given number. */
function withContent<T>(content: number, compute: () => T): T {
  let taken = 0;
  native.takeRecycled = (bytes) => {
    taken++;
    return new Float32Array(bytes / 4).fill(content).buffer;
  };
  const result = compute();
  assert.ok(taken > 0);
  return result;
}

afterEach(() => {
  if (takeRecycled) native.takeRecycled = takeRecycled;
  else delete native.takeRecycled;
});

describe('every element of a result is written', () => {
  for (const { family, name, args } of oneOfEach())
    it(`${family} ${name}`, async () => {
      const fn = subject(family, name, args);
      for (const mask of MASKS) {
        const batch = laidOut(makeBatch(fitting(name, args, { ...LARGE, mask })));
        const { grad } = withContent(0, () => fn.sync(batch));
        assertSameArray(withContent(Number.NaN, () => fn.sync(batch)).grad, grad, 'grad');
        const { grad: later } = await withContent(Number.NaN, () => fn.async(batch));
        assertSameArray(later, grad, 'grad');
      }
    });

  for (const [name, drawn] of Object.entries(ADVANTAGE_ARGUMENTS))
    for (const args of fc.sample(drawn, { seed: 9, numRuns: 2 }))
      it(`${name} ${JSON.stringify(args)}`, async () => {
        const fn = create(name, args);
        for (const mask of MASKS)
          for (const perToken of [true, false]) {
            if (perToken && name !== 'rloo' && !fn.selectKeys.includes('token_level_rewards')) continue;
            const spec = { ...LARGE, mask, perToken, groups: 'some', rewards: 'normal' } as const;
            const batch = layOut(makeRewarded(spec) as RewardedBatch);
            const expected = withContent(0, () => fn.computeSync(batch));
            assertSameAdvantages(
              withContent(Number.NaN, () => fn.computeSync(batch)),
              expected,
            );
            assertSameAdvantages(await withContent(Number.NaN, () => fn.compute(batch)), expected);
          }
      });

  for (const name of KL_FN.names())
    it(`KL values and penalties of ${name}`, async () => {
      const fn = KL_FN.create(name, name === 'adaptive' ? { target_kl: 1, horizon: 1 } : {});
      for (const mask of MASKS) {
        const batch = laidOut(makeBatch({ ...LARGE, mask }));
        const expected = withContent(0, () => resultArray('zeros', TOKENS)).length;
        const values = await fn.calculateKl(batch);
        assert.equal(values.length, expected);
        native.takeRecycled = (bytes) => new Float32Array(bytes / 4).fill(Number.NaN).buffer;
        assertSameArray(await fn.calculateKl(batch), values, 'KL');
      }
    });

  it('a gradient with respect to logits', () => {
    const [rows, vocabulary] = [8, 4100];
    const options = {
      shape: [rows, vocabulary],
      targets: new Int32Array(rows).fill(5),
      actionMask: Uint8Array.from({ length: rows }, (_, row) => row % 2),
      gradLogprob: new Float64Array(rows).fill(1),
    } as const;
    const logits = Float32Array.from({ length: rows * vocabulary }, (_, i) => Math.sin(i));
    const expected = withContent(0, () => logprobsBackwardSync(logits, options));
    assertSameArray(
      withContent(Number.NaN, () => logprobsBackwardSync(logits, options)) as Float32Array,
      expected as Float32Array,
      'gradient',
    );
  });
});

/** Collects garbage until `done` returns true. */
async function collectUntil(done: () => boolean): Promise<void> {
  for (;;) {
    await setImmediate();
    collect();
    if (done()) return;
  }
}

describe('the memory of results', () => {
  before(function () {
    // Only some systems recycle memory.
    if (!native.takeRecycled?.(MIB)) this.skip();
  });
  afterEach(() => native.clearRecycled!());

  it('is used again after nothing refers to it', async () => {
    (() => resultArray('results', MIB / 4).fill(7))();
    await collectUntil(() => new Float32Array(native.takeRecycled!(MIB)!)[MIB / 4 - 1] === 7);
  });

  it('is not used again while anything refers to it', async () => {
    const kept = Array.from({ length: 20 }, (_, i) => {
      const { buffer } = resultArray('results', MIB / 4).fill(i);
      // Of the buffers of odd results, only a transferred one remains.
      return i % 2 === 0 ? buffer : structuredClone(buffer, { transfer: [buffer] });
    });
    for (let time = 0; time < 5; time++) {
      await setImmediate();
      collect();
      for (let i = 0; i < 30; i++) resultArray('others', MIB / 4).fill(-1);
    }
    for (const [i, buffer] of kept.entries())
      assert.ok(new Float32Array(buffer).every((value) => value === i));
  });

  it('has the size of the result', () => {
    for (const length of [20_000, 20_001]) {
      const { buffer, byteOffset } = resultArray('results', length);
      assert.deepEqual([buffer.byteLength, byteOffset], [4 * length, 0]);
      assert.equal(Object.getPrototypeOf(buffer), ArrayBuffer.prototype);
    }
  });

  it('goes to other threads and outlives the thread that made it', async () => {
    const worker = new Worker(
      `import('tsx/esm/api').then(async ({ register }) => {
        register();
        const { resultArray } = await import(${JSON.stringify(new URL('../lib/core/result-arrays.ts', import.meta.url).href)});
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
    collect();
    for (let i = 0; i < 30; i++) resultArray('others', MIB / 4).fill(-1);
    assert.ok(returned.every((value) => value === 4));
    assert.ok(made.every((value) => value === 5));
  });

  it('is bounded', () => {
    const bytes = 16 * MIB;
    // Nothing is written, so the blocks take no memory of the machine.
    let blocks = 0;
    const held: ArrayBuffer[] = [];
    for (let buffer = takeRecycled!(bytes); buffer; buffer = takeRecycled!(bytes)) blocks = held.push(buffer);
    assert.ok(blocks >= 4 && blocks <= 16, `${blocks} blocks`);
    // A result still gets memory, only not from these blocks.
    assert.equal(resultArray('results', bytes / 4).length, bytes / 4);
  });

  it('can be freed, and is then not used again', async () => {
    (() => {
      for (let i = 0; i < 8; i++) resultArray('results', MIB / 4).fill(7);
    })();
    const areNew = () => {
      const taken = Array.from({ length: 20 }, () => takeRecycled!(MIB));
      return taken.every((buffer) => buffer && new Float32Array(buffer)[MIB / 4 - 1] === 0);
    };
    await collectUntil(() => {
      native.clearRecycled!();
      return areNew();
    });
  });

  it('makes place for results of another size', async () => {
    (() => {
      for (let i = 0; i < 16; i++) takeRecycled!(16 * MIB);
    })();
    await collectUntil(() => takeRecycled!(8 * MIB) !== undefined);
  });
});
