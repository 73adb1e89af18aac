/**
 * Tests log-probabilities and the gradient with respect to logits of several tiles. Tiles of small bfloat16 logits have
 * loops of their own, and rows may have tiles of both kinds. The loop over a tile of float32 logits also finds the
 * largest logit of the next tile. Exponentials may be kept where the gradient is written, in place of the logits.
 */
import assert from 'node:assert/strict';
import { logprobs, logprobsBackward } from '../../lib/index.js';
import { referenceLogprobs } from '../reference/logits.js';
import { fromHalf } from '../support/half.js';
import { copyOf, dataOf, stored } from '../support/logits.js';
import { objectiveOf } from '../support/objective.js';
import { generator } from '../support/random.js';
import { assertArray } from '../support/tolerance.js';

describe('logits of several tiles', () => {
  const size = 2 * 4096 + 64;
  const { normal } = generator(31);
  const rows = [
    (x: number) => 3 * x,
    (x: number) => x - 30,
    (x: number, token: number) => (token === 5000 ? 25 : x),
    (x: number, token: number) => (token === 5000 ? 12 : x / 2),
    (x: number, token: number) => (token < 4096 ? x : x + 100),
    (x: number, token: number) => (token % 7 === 1 ? Number.NEGATIVE_INFINITY : x),
  ];
  const numbers = rows.flatMap((of) => Array.from({ length: size }, (_, token) => of(normal(), token)));
  const targets = rows.map((_, row) => 2 * row);
  const columns = {
    shape: [1, rows.length],
    oldLogprob: rows.map(() => -9),
    advantages: rows.map((_, row) => row - 1.5),
    actionMask: new Uint8Array(rows.length).fill(1),
  } as const;

  const cases = (['float32', 'bfloat16'] as const).flatMap((dtype) =>
    [0, 0.01].map((entropy_coef) => ({ dtype, entropy_coef })),
  );
  for (const { dtype, entropy_coef } of cases)
    it(`in ${dtype} have the gradient of three calls, with an entropy coefficient of ${entropy_coef}`, async () => {
      const { logits } = stored(numbers, dtype);
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
      const other = copyOf(logits);
      await fn.fromLogits(batch, { gradLogits: other });
      const inPlace = copyOf(logits);
      const replaced = await fn.fromLogits({ ...batch, logits: inPlace }, { gradLogits: inPlace });
      assert.equal(replaced.loss, loss.loss);
      assert.deepEqual(dataOf(inPlace), dataOf(other));
      if (dtype === 'float32') return assert.deepEqual(dataOf(other), dataOf(float.gradLogits!));
      const values = Array.from(dataOf(other), (bits) => fromHalf(bits, dtype));
      assertArray(values, expected, 'gradient in 16 bits', 2 ** -8);
    });

  for (const dtype of ['float32', 'bfloat16'] as const)
    for (const vocabulary of [2 * 4096, 2 * 4096 + 64, 2 * 4096 + 100, 3 * 4096 - 64])
      it(`in ${dtype} have the log-probabilities of the formulas, ${vocabulary} of them`, async () => {
        // A large logit, which decides the result if it is lost, is at each place where a tile or its last block begins
        // or ends, and in rows of all kinds of tiles.
        const ends = [0, 31, 32, 4095, 4096, 8191, 8192, vocabulary - 65, vocabulary - 1];
        const places = [...new Set(ends)].filter((place) => place < vocabulary);
        const scales = [
          [1, 1, 1],
          [1, 60, 1],
          [60, 1, 60],
        ];
        const made = places.flatMap((place) =>
          scales.map((scale) =>
            Array.from({ length: vocabulary }, (_, token) =>
              token === place ? 90 : normal() * scale[Math.floor(token / 4096)]! * 0.3,
            ),
          ),
        );
        const { logits, values } = stored(made.flat(), dtype);
        const targets = made.map((_, row) => (row * 997) % vocabulary);
        const found = await logprobs(logits, { shape: [made.length, vocabulary], targets, entropy: true });
        const expected = referenceLogprobs({ rows: made.length, vocabulary, logits: values, targets });
        assertArray(found.logprob, expected.logprob, 'logprob', 2e-6);
        assertArray(found.logsumexp, expected.logsumexp, 'logsumexp', 2e-6);
        assertArray(found.entropy!, expected.entropy, 'entropy', 5e-5);
      });
});
