// Computes losses of more than 2³¹ tokens. A count or an index of only 32 bits would make them wrong.
import assert from 'node:assert/strict';
import { POLICY_LOSS_FN } from '../../../lib/index.js';

const ROWS = 1025;
const COLUMNS = 2 ** 21;
const tokens = ROWS * COLUMNS;
assert.ok(tokens > 2 ** 31);
// Log-probabilities as bfloat16 bits. They are −1 in all rows except the last. They are −3 in the last row, whose
// tokens have indices of 2³¹ and more.
const data = new Uint16Array(tokens).fill(0xbf80);
data.fill(0xc040, tokens - COLUMNS);
const mask = new Uint8Array(tokens).fill(1);
mask[tokens - 1] = 0;
const batch = {
  shape: [ROWS, COLUMNS] as const,
  logprob: { data, dtype: 'bfloat16' as const },
  oldLogprob: { data, dtype: 'bfloat16' as const },
  advantages: Float32Array.from({ length: ROWS }, (_, row) => (row === ROWS - 1 ? 2 : 1)),
  actionMask: mask,
};
const close = (actual: number, expected: number) =>
  assert.ok(Math.abs(actual - expected) <= 1e-6 * Math.abs(expected), `${actual} is not ${expected}`);
const counted = tokens - 1;
const inLast = COLUMNS - 1;

const sft = await POLICY_LOSS_FN.create('sft').compute(batch);
close(sft.loss, (counted - inLast + 3 * inLast) / counted);
// All ratios are 1.
const ppo = await POLICY_LOSS_FN.create('ppo').compute(batch);
close(ppo.loss, -(counted - inLast + 2 * inLast) / counted);
// Masks all rows except the last.
mask.fill(0, 0, tokens - COLUMNS);
const last = POLICY_LOSS_FN.create('sft').computeSync(batch);
close(last.loss, 3);
const { tokens: left, rows } = POLICY_LOSS_FN.create('sft').countSync(batch);
assert.deepEqual({ left, rows }, { left: inLast, rows: ROWS });
console.log(`${tokens} tokens`);
