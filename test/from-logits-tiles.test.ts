/**
 * Tests the gradient with respect to bfloat16 logits in one call. Tiles of small logits have loops of their own, and rows
 * may have tiles of both kinds.
 */
import assert from 'node:assert/strict';
import { logprobs, logprobsBackward } from '../lib/index.js';
import { fromHalf } from './support/half.js';
import { copyOf, dataOf, stored } from './support/logits.js';
import { objectiveOf } from './support/objective.js';
import { generator } from './support/random.js';
import { assertArray } from './support/tolerance.js';

describe('bfloat16 logits of several tiles', () => {
  const size = 2 * 4096 + 64;
  const { normal } = generator(31);
  const rows = [
    (x: number) => 3 * x,
    (x: number) => x - 30,
    (x: number, token: number) => (token === 5000 ? 25 : x),
    (x: number, token: number) => (token < 4096 ? x : x + 100),
    (x: number, token: number) => (token % 7 === 1 ? Number.NEGATIVE_INFINITY : x),
  ];
  const numbers = rows.flatMap((of) => Array.from({ length: size }, (_, token) => of(normal(), token)));
  const { logits } = stored(numbers, 'bfloat16');
  const targets = rows.map((_, row) => 2 * row);
  const columns = {
    shape: [1, rows.length],
    oldLogprob: rows.map(() => -9),
    advantages: rows.map((_, row) => row - 1.5),
    actionMask: new Uint8Array(rows.length).fill(1),
  } as const;

  for (const entropy_coef of [0, 0.01])
    it(`have the gradient of three calls, with an entropy coefficient of ${entropy_coef}`, async () => {
      const fn = objectiveOf('grpo', { kl_loss_fn: 'none', entropy_loss_fn_args: { entropy_coef } });
      const options = { shape: [rows.length, size] as [number, number], targets };
      const found = await logprobs(logits, { ...options, entropy: true });
      const { logprob, entropy } = found;
      const loss = await fn.compute({ ...columns, logprob, entropy: entropy! }, { grad: true });
      const grads = { gradLogprob: loss.grad!, gradEntropy: loss.gradEntropy! };
      const expected = dataOf(await logprobsBackward(logits, { ...options, ...found, ...grads }));
      const batch = { ...columns, logits, targets, vocabulary: size };
      const float = await fn.fromLogits(batch, { gradLogits: true });
      assert.equal(float.loss, loss.loss);
      assertArray(dataOf(float.gradLogits!), expected, 'gradient', 4e-6);
      const half = dataOf((await fn.fromLogits(batch, { gradLogits: copyOf(logits) })).gradLogits!);
      const values = Array.from(half, (bits) => fromHalf(bits, 'bfloat16'));
      assertArray(values, expected, 'gradient in 16 bits', 2 ** -8);
    });
});
