/**
 * Tests asynchronous calls on small batches, which the JavaScript thread computes itself: they let timers and I/O run,
 * have the results of computeSync(), and end with an error as other calls do.
 */
import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { readFile } from 'node:fs/promises';
import { setImmediate } from 'node:timers/promises';
import type { NativeCall } from '../../binding.js';
import { native } from '../../lib/base/native.js';
import { ALGORITHM_TYPE, lossFromExpression, POLICY_LOSS_FN } from '../../lib/index.js';
import { type BatchSpec, EDGE_LENGTHS, layOut, makeBatch, makeRewarded } from '../support/draw.js';
import { fitting } from '../support/draw-arguments.js';
import { oneOfEach } from '../support/functions.js';
import { packedBatch, subject } from '../support/subject.js';
import { assertSameArray } from '../support/tolerance.js';

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

describe('asynchronous calls that are computed at once', () => {
  const { evaluate } = native;
  /** For each native call in the order in which they began: whether other threads compute it. */
  let calls: boolean[];
  beforeEach(async () => {
    // Until here, calls of earlier tests may take turns of the event loop.
    for (let turn = 0; turn < 10; turn++) await setImmediate();
    calls = [];
    native.evaluate = ((call: NativeCall & { later?: boolean }) => {
      calls.push(call.later === true);
      return evaluate(call);
    }) as typeof evaluate;
  });
  afterEach(() => {
    native.evaluate = evaluate;
  });

  const columns = (rows: number, length: number) => ({
    shape: [rows, length] as const,
    logprob: new Float32Array(rows * length).fill(-1),
    oldLogprob: new Float32Array(rows * length).fill(-1.1),
    advantages: new Float32Array(rows * length).fill(1),
    actionMask: new Uint8Array(rows * length).fill(1),
  });

  for (const [rows, length, isSmall] of [
    [0, 0, true],
    [1, 8192, true],
    [8, 512, true],
    [32, 256, true],
    [1, 8193, false],
    [33, 1, false],
    [33, 0, false],
  ] as const)
    it(`${isSmall ? 'include' : 'do not include'} those on ${rows} rows of ${length} tokens`, async () => {
      const given = columns(rows, length);
      const promise = ppo.compute(given, { grad: true });
      assert.deepEqual(calls, [!isSmall]);
      const { loss, grad } = await promise;
      const expected = ppo.computeSync(given, { grad: true });
      assert.ok(Object.is(loss, expected.loss));
      assertSameArray(grad!, expected.grad!, 'grad');
    });

  it('are one in a turn of the event loop, even if many begin in it', async () => {
    const given = columns(8, 512);
    const promises = Array.from({ length: IN_FLIGHT }, () => ppo.compute(given));
    for (let turn = 0; turn < IN_FLIGHT; turn++) {
      // Two calls share a turn if the second one had to wait for it and the first one begins in it.
      assert.ok(calls.length <= 2 * (turn + 1), `${calls.length} calls after ${turn} turns`);
      await setImmediate();
    }
    await Promise.all(promises);
    assert.equal(calls.length, IN_FLIGHT);
    assert.ok(calls.every((later) => !later));
  });
});
