/**
 * Tests calls whose work grows with their rows and not with their tokens: the JavaScript thread does not do this work, a
 * signal ends it, and the results are those of a synchronous call.
 */
import assert from 'node:assert/strict';
import { CORRECTION_FN, POLICY_LOSS_FN } from '../../lib/index.js';
import { runAlone } from '../support/alone.js';

const LIB = new URL('../../lib/index.ts', import.meta.url).href;
const ROWS = 2 ** 20;
// The row values of a correction take 800 bytes per row. Node and the package take about 120 MB.
const MOST_BYTES = 400e6;

// The only thread of the pool computes a long call. So a call that follows it does nothing before the signal.
const ABORTED_AT_ONCE = `
  const { CORRECTION_FN, POLICY_LOSS_FN, lossFromExpression, setThreads } = await import(given[0]);
  setThreads(1);
  const controller = new AbortController();
  const options = { signal: controller.signal };
  const tokens = 2 ** 22;
  const long = lossFromExpression('lp*sg(' + 'tanh('.repeat(150) + 'lp' + ')'.repeat(151)).compute(
    { shape: [1024, 4096], logprob: new Float32Array(tokens), actionMask: new Uint8Array(tokens).fill(1) },
    options,
  );
  const none = new Float32Array(0);
  const batch = { shape: [${ROWS}, 0], actionMask: new Uint8Array(0) };
  for (const column of ['logprob', 'oldLogprob', 'rolloutLogprob', 'advantages']) batch[column] = none;
  const correction = { rollout_is: 'token' };
  const fn =
    given[1] === 'a correction'
      ? CORRECTION_FN.create('verl/rollout_correction', correction)
      : POLICY_LOSS_FN.create('ppo', { correction });
  const many = fn.compute(batch, options);
  controller.abort();
  return (await Promise.allSettled([long, many])).map(({ reason }) => reason?.code);`;

describe('a call with many rows', () => {
  for (const what of ['a correction', 'a loss with a correction'])
    it(`takes no memory for ${what} before a thread of the pool begins it, and can be aborted`, () => {
      const { result, memory } = runAlone(ABORTED_AT_ONCE, [LIB, what]);
      assert.deepEqual(result, ['ERR_ABORTED', 'ERR_ABORTED']);
      assert.ok(memory < MOST_BYTES, `${memory} bytes`);
    });

  it('has the results of a synchronous call', async () => {
    const rows = 10_000;
    const numbers = (scale: number) => Float32Array.from({ length: rows }, (_, i) => scale * Math.sin(i) - 1);
    const batch = {
      shape: [rows, 1] as const,
      logprob: numbers(1),
      oldLogprob: numbers(0.9),
      rolloutLogprob: numbers(0.8),
      advantages: numbers(2),
      actionMask: Uint8Array.from({ length: rows }, (_, i) => (i % 7 === 0 ? 0 : 1)),
    };
    const correction = { rollout_is: 'token', rollout_rs: 'token_k1', rollout_rs_threshold: 2 } as const;
    const fn = CORRECTION_FN.create('verl/rollout_correction', correction);
    assert.deepEqual(await fn.compute(batch), fn.computeSync(batch));
    const loss = POLICY_LOSS_FN.create('ppo', { correction });
    assert.deepEqual(await loss.compute(batch, { grad: true }), loss.computeSync(batch, { grad: true }));
  });
});
