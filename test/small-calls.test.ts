/**
 * Tests asynchronous calls on small batches, which the JavaScript thread may compute itself: they let timers and I/O run,
 * have the results of computeSync(), and end with an error as other calls do.
 */
import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { readFile } from 'node:fs/promises';
import { setImmediate } from 'node:timers/promises';
import { CallCost } from '../lib/core/turn-budget.js';
import { ALGORITHM_TYPE, lossFromExpression, POLICY_LOSS_FN } from '../lib/index.js';
import { oneOfEach } from './support/countable.js';
import { type BatchSpec, EDGE_LENGTHS, fitting, layOut, makeBatch, makeRewarded } from './support/draw.js';
import { packedBatch, subject } from './support/subject.js';
import { assertSameArray } from './support/tolerance.js';

const SMALL: BatchSpec = { ...EDGE_LENGTHS, rows: 4, columns: 64, rowLengths: [1, 33, 64, 5] };
const IN_FLIGHT = 64;
/** More calls than the event loop needs for anything that these tests wait for. */
const MOST_CALLS = 1_000_000;

const ppo = POLICY_LOSS_FN.create('ppo');
const batch = packedBatch(makeBatch(SMALL));

/** Makes calls one after another until `done` returns true. Never waits for anything else. */
async function callUntil(done: () => boolean): Promise<void> {
  for (let calls = 0; !done(); calls++) {
    assert.ok(calls < MOST_CALLS, 'the event loop waits');
    await ppo.compute(batch);
  }
}

describe('small asynchronous calls', () => {
  for (const [title, loops] of [
    ['calls that follow each other', 1],
    [`${IN_FLIGHT} calls at a time`, IN_FLIGHT],
  ] as const)
    it(`${title} let timers and I/O run`, async () => {
      const events = new Set<string>();
      setTimeout(() => {
        events.add('timer');
        setTimeout(() => events.add('second timer'), 1);
      }, 1);
      void readFile(new URL(import.meta.url)).then(() => events.add('file'));
      const isDone = () => events.size === 3;
      await Promise.all(Array.from({ length: loops }, () => callUntil(isDone)));
    });

  for (const { family, name, args } of oneOfEach())
    it(`${IN_FLIGHT} of ${family} ${name} have the same bits as computeSync()`, async () => {
      const fn = subject(family, name, args);
      const given = packedBatch(makeBatch(fitting(name, args, SMALL)));
      const { loss, metrics, grad } = fn.sync(given);
      const results = await Promise.all(Array.from({ length: IN_FLIGHT }, () => fn.async(given)));
      for (const result of results) {
        assert.ok(Object.is(result.loss, loss));
        assert.deepEqual(result.metrics, metrics);
        assertSameArray(result.grad, grad, 'grad');
      }
      assert.equal(new Set(results.map((result) => result.grad.buffer)).size, IN_FLIGHT);
    });

  it('of an objective and of an expression have the same bits as computeSync()', async () => {
    const rewarded = layOut(makeRewarded({ ...SMALL, groups: 'some', rewards: 'normal', perToken: false }));
    for (const [fn, given] of [
      [ALGORITHM_TYPE.get('grpo').objective(), rewarded],
      [lossFromExpression('-A*min(r, 1.2)*batch_mean(r)'), batch],
    ] as const) {
      const expected = fn.computeSync(given, { grad: true });
      for (const result of await Promise.all(
        Array.from({ length: IN_FLIGHT }, () => fn.compute(given, { grad: true })),
      ))
        assert.deepEqual({ ...result }, { ...expected });
    }
  });

  it('at the same time have the results of their own batches, also after some of them failed', async () => {
    const batches = Array.from({ length: IN_FLIGHT }, (_, seed) =>
      packedBatch(makeBatch({ ...SMALL, seed })),
    );
    const expected = batches.map((given) => ppo.computeSync(given));
    const computed = () => Promise.all(batches.map((given) => ppo.compute(given)));
    assert.deepEqual(await computed(), expected);
    const controller = new AbortController();
    const { signal } = controller;
    const failing = batches.map((given) => ppo.compute(given, { signal }));
    const beside = computed();
    controller.abort();
    await Promise.allSettled(failing);
    assert.deepEqual(await beside, expected);
    assert.deepEqual(await computed(), expected);
  });

  it('never throw, but reject', async () => {
    const wrong = { ...batch, oldLogprob: new Float32Array(3) };
    for (let i = 0; i < IN_FLIGHT; i++)
      await assert.rejects(ppo.compute(wrong), { name: 'LossError', code: 'ERR_SHAPE_MISMATCH' });
  });

  it('end with ERR_ABORTED or with a result if a signal aborts them, and leave no listener', async () => {
    const expected = ppo.computeSync(batch).loss;
    const aborted = AbortSignal.abort('why');
    await setImmediate();
    await assert.rejects(ppo.compute(batch, { signal: aborted }), { code: 'ERR_ABORTED', cause: 'why' });
    const controller = new AbortController();
    const { signal } = controller;
    const calls = Array.from({ length: 2 * IN_FLIGHT }, () => ppo.compute(batch, { signal }));
    await Promise.race(calls);
    controller.abort();
    for (const result of await Promise.allSettled(calls))
      if (result.status === 'fulfilled') assert.equal(result.value.loss, expected);
      else assert.equal(result.reason.code, 'ERR_ABORTED');
    assert.equal(getEventListeners(signal, 'abort').length, 0);
    await assert.rejects(ppo.compute(batch, { signal: 5 as never }), { code: 'ERR_INVALID_INPUT' });
  });
});

