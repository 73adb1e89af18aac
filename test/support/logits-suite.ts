/** Tests of the functions of lib/logits on golden cases, and of what their options promise. */
import assert from 'node:assert/strict';
import { setThreads } from '../../lib/index.js';
import { referenceGradient, referenceLogprobs } from '../reference/logits.js';
import { logitsCases } from './golden.js';
import { copyOf, dataOf, makeLogits, PLAIN_ROWS, stored } from './logits.js';
import type { Way } from './logits-ways.js';
import { generator } from './random.js';
import { assertArray, assertSameArray } from './tolerance.js';

const NEGATIVE = Number.NEGATIVE_INFINITY;
/** The bound for entropies; see golden/README.md. */
const ENTROPY_RELATIVE = 5e-5;

/** Defines the tests, for ways of which all must compute the same bits. */
export function testLogits(ways: Record<string, Way>): void {
  for (const { id, args, inputs, expected } of logitsCases)
    for (const [way, { logprobs, backward }] of Object.entries(ways))
      it(`agrees with PyTorch: ${id}, ${way}`, async () => {
        const bits = inputs.logits.data.map(Number);
        const { dtype } = args;
        const logits =
          dtype === 'float32' ? Float32Array.from(bits) : { data: Uint16Array.from(bits), dtype };
        const { temperature, softcap, support } = args;
        const options = {
          shape: inputs.logits.shape as [number, number],
          targets: Int32Array.from(inputs.targets.data),
          ...(temperature !== null && { temperature }),
          ...(softcap !== null && { softcap }),
          ...(support && { support: { tokenIds: support.token_ids, offsets: support.offsets } }),
        };
        const { logprob, logsumexp, entropy } = await logprobs(logits, { ...options, entropy: true });
        assertArray(logprob, expected.logprob.data, 'logprob');
        assertArray(logsumexp, expected.logsumexp.data, 'logsumexp');
        assertArray(entropy!, expected.entropy.data, 'entropy', ENTROPY_RELATIVE);
        const grads = { gradLogprob: inputs.grad_logprob.data, gradEntropy: inputs.grad_entropy.data };
        const grad = await backward(logits, { ...options, ...grads, logsumexp, entropy: entropy! });
        assertArray(dataOf(grad), expected.grad_logits.data, 'grad_logits');
      });

  for (const [way, { logprobs, backward }] of Object.entries(ways))
    it(`computes the same gradient with and without the results of logprobs(): ${way}`, async () => {
      for (const support of [false, true]) {
        const spec = { ...PLAIN_ROWS, rows: 5, vocabulary: 70_000, support, ignored: 0.3 };
        const { logits, options, gradLogprob, gradEntropy } = makeLogits(spec);
        const { logsumexp, entropy } = await logprobs(logits, { ...options, entropy: true });
        const grads = { ...options, gradLogprob, gradEntropy };
        const whole = dataOf(await backward(logits, { ...grads, logsumexp, entropy: entropy! }));
        for (const given of [{}, { logsumexp }, { entropy: entropy! }, { entropy: true }])
          assertSameArray(dataOf(await backward(logits, { ...grads, ...given })), whole, 'grad');
      }
    });

  for (const [way, { logprobs, backward }] of Object.entries(ways))
    it(`keeps the relative precision of log-probabilities near 0, and of their gradients: ${way}`, async () => {
      const numbers = new Float64Array(5000).fill(-12);
      numbers[17] = 12;
      numbers[4500] = 2;
      for (const target of [17, 4500, 3]) {
        const reference = { rows: 1, vocabulary: 5000, logits: numbers, targets: [target] };
        const logits = Float32Array.from(numbers);
        const options = { shape: [1, 5000] as [number, number], targets: [target] };
        const expected = referenceLogprobs(reference);
        const found = await logprobs(logits, { ...options, entropy: true });
        assertArray(found.logprob, expected.logprob, 'logprob', 2e-6);
        assertArray(found.entropy!, expected.entropy, 'entropy', 2e-6);
        const { grad } = referenceGradient(reference, [1]);
        const actual = dataOf(await backward(logits, { ...options, ...found, gradLogprob: [1] }));
        assertArray([actual[target]!], [grad[target]!], 'the gradient of the target', 2e-6);
        assertArray(actual, grad, 'grad');
      }
    });

  for (const [way, { logprobs, backward }] of Object.entries(ways))
    it(`treats rows of −Infinity, NaN and Infinity as a log-softmax does: ${way}`, async () => {
      const shape: [number, number] = [1, 3];
      const of = async (...logits: number[]) => {
        const { logprob, logsumexp, entropy } = await logprobs(Float32Array.from(logits), {
          shape,
          targets: [0],
          entropy: true,
        });
        return [logprob[0], logsumexp[0], entropy![0]];
      };
      assert.deepEqual(await of(NEGATIVE, NEGATIVE, NEGATIVE), [Number.NaN, NEGATIVE, Number.NaN]);
      assert.deepEqual(await of(1, NEGATIVE, NEGATIVE), [0, 1, 0]);
      assert.deepEqual(await of(NEGATIVE, 5, NEGATIVE), [NEGATIVE, 5, 0]);
      assert.deepEqual(await of(1, Number.NaN, 2), [Number.NaN, Number.NaN, Number.NaN]);
      assert.deepEqual(await of(NEGATIVE, Number.NaN, NEGATIVE), [Number.NaN, Number.NaN, Number.NaN]);
      assert.ok(Number.isNaN((await of(1, Infinity, 2))[0]));
      const grad = await backward(Float32Array.of(NEGATIVE, 5, NEGATIVE), {
        shape,
        targets: [0],
        gradLogprob: [1],
        gradEntropy: [1],
      });
      assert.deepEqual(Array.from(dataOf(grad), Math.abs), [1, 1, 0]);
    });

  for (const [way, { logprobs }] of Object.entries(ways))
    it(`accepts a NaN in any tile of a row: ${way}`, async () => {
      const numbers = new Float32Array(10_000);
      for (const at of [0, 4095, 4096, 9999])
        for (const others of [0, NEGATIVE]) {
          numbers.fill(others);
          numbers[at] = Number.NaN;
          const { logprob } = await logprobs(numbers, { shape: [1, 10_000], targets: [5] });
          assert.ok(Number.isNaN(logprob[0]), `${at}`);
        }
    });

  it('computes nothing of rows of 0 tokens', async () => {
    for (const { logprobs, backward } of Object.values(ways)) {
      const options = { shape: [0, 7] as [number, number], targets: [] };
      const found = await logprobs(new Float32Array(0), { ...options, entropy: true });
      assert.deepEqual([found.logprob.length, found.logsumexp.length, found.entropy!.length], [0, 0, 0]);
      const grad = await backward(new Float32Array(0), { ...options, gradLogprob: [] });
      assert.equal(dataOf(grad).length, 0);
    }
  });

  it('gives ignored rows 0 and does not read them', async () => {
    for (const { logprobs, backward } of Object.values(ways)) {
      const logits = new Float32Array(12).fill(Number.NaN);
      logits.fill(0, 4, 8);
      const options = {
        shape: [3, 4] as [number, number],
        targets: [-100, 2, -100],
        temperature: [0, 1, -1],
      };
      const { logprob, logsumexp, entropy } = await logprobs(logits, { ...options, entropy: true });
      assertArray(logprob, [0, -Math.log(4), 0], 'logprob');
      assertArray(logsumexp, [0, Math.log(4), 0], 'logsumexp');
      assertArray(entropy!, [0, Math.log(4), 0], 'entropy');
      const gradLogprob = [Number.NaN, 1, Number.NaN];
      const grad = dataOf(await backward(logits, { ...options, gradLogprob, out: logits }));
      assertArray(grad, [0, 0, 0, 0, -0.25, -0.25, 0.75, -0.25, 0, 0, 0, 0], 'grad');
    }
  });

  for (const [way, { backward }] of Object.entries(ways))
    it(`leaves the numbers between two rows alone: ${way}`, async () => {
      const logits = new Float32Array(7).fill(3);
      const options = { shape: [2, 3] as [number, number], targets: [0, 1], rowStride: 4 };
      const grad = await backward(logits, { ...options, gradLogprob: [1, 1], out: logits });
      assert.equal(grad, logits);
      assert.equal(logits[3], 3);
      const apart = await backward(new Float32Array(8).fill(3), { ...options, gradLogprob: [1, 1] });
      assert.deepEqual(apart, Float32Array.of(...logits.subarray(0, 3), ...logits.subarray(4)));
    });

  for (const [way, { logprobs, backward }] of Object.entries(ways))
    it(`reads a Float16Array and writes the gradient to it: ${way}`, async function () {
      const Float16 = (globalThis as unknown as { Float16Array?: typeof Float32Array }).Float16Array;
      if (!Float16) this.skip();
      const logits = Float16.of(1, 2, 3) as unknown as Float32Array;
      const options = { shape: [1, 3] as [number, number], targets: [0] };
      const { logprob } = await logprobs(logits, options);
      assertArray(logprob, [-2.407606], 'logprob');
      const expected = dataOf(
        await backward(stored([1, 2, 3], 'float16').logits, { ...options, gradLogprob: [1] }),
      );
      const grad = await backward(logits, { ...options, gradLogprob: [1], out: logits });
      assert.equal(grad, logits);
      assert.deepEqual(Array.from(grad as Float32Array), Array.from(Float16.from(expected)));
    });

  // Tiles of small bfloat16 logits have loops of their own.
  describe('of bfloat16', () => {
    const vocabulary = 2 * 4096;
    const { normal } = generator(11);
    const drawn = (of: (x: number, token: number) => number) =>
      Float64Array.from({ length: vocabulary }, (_, token) => of(normal(), token));
    const rows: Record<string, { numbers: Float64Array; temperature?: number; grads?: number }> = {
      'that are small': { numbers: drawn((x) => 3 * x) },
      'that are negative': { numbers: drawn((x) => x - 30) },
      'that are nearly too negative': { numbers: drawn((x) => x / 4 - 40) },
      'of which one is large': { numbers: drawn((x, token) => (token === 5000 ? 22 : x)) },
      'of which one has nearly all probability': {
        numbers: drawn((x, token) => (token === 70 ? 20 : x - 5)),
      },
      'of which half are large': { numbers: drawn((x, token) => (token < 4096 ? x : x + 100)) },
      'of which some are −Infinity': { numbers: drawn((x, token) => (token % 5 === 1 ? NEGATIVE : x)) },
      'of which half are the least number': { numbers: drawn((x, token) => (token < 4096 ? -3.38e38 : x)) },
      'at a low temperature': { numbers: drawn((x) => x), temperature: 0.02 },
      'at a temperature at which half are small': {
        numbers: drawn((x, token) => (token < 4096 ? x : x / 100)),
        temperature: 0.05,
      },
      'with tiny gradients': { numbers: drawn((x) => x + 25), grads: 1e-25 },
      'with gradients that nearly vanish': { numbers: drawn((x) => x + 30), grads: 1e-30 },
      'with huge gradients': { numbers: drawn((x) => x / 4 - 40), grads: 1e28 },
      'with gradients of 0': { numbers: drawn((x) => x), grads: 0 },
      'at a huge temperature': { numbers: drawn((x) => 1e30 * (15 + x)), temperature: 1e30, grads: 0 },
    };
    for (const [what, { numbers, temperature = 1, grads = 1 }] of Object.entries(rows))
      for (const [way, { logprobs, backward }] of Object.entries(ways))
        it(`${what} agree with the reference: ${way}`, async () => {
          const { logits, values } = stored(numbers, 'bfloat16');
          for (const target of [3, 70, 5000]) {
            const reference = { rows: 1, vocabulary, logits: values, targets: [target], temperature };
            const options = { shape: [1, vocabulary] as [number, number], targets: [target], temperature };
            const expected = referenceLogprobs(reference);
            const found = await logprobs(logits, { ...options, entropy: true });
            assertArray(found.logprob, expected.logprob, 'logprob');
            assertArray(found.logsumexp, expected.logsumexp, 'logsumexp');
            assertArray(found.entropy!, expected.entropy, 'entropy', ENTROPY_RELATIVE);
            const given = { gradLogprob: [0.7 * grads], gradEntropy: [-0.2 * grads] };
            const { grad } = referenceGradient(reference, given.gradLogprob, given.gradEntropy);
            const all = { ...options, ...given, ...found };
            const float = dataOf(await backward(logits, all));
            assertArray(float, grad, 'grad');
            const half = dataOf(await backward(logits, { ...all, out: copyOf(logits) }));
            assertSameArray(half, dataOf(stored(float, 'bfloat16').logits), 'grad of 16 bits');
            const plain = { ...options, logsumexp: found.logsumexp, gradLogprob: given.gradLogprob };
            assertArray(
              dataOf(await backward(logits, plain)),
              referenceGradient(reference, given.gradLogprob).grad,
              'grad without entropy',
            );
          }
        });

    for (const [way, { logprobs }] of Object.entries(ways))
      it(`of which one is NaN give NaN: ${way}`, async () => {
        for (const at of [0, 4095, 4096, vocabulary - 1])
          for (const sign of [0, 0x8000]) {
            const data = new Uint16Array(vocabulary).fill(0x3f80);
            data[at] = 0x7fc0 | sign;
            const options = { shape: [1, vocabulary] as [number, number], targets: [5], entropy: true };
            const { logprob, entropy } = await logprobs({ data, dtype: 'bfloat16' }, options);
            assert.deepEqual([logprob[0], entropy![0]], [Number.NaN, Number.NaN], `${at}`);
          }
      });
  });

  describe('bits', () => {
    after(() => setThreads(2));

    // Fewer than 256 rows of this length are split over threads. More are not. A device computes so many in chunks. The
    // rows begin at addresses of any alignment.
    for (const [dtype, rows] of [
      ['float32', 260],
      ['bfloat16', 30],
    ] as const)
      it(`of a row do not depend on the other rows, on threads or on chunks: ${dtype}`, async () => {
        const vocabulary = 40_001;
        const { logits, options, gradLogprob, gradEntropy } = makeLogits({
          ...PLAIN_ROWS,
          rows,
          vocabulary,
          dtype,
        });
        const data = dataOf(logits);
        const { targets } = options;
        const compute = async (first: number, last: number, threads: number, way: Way) => {
          setThreads(threads);
          const part = data.slice(first * vocabulary, last * vocabulary);
          const some = dtype === 'float32' ? (part as Float32Array) : { data: part as Uint16Array, dtype };
          const own = {
            shape: [last - first, vocabulary] as [number, number],
            targets: targets.slice(first, last),
          };
          const found = await way.logprobs(some, { ...own, entropy: true });
          const grads = {
            gradLogprob: gradLogprob.slice(first, last),
            gradEntropy: gradEntropy.slice(first, last),
          };
          const grad = await way.backward(some, { ...own, ...found, ...grads, out: copyOf(some) });
          return { ...found, grad: dataOf(grad) };
        };
        const whole = await compute(0, rows, 2, Object.values(ways)[0]!);
        for (const [first, last] of [
          [0, 1],
          [7, 20],
          [rows - 5, rows],
        ] as const)
          for (const threads of [1, 3])
            for (const way of Object.values(ways)) {
              const part = await compute(first, last, threads, way);
              for (const key of ['logprob', 'logsumexp', 'entropy'] as const)
                assertSameArray(part[key]!, whole[key]!.subarray(first, last), key);
              assertSameArray(part.grad, whole.grad.subarray(first * vocabulary, last * vocabulary), 'grad');
            }
      });

    for (const [way, { backward }] of Object.entries(ways))
      it(`of a gradient do not depend on where it is written: ${way}`, async () => {
        for (const dtype of ['float32', 'float16', 'bfloat16'] as const)
          for (const support of [false, true])
            for (const softcap of [false, true]) {
              const spec = {
                ...PLAIN_ROWS,
                rows: 12,
                vocabulary: 9001,
                dtype,
                support,
                softcap,
                ignored: 0.3,
              };
              const { logits, options, gradLogprob, gradEntropy } = makeLogits(spec);
              const grads = { ...options, gradLogprob, gradEntropy };
              const float = dataOf(await backward(logits, grads));
              const expected = dataOf(stored(float, dtype).logits);
              const apart = copyOf(logits);
              assertSameArray(dataOf(await backward(logits, { ...grads, out: apart })), expected, 'apart');
              const inPlace = copyOf(logits);
              assertSameArray(
                dataOf(await backward(inPlace, { ...grads, out: inPlace })),
                expected,
                'in place',
              );
            }
      });

    for (const [way, { backward }] of Object.entries(ways))
      it(`of 16-bit gradients are those of the nearest numbers: ${way}`, async () => {
        const { normal, uniform } = generator(5);
        // Gradients from the smallest subnormal numbers of float16 to more than the largest.
        const gradLogprob = Array.from({ length: 3000 }, () => normal() * 2 ** (40 * uniform() - 24));
        for (const dtype of ['float16', 'bfloat16'] as const) {
          const { logits } = stored(new Float64Array(6000), dtype);
          const options = {
            shape: [3000, 2] as [number, number],
            targets: new Int32Array(3000),
            gradLogprob,
          };
          const float = dataOf(await backward(logits, options));
          const half = await backward(logits, { ...options, out: copyOf(logits) });
          assertSameArray(dataOf(half), dataOf(stored(float, dtype).logits), dtype);
        }
      });
  });
}
