// Limits the memory of this process to a little more than it already uses. Calls that need more memory must fail with
// ERR_OUT_OF_MEMORY, on whichever thread the memory runs out. Smaller calls must still work afterwards.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { ADVANTAGE_FN, KL_FN, LossError, POLICY_LOSS_FN } from '../../../lib/index.js';
import { flatBatch, processStatus } from '../support.js';

const MIB = 2 ** 20;
const HEADROOM = 200 * MIB;
const outOfMemory = (error: unknown) => error instanceof LossError && error.code === 'ERR_OUT_OF_MEMORY';
const small = flatBatch(2, 3);
// This large call starts all threads of the pool before the memory is limited.
await POLICY_LOSS_FN.create('sft').compute(flatBatch(64, 20_000));
const fn = POLICY_LOSS_FN.create('sft');
const before = fn.computeSync(small, { grad: true });

// With one token per row, the engine's row statistics (at least 8 bytes per row) take more memory than the tokens.
const ROWS = 96 * MIB;
const large = {
  shape: [ROWS, 1] as const,
  logprob: { data: new Uint16Array(ROWS), dtype: 'bfloat16' as const },
  oldLogprob: { data: new Uint16Array(ROWS), dtype: 'bfloat16' as const },
  refLogprob: { data: new Uint16Array(ROWS), dtype: 'bfloat16' as const },
  actionMask: new Uint8Array(ROWS).fill(1),
};
// There is enough memory for the results of these rows, but not for the table of their groups. A pool thread allocates
// that table, so the failure happens on that thread.
const GROUPED = 8 * MIB;
const grouped = {
  ...flatBatch(GROUPED, 1),
  rewards: new Float64Array(GROUPED),
  groupIds: Int32Array.from({ length: GROUPED }, (_, row) => row % 100_000),
};
const grad = new Float32Array(ROWS);

const limit = processStatus('VmSize')! * 1024 + HEADROOM;
const limited = spawnSync('prlimit', ['--pid', String(process.pid), `--as=${limit}`]);
assert.equal(limited.status, 0, String(limited.stderr));

let refused = 0;
const calls: [what: string, call: () => unknown][] = [
  ['a gradient', () => fn.computeSync(large, { grad: true })],
  ['a gradient, asynchronously', () => fn.compute(large, { grad: true })],
  ['row statistics', () => fn.computeSync(large, { grad })],
  ['row statistics, asynchronously', () => fn.compute(large, { grad })],
  ['values', () => KL_FN.create('k2').calculateKl(large)],
  ['advantages', () => ADVANTAGE_FN.create('grpo').compute(grouped)],
];
for (const [what, call] of calls)
  await (async () => call())().then(
    () => assert.fail(`${what}: expected ERR_OUT_OF_MEMORY, got a result`),
    (error: unknown) => {
      assert.ok(outOfMemory(error), `${what}: ${(error as Error)?.stack}`);
      refused++;
    },
  );
assert.equal(refused, calls.length);
assert.deepEqual(fn.computeSync(small, { grad: true }), before);
assert.deepEqual(await fn.compute(small, { grad: true }), before);
console.log('went on');
