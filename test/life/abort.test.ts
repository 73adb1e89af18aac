/**
 * Tests AbortSignals that abort at every stage of a call: before it, while it waits, while it computes, and after it. A
 * call must end either with ERR_ABORTED or with its result, and must leave no listener on the signal.
 */
import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  ENTROPY_LOSS_FN,
  KL_FN,
  LossError,
  logprobs,
  logprobsBackward,
  POLICY_LOSS_FN,
} from '../../lib/index.js';
import { flatBatch } from './support.js';

const batch = {
  ...flatBatch(64, 10_000),
  refLogprob: new Float32Array(640_000),
  entropy: new Float32Array(640_000),
  rewards: Float64Array.from({ length: 64 }, (_, row) => row),
  groupIds: new Int32Array(64),
};
const { advantages: _, ...rewarded } = batch;
const reason = new Error('no longer wanted');

const logits = new Float32Array(64 * 200_000);
const out = new Float32Array(64 * 200_000);
const fromLogits = {
  shape: [64, 200_000],
  softcap: 30,
  targets: new Int32Array(64),
  logsumexp: new Float64Array(64),
  gradLogprob: new Float64Array(64),
} as const;

type Call = (signal: AbortSignal) => Promise<unknown>;
const CALLS: Record<string, Call> = {
  'a policy loss': (signal) => POLICY_LOSS_FN.create('ppo').compute(batch, { grad: true, signal }),
  'a KL loss': (signal) => KL_FN.create('k3').calculateKlLoss(batch, { grad: true, signal }),
  'an entropy loss': (signal) => ENTROPY_LOSS_FN.create('default').compute(batch, { grad: true, signal }),
  'an advantage function': (signal) => ADVANTAGE_FN.create('grpo').compute(batch, { signal }),
  'an objective': (signal) =>
    ALGORITHM_TYPE.get('grpo').objective().compute(rewarded, { grad: true, signal }),
  'log-probabilities from logits': (signal) => logprobs(logits, { ...fromLogits, signal }),
  'a gradient with respect to logits': async (signal) => ({
    grad: await logprobsBackward(logits, { ...fromLogits, out, signal }),
  }),
  'a policy loss from logits': (signal) =>
    POLICY_LOSS_FN.create('ppo').fromLogits(
      {
        shape: [1, 64],
        logits,
        targets: new Int32Array(64),
        softcap: 30,
        oldLogprob: new Float32Array(64),
        advantages: new Float32Array(64).fill(1),
        actionMask: new Uint8Array(64).fill(1),
      },
      { gradLogits: out, signal },
    ),
};

const isAbort = (error: unknown) => {
  assert.ok(error instanceof LossError, String(error));
  assert.equal(error.code, 'ERR_ABORTED');
  assert.equal(error.cause, reason);
  return true;
};

/** Keeps all threads of the pool busy for a while, so that the next calls have to wait. */
async function occupy(): Promise<void> {
  const fn = POLICY_LOSS_FN.create('ppo');
  const grad = new Float32Array(640_000);
  await Promise.all(Array.from({ length: 200 }, () => fn.compute(batch, { grad })));
}

describe('abort', () => {
  for (const [what, call] of Object.entries(CALLS))
    describe(what, () => {
      it('before the call', async () => {
        const signal = AbortSignal.abort(reason);
        await assert.rejects(call(signal), isAbort);
        assert.equal(getEventListeners(signal, 'abort').length, 0);
      });

      it('while it waits for other calls', async () => {
        const busy = occupy();
        const controller = new AbortController();
        const promise = call(controller.signal);
        controller.abort(reason);
        await assert.rejects(promise, isAbort);
        await busy;
        assert.equal(getEventListeners(controller.signal, 'abort').length, 0);
      });

      it('at any time during the computation', async () => {
        const whole = await call(new AbortController().signal);
        for (let turns = 0; turns < 40; turns++) {
          const controller = new AbortController();
          const promise = call(controller.signal).then((result) => {
            assert.equal(controller.signal.aborted, false);
            assert.deepEqual(withoutArrays(result), withoutArrays(whole));
          }, isAbort);
          for (let turn = 0; turn < turns; turn++) await new Promise(setImmediate);
          controller.abort(reason);
          await promise;
          assert.equal(getEventListeners(controller.signal, 'abort').length, 0);
        }
      });

      it('as soon as the computation has ended, before the event loop sees it', async () => {
        const controller = new AbortController();
        const promise = call(controller.signal);
        // This thread learns of the end when it waits for events, which it does not do here.
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
        controller.abort(reason);
        await assert.rejects(promise, isAbort);
      });

      it('after the call', async () => {
        const controller = new AbortController();
        const result = await call(controller.signal);
        controller.abort(reason);
        assert.ok(result);
        assert.equal(getEventListeners(controller.signal, 'abort').length, 0);
      });

      it('by one signal for many calls, repeatedly', async () => {
        const controller = new AbortController();
        const warnings: string[] = [];
        const warned = ({ name }: Error) => warnings.push(name);
        process.on('warning', warned);
        for (let round = 0; round < 5; round++)
          await Promise.all(Array.from({ length: 16 }, () => call(controller.signal)));
        await new Promise(setImmediate);
        process.off('warning', warned);
        assert.deepEqual(warnings, []);
        assert.equal(getEventListeners(controller.signal, 'abort').length, 0);
        const busy = occupy();
        const together = Promise.allSettled(Array.from({ length: 8 }, () => call(controller.signal)));
        controller.abort(reason);
        for (const end of await together) {
          assert.equal(end.status, 'rejected');
          isAbort((end as PromiseRejectedResult).reason);
        }
        await busy;
      });

      it('leaves no listener behind if the call is refused', async () => {
        const controller = new AbortController();
        const refused = POLICY_LOSS_FN.create('ppo').compute(
          { ...batch, logprob: new Float32Array(1) },
          {
            signal: controller.signal,
          },
        );
        await assert.rejects(refused, LossError);
        assert.equal(getEventListeners(controller.signal, 'abort').length, 0);
      });
    });
});

function withoutArrays(result: unknown): unknown {
  return Object.fromEntries(
    Object.entries(result as object).filter(([, value]) => !ArrayBuffer.isView(value)),
  );
}
