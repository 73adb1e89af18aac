/**
 * Tests computeTogether(): calls that are computed together have the bits of calls on their own, and one that fails or is
 * aborted does not disturb the others.
 */
import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { cpus } from 'node:os';
import { setImmediate, setTimeout } from 'node:timers/promises';
import { native } from '../lib/core/native.js';
import {
  ALGORITHM_TYPE,
  type Batch,
  computeTogether,
  POLICY_LOSS_FN,
  setThreads,
  type Together,
} from '../lib/index.js';
import { oneOfEach } from './support/countable.js';
import { type BatchSpec, fitting, laidOut, layOut, makeBatch, makeRewarded } from './support/draw.js';
import { isLossError } from './support/loss-error.js';
import { assertSameObjective } from './support/objective.js';
import { packedBatch, type Subject, subject } from './support/subject.js';
import { assertSameBits } from './support/tolerance.js';

// Large enough to be divided among threads. One row is so long that some functions divide it and others do not.
const SPEC = {
  seed: 7,
  rows: 8,
  columns: 40_000,
  rowLengths: [1, 9000, 30, 700, 40_000, 5, 64, 3],
  values: 'moderate',
  mask: 'random',
  packed: true,
} satisfies BatchSpec;

const TOKENS = SPEC.rowLengths!.reduce((sum, length) => sum + length);

const { evaluateTogether } = native;

/** Returns the numbers of the calls that native code computes together while `use` runs. */
async function groupsDuring(use: () => Promise<void>): Promise<number[]> {
  const groups: number[] = [];
  native.evaluateTogether = (calls) => {
    groups.push(calls.length);
    return evaluateTogether(calls);
  };
  try {
    await use();
    return groups;
  } finally {
    native.evaluateTogether = evaluateTogether;
  }
}

const ppo = POLICY_LOSS_FN.create('ppo');
const gspo = POLICY_LOSS_FN.create('gspo');
const shared = () => packedBatch(makeBatch(SPEC));