describe('the time of calls that are computed at once', () => {
  const busy = (milliseconds: number) => () => {
    const end = performance.now() + milliseconds;
    while (performance.now() < end);
  };

  const quick = () => {};

  it('is limited in each turn of the event loop, for all functions together', async () => {
    const [one, other] = [new CallCost(0), new CallCost(0)];
    await setImmediate();
    assert.ok(one.fits(1000) && other.fits(1000));
    one.run(1000, busy(0.06));
    assert.ok(!one.fits(10) && !other.fits(10));
    await Promise.resolve();
    assert.ok(!other.fits(10));
    await setImmediate();
    assert.ok(other.fits(1000));
  });

  it('is learned, so that slow functions run elsewhere, and tried again', async () => {
    const cost = new CallCost(0);
    for (let i = 0; i < 16; i++) cost.run(2000, busy(0.06));
    await setImmediate();
    assert.ok(!cost.fits(2000) && !cost.isSmall(2000));
    // A call that is tried may be interrupted, too. The first one is, for long.
    for (let tries = 0; !cost.isSmall(2000); tries++) {
      assert.ok(tries < 8);
      let skipped = 0;
      while (!cost.fits(2000)) assert.ok(++skipped < 100 * 2 ** tries);
      assert.ok(skipped > 50, String(skipped));
      cost.run(2000, tries === 0 ? busy(0.2) : quick);
      await setImmediate();
    }
  });

  it('does not depend on some slow calls, such as the first ones', async () => {
    const cost = new CallCost(0);
    for (let i = 0; i < 40; i++) cost.run(2000, i % 8 === 7 ? quick : busy(0.06));
    assert.ok(cost.isSmall(2000));
  });

  it('of small batches says nothing about larger ones', () => {
    const cost = new CallCost(0);
    for (let i = 0; i < 16; i++) cost.run(1, quick);
    assert.ok(cost.isSmall(4096));
  });

  it('is expected to be long for long programs and large batches', async () => {
    await setImmediate();
    assert.ok(!new CallCost(1000).fits(1000));
    const fast = new CallCost(0);
    for (let i = 0; i < 100; i++) fast.run(1e9, quick);
    await setImmediate();
    assert.ok(fast.fits(16_384) && !fast.fits(16_385));
  });
});
