/**
 * Tests gradients in 16 bits: they have the bits of the float32 gradient, rounded to nearest with ties to even, in any
 * memory. The matrix tests them for every loss, layout, mask and number of threads.
 */
import assert from 'node:assert/strict';
import {
  type GradientRequest,
  type HalfColumn,
  lossFromExpression,
  POLICY_LOSS_FN,
} from '../../lib/index.js';
import { type BatchSpec, EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { fitting } from '../support/draw-arguments.js';
import { assertRounded, fromHalf, type Half, toHalf } from '../support/half.js';
import { isLossError } from '../support/loss-error.js';
import { packedBatch, paddedBatch } from '../support/subject.js';

const HALVES = ['bfloat16', 'float16'] as const;

describe('gradients in 16 bits', () => {
  it('may have different dtypes', async () => {
    const fn = POLICY_LOSS_FN.create('erc');
    const { name } = (fn.constructor as { declaration?: { name: string } }).declaration!;
    const batch = packedBatch(makeBatch(fitting(name, {}, EDGE_LENGTHS)));
    const full = fn.computeSync(batch, { grad: true, gradEntropy: true });
    const options = { grad: { dtype: 'float16' }, gradEntropy: { dtype: 'bfloat16' } } as const;
    for (const found of [fn.computeSync(batch, options), await fn.compute(batch, options)]) {
      assertRounded(found.halfGrad, full.grad, 'float16', 'grad');
      assertRounded(found.halfGradEntropy, full.gradEntropy, 'bfloat16', 'gradEntropy');
    }
    const mixed = fn.computeSync(batch, { grad: true, gradEntropy: { dtype: 'float16' } });
    assert.deepEqual(mixed.grad, full.grad);
    assertRounded(mixed.halfGradEntropy, full.gradEntropy, 'float16', 'gradEntropy');
  });

  it('are written to arrays of the caller, and nowhere else', async () => {
    const fn = POLICY_LOSS_FN.create('ppo');
    const batch = packedBatch(makeBatch(EDGE_LENGTHS));
    const { grad } = fn.computeSync(batch, { grad: true });
    const size = grad!.length;
    for (const dtype of HALVES)
      for (const compute of [fn.computeSync.bind(fn), fn.compute.bind(fn)]) {
        // An odd offset, so that no vector is aligned.
        const memory = new Uint16Array(size + 2).fill(0xabcd);
        const data = memory.subarray(1, size + 1);
        const { halfGrad } = await compute(batch, { grad: { dtype, data } });
        assert.equal(halfGrad!.data, data);
        assertRounded(halfGrad, grad, dtype, 'grad');
        assert.deepEqual([memory[0], memory[size + 1]], [0xabcd, 0xabcd]);
      }
  });

  it('are those that were requested, even if the caller changes the request during the call', async () => {
    // So many numbers are converted in slices.
    const tokens = 2 ** 20;
    const numbers = new Array<number>(tokens).fill(-1);
    const batch = { shape: [1, tokens], logprob: numbers, oldLogprob: numbers, advantages: numbers } as const;
    const mask = { actionMask: new Uint8Array(tokens).fill(1) };
    const first = new Uint16Array(tokens);
    const request: { dtype: Half; data: Uint16Array } = { dtype: 'bfloat16', data: first };
    const called = POLICY_LOSS_FN.create('ppo').compute({ ...batch, ...mask }, { grad: request });
    Object.assign(request, { dtype: 'float16', data: new Uint16Array(tokens) });
    const { halfGrad } = await called;
    assert.equal(halfGrad?.dtype, 'bfloat16');
    assert.equal(halfGrad.data, first);
    assert.notEqual(first[0], 0);
  });

  it('are written to a Float16Array', function () {
    const Float16 = (globalThis as { Float16Array?: typeof Float32Array }).Float16Array;
    if (!Float16) return this.skip();
    const fn = POLICY_LOSS_FN.create('ppo');
    const batch = packedBatch(makeBatch(EDGE_LENGTHS));
    const { grad } = fn.computeSync(batch, { grad: true });
    const own = new Float16(grad!.length);
    const { halfGrad } = fn.computeSync(batch, { grad: own });
    assert.equal(halfGrad!.data.buffer, own.buffer);
    assertRounded(halfGrad, grad, 'float16', 'grad');
    own.forEach((value, i) => {
      assert.equal(value, fromHalf(toHalf(grad![i]!, 'float16'), 'float16'));
    });
  });

  it('can be used as columns', () => {
    const fn = POLICY_LOSS_FN.create('ppo');
    const batch = packedBatch(makeBatch(EDGE_LENGTHS));
    const { halfGrad } = fn.computeSync(batch, { grad: { dtype: 'bfloat16' } });
    const widened = Float32Array.from(halfGrad!.data, (bits) => fromHalf(bits, 'bfloat16'));
    const losses = [halfGrad!, widened].map(
      (advantages) => fn.computeSync({ ...batch, advantages }, { grad: false }).loss,
    );
    assert.equal(losses[0], losses[1]);
  });

  // A loss whose gradient is the advantage: the number of tokens is a power of 2.
  const identity = lossFromExpression('A*logprob', { lossAggMode: 'token-mean' });
  const TOKENS = 1024;
  const roundings = (values: Float32Array, dtype: Half) => {
    const advantages = new Float32Array(TOKENS);
    values.forEach((x, i) => {
      advantages[i] = x * TOKENS;
    });
    const ones = new Float32Array(TOKENS).fill(-1);
    const batch = { shape: [1, TOKENS], logprob: ones, advantages, actionMask: ones.map(() => 1) } as const;
    const given = { ...batch, actionMask: new Uint8Array(TOKENS).fill(1) };
    return identity.computeSync(given, { grad: { dtype } }).halfGrad!;
  };

  it('round to the nearest number, and to the even one of two that are equally near', () => {
    const near = [1, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -11, 1 + 3 * 2 ** -11, 65504, 65519, 65520, 7e4];
    const tiny = [2 ** -14, 2 ** -24, 2 ** -25, 3 * 2 ** -25, 2 ** -26, 1e-30, 0];
    // Subnormal in float32.
    const least = [2 ** -127, 2 ** -133, 3 * 2 ** -134, 2 ** -134, 3 * 2 ** -135, 2 ** -149];
    const sets = [near, tiny, least, [...near, ...tiny, ...least]];
    for (const values of sets.map((set) => Float32Array.from(set.flatMap((x) => [x, -x]))))
      for (const dtype of HALVES) {
        const { data } = roundings(values, dtype);
        values.forEach((x, i) => {
          assert.equal(data[i], toHalf(x, dtype), `${x} in ${dtype}`);
        });
      }
    assert.equal(fromHalf(roundings(Float32Array.of(65520), 'float16').data[0]!, 'float16'), Infinity);
  });

  it('keep every NaN a NaN', () => {
    // Rounding the bits of these as numbers would give 0 or Infinity.
    const bits = Uint32Array.of(0x7fffffff, 0xffffffff, 0x7f800001, 0xff800001, 0x7fc00000, 0x7fff8000);
    for (const dtype of HALVES) {
      const { data } = roundings(new Float32Array(bits.buffer), dtype);
      for (let i = 0; i < bits.length; i++)
        assert.ok(Number.isNaN(fromHalf(data[i]!, dtype)), `${bits[i]!.toString(16)} in ${dtype}`);
      // On every processor the same one, also where it has an instruction that keeps some bits.
      if (dtype === 'bfloat16') assert.deepEqual([...new Set(data.subarray(0, bits.length))], [0x7fc0]);
    }
  });

  it('are empty for an empty batch', () => {
    const empty = new Float32Array(0);
    const batch = { shape: [0, 0], logprob: empty, oldLogprob: empty, advantages: empty, actionMask: [] };
    const { halfGrad } = POLICY_LOSS_FN.create('ppo').computeSync(batch as never, {
      grad: { dtype: 'float16' },
    });
    assert.deepEqual(halfGrad, { data: new Uint16Array(0), dtype: 'float16' });
  });

  it('are returned by a loss from logits unless its gradient with respect to them is requested', async () => {
    const fn = POLICY_LOSS_FN.create('ppo');
    const spec: BatchSpec = { ...EDGE_LENGTHS, rows: 2, columns: 3 };
    delete spec.rowLengths;
    const { logprob, entropy: _, ...columns } = paddedBatch(makeBatch({ ...spec, packed: false }));
    const size = (logprob as Float32Array).length;
    const logits = Float32Array.from({ length: size * 4 }, (_, i) => (i * 7) % 5);
    const batch = { ...columns, logits, targets: new Int32Array(size), vocabulary: 4 };
    const { grad } = fn.fromLogitsSync(batch, { grad: true });
    assertRounded(fn.fromLogitsSync(batch, { grad: { dtype: 'float16' } }).halfGrad, grad, 'float16', 'grad');
    const fails = isLossError('ERR_INVALID_INPUT', /^grad: expected true, false or a Float32Array, because/);
    const wanted = { grad: { dtype: 'float16' }, gradLogits: true } as const;
    assert.throws(() => fn.fromLogitsSync(batch, wanted), fails);
    await assert.rejects(fn.fromLogits(batch, wanted), fails);
  });

  describe('refuse', () => {
    const size = 6;
    const column = new Float32Array(size);
    const batch = {
      shape: [2, 3] as const,
      logprob: column,
      oldLogprob: column,
      advantages: column,
      actionMask: new Uint8Array(size).fill(1),
    };
    const detached = new Uint16Array(size);
    structuredClone(detached, { transfer: [detached.buffer] });
    const resizable = new (ArrayBuffer as unknown as new (size: number, o: object) => ArrayBuffer)(2 * size, {
      maxByteLength: 4 * size,
    });
    const cases: [string, unknown, string, RegExp][] = [
      [
        'another dtype',
        { dtype: 'float32' },
        'ERR_INVALID_INPUT',
        /grad: expected dtype float16 or bfloat16/,
      ],
      ['no dtype', { dtype: undefined }, 'ERR_INVALID_INPUT', /grad: expected dtype float16 or bfloat16/],
      [
        'an array of another type',
        { dtype: 'float16', data: new Float32Array(size) },
        'ERR_INVALID_INPUT',
        /grad: expected dtype float16 or bfloat16, with a Uint16Array.*Float32Array/,
      ],
      [
        'an array without a dtype',
        new Uint16Array(size),
        'ERR_INVALID_INPUT',
        /grad: .*\{ dtype \}.*Uint16Array/,
      ],
      [
        'another length',
        { dtype: 'float16', data: new Uint16Array(5) },
        'ERR_SHAPE_MISMATCH',
        /grad: expected .*6.*5/,
      ],
      ['a detached array', { dtype: 'float16', data: detached }, 'ERR_INVALID_INPUT', /grad: .*detached/],
      [
        'memory that can shrink',
        { dtype: 'bfloat16', data: new Uint16Array(resizable) },
        'ERR_INVALID_INPUT',
        /grad: .*resizable/,
      ],
    ];
    for (const [title, grad, code, message] of cases)
      it(title, async () => {
        const fn = POLICY_LOSS_FN.create('ppo');
        const options = { grad: grad as GradientRequest };
        assert.throws(() => fn.computeSync(batch, options), isLossError(code as never, message));
        await assert.rejects(fn.compute(batch, options), isLossError(code as never, message));
      });

    it('memory for one gradient that overlaps with that for another', async () => {
      const entropy = { ...batch, entropy: column };
      const memory = new ArrayBuffer(4 * size);
      const data = new Uint16Array(memory, 0, size);
      const floats = new Float32Array(memory);
      for (const options of [
        { grad: { dtype: 'float16', data }, gradEntropy: { dtype: 'float16', data } },
        { grad: { dtype: 'float16', data }, gradEntropy: floats },
        { grad: floats, gradEntropy: floats },
      ] as const) {
        const fn = POLICY_LOSS_FN.create('ppo');
        const says = isLossError(
          'ERR_INVALID_INPUT',
          /gradEntropy: expected other memory than grad, got memory that overlaps with grad/,
        );
        assert.throws(() => fn.computeSync(entropy, options), says);
        await assert.rejects(fn.compute(entropy, options), says);
      }
    });

    it('16 bits for the gradient of a row', () => {
      const options = { gradLogZ: { dtype: 'float16' } as unknown as boolean };
      assert.throws(
        () => POLICY_LOSS_FN.create('ppo').computeSync(batch, options),
        isLossError('ERR_INVALID_INPUT', /gradLogZ: expected true, false or a Float32Array/),
      );
    });
  });

  it('are typed', () => {
    const { halfGrad } = POLICY_LOSS_FN.create('sft').computeSync(
      { shape: [1, 1], logprob: [-1], actionMask: [1] },
      { grad: { dtype: 'bfloat16', data: new Uint16Array(1) } },
    );
    const column: HalfColumn = halfGrad!;
    assert.equal(fromHalf(column.data[0]!, column.dtype), -1);
  });
});