describe('calls computed together', () => {
  after(() => setThreads(cpus().length));

  for (const threads of [1, 3])
    it(`have the bits of calls on their own, for every function, with ${threads} threads`, async () => {
      const jobs = oneOfEach().map(({ family, name, args }) => {
        const on: Subject = subject(family, name, args);
        const batch = laidOut(makeBatch(fitting(name, args, SPEC)));
        setThreads(1);
        return { on, batch, alone: on.sync(batch) };
      });
      setThreads(threads);
      const groups = await groupsDuring(async () => {
        const results = await computeTogether(
          jobs.map(
            ({ on, batch }) =>
              (together: Together) =>
                on.async(batch, { together }),
          ),
        );
        for (const [i, { alone }] of jobs.entries()) assertSameBits(results[i]!, alone);
      });
      assert.deepEqual(groups, [jobs.length]);
    });

  it('have the bits of calls on their own, for every objective', async () => {
    const batch = layOut(makeRewarded({ ...SPEC, groups: 'some', rewards: 'normal', perToken: true }));
    const objectives = ALGORITHM_TYPE.names().map((name) => ALGORITHM_TYPE.get(name).objective());
    const alone = objectives.map((objective) => objective.computeSync(batch, { grad: true }));
    const groups = await groupsDuring(async () => {
      const results = await computeTogether(
        objectives.map(
          (objective) => (together: Together) => objective.compute(batch, { grad: true, together }),
        ),
      );
      for (const [i, result] of results.entries()) assertSameObjective(result, alone[i]!);
    });
    assert.deepEqual(groups, [objectives.length]);
  });

  it('may have parts, 16-bit gradients, corrections and a normalizer', async () => {
    const batch = shared();
    const corrected = POLICY_LOSS_FN.create('ppo', { masks: { delta: 1.1 } });
    const normalizer = ppo.countSync(batch);
    const calls = [
      { fn: ppo, options: { grad: true, part: true, normalizer } },
      { fn: ppo, options: { grad: { dtype: 'bfloat16' } } },
      { fn: gspo, options: { gradEntropy: true, gradLogZ: true } },
      { fn: corrected, options: { grad: true } },
      { fn: gspo, options: {} },
    ] as const;
    const results = await computeTogether(
      calls.map(
        ({ fn, options }) =>
          (together: Together) =>
            fn.compute(batch, { ...options, together }),
      ),
    );
    for (const [i, { fn, options }] of calls.entries())
      assert.deepEqual(results[i], fn.computeSync(batch, options));
  });

  it('wait neither for calls on their own nor for small ones', async () => {
    const batch = shared();
    const small = packedBatch(makeBatch({ ...SPEC, rows: 2, columns: 8, rowLengths: [8, 3] }));
    const groups = await groupsDuring(async () => {
      const [a, b, c, d] = await computeTogether([
        (together) => ppo.compute(batch, { together }),
        () => ppo.compute(batch),
        (together) => ppo.compute(small, { together }),
        async () => 'no call',
      ]);
      assert.equal(a.loss, b.loss);
      assert.equal(c.loss, ppo.computeSync(small).loss);
      assert.equal(d, 'no call');
    });
    assert.ok(groups.length === 1 && groups[0]! <= 2, String(groups));
    assert.deepEqual(await computeTogether([]), []);
  });

  it('may follow each other', async () => {
    const batch = shared();
    const { loss } = ppo.computeSync(batch);
    const losses = await computeTogether([
      async (together) => {
        const first = await ppo.compute(batch, { together });
        const second = await ppo.compute(batch, { together });
        return [first.loss, second.loss];
      },
      async (together) => {
        await setImmediate();
        const both = await Promise.all([ppo.compute(batch, { together }), ppo.compute(batch, { together })]);
        return both.map((result) => result.loss);
      },
    ]);
    assert.deepEqual(losses, [
      [loss, loss],
      [loss, loss],
    ]);
  });

  it('are not disturbed by one that fails before it is computed', async () => {
    const batch = shared();
    const grad = new Float32Array(TOKENS);
    const { advantages, ...incomplete } = batch;
    await assert.rejects(
      computeTogether([
        (together) => ppo.compute(batch, { grad, together }),
        (together) => ppo.compute(incomplete as Batch, { together }),
        () => {
          throw new Error('not reached first');
        },
      ]),
      isLossError('ERR_MISSING_INPUT', /advantages/),
    );
    await assert.rejects(
      computeTogether([
        () => {
          throw new Error('mine');
        },
      ]),
      isLossError('ERR_INVALID_INPUT', /a call failed: mine/),
    );
    // The promise rejects only after the other calls have ended.
    assert.deepEqual(grad, ppo.computeSync(batch, { grad: true }).grad);
  });

  it('are not disturbed by one whose array changes while it waits', async () => {
    const batch = shared();
    const grad = new Float32Array(TOKENS);
    let failed: unknown;
    const [result] = await computeTogether([
      async (together) => {
        await setImmediate();
        structuredClone(grad.buffer, { transfer: [grad.buffer] });
        return ppo.compute(batch, { grad: true, together });
      },
      async (together) => {
        try {
          await ppo.compute(batch, { grad, together });
        } catch (error) {
          failed = error;
        }
      },
    ]);
    assert.ok(isLossError('ERR_INVALID_INPUT')(failed));
    assert.deepEqual(result, ppo.computeSync(batch, { grad: true }));
  });

  it('are not disturbed by one that is aborted', async () => {
    const batch = shared();
    const controller = new AbortController();
    const [result, code] = await computeTogether([
      async (together) => {
        await setImmediate();
        controller.abort();
        return ppo.compute(batch, { grad: true, together });
      },
      (together) =>
        ppo.compute(batch, { together, signal: controller.signal }).then(
          () => 'computed',
          ({ code }) => code,
        ),
    ]);
    assert.equal(code, 'ERR_ABORTED');
    assert.deepEqual(result, ppo.computeSync(batch, { grad: true }));
  });

  it('end when they are aborted, even if another one never ends', async () => {
    const controller = new AbortController();
    const { signal } = controller;
    const codes: unknown[] = [];
    const abortable = async (together: Together) => {
      await ppo.compute(shared(), { together, signal }).catch(({ code }) => codes.push(code));
    };
    void computeTogether([abortable, abortable, () => new Promise(() => {})]);
    await setImmediate();
    controller.abort();
    for (let turn = 0; turn < 100 && codes.length < 2; turn++) await setImmediate();
    assert.deepEqual(codes, ['ERR_ABORTED', 'ERR_ABORTED']);
    assert.equal(getEventListeners(signal, 'abort').length, 0);
  });

  it('do not wait for a small one, even if its function goes on', async () => {
    const small = packedBatch(makeBatch({ ...SPEC, rows: 2, columns: 8, rowLengths: [8, 3] }));
    let loss: number | undefined;
    await computeTogether([
      async (together) => {
        await ppo.compute(small, { together });
        for (let turn = 0; turn < 1000 && loss === undefined; turn++) await setTimeout(1);
        assert.equal(loss, ppo.computeSync(shared()).loss);
      },
      async (together) => {
        ({ loss } = await ppo.compute(shared(), { together }));
      },
    ]);
  });

  it('refuse other values', async () => {
    for (const calls of [undefined, {}, () => {}, [1], [undefined], new Array(1025).fill(() => {})])
      await assert.rejects(computeTogether(calls as never), isLossError('ERR_INVALID_INPUT', /calls/));
    for (const together of [{}, 1, null])
      await assert.rejects(
        ppo.compute(shared(), { together } as never),
        isLossError('ERR_INVALID_INPUT', /together/),
      );
  });
});
