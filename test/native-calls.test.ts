/**
 * Calls the native module without the checks of lib/. Tests that the module itself refuses batches that would make it
 * read out of bounds.
 */
import assert from 'node:assert/strict';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { NativeBatch } from '../binding.js';
import { native } from '../lib/core/native.js';
import { toHalf } from './support/half.js';

const fn = native.createFunction({
  policyLoss: { name: 'opmd', options: { tau: 1 }, aggregation: 'token-mean' },
});

function batch(tokens: number, over: Partial<Record<keyof NativeBatch, unknown>>): NativeBatch {
  const column = new Float32Array(tokens);
  return {
    rows: 2,
    rowLength: tokens / 2,
    data: [column, undefined, undefined, column, undefined],
    dtypes: [0, 0, 0, 0, 0],
    mask: new Uint8Array(tokens).fill(1),
    ...over,
  } as NativeBatch;
}

const call = (tokens: number) => ({
  values: new Float64Array(2),
  grad: new Float32Array(tokens),
  gradEntropy: undefined,
  mu: 0,
  klCoef: 0,
  entropyCoef: 0,
  abort: undefined,
});

describe('native calls', () => {
  const cases: Record<string, NativeBatch> = {
    'an unknown dtype': batch(6, {
      data: [new Float32Array(6), undefined, undefined, new Uint16Array(2), undefined],
      dtypes: [0, 0, 0, 7, 0],
    }),
    'more tokens than 64 bits can count': batch(0, { rows: 2 ** 40, rowLength: 2 ** 40 }),
    'more rows than 64 bits can count': batch(0, { rows: 2 ** 63, offsets: new Int32Array(1) }),
    'offsets that decrease far': batch(0, {
      rowLength: 2 ** 31,
      offsets: new Int32Array([0, 5, -(2 ** 31)]),
    }),
  };
  for (const [what, bad] of Object.entries(cases))
    it(`refuses ${what}`, () => {
      const tokens = bad.mask!.length;
      assert.throws(() => native.evaluateSync(fn, bad, call(tokens)), TypeError);
      const good = [fn, batch(6, {}), call(6)] as const;
      assert.throws(() => native.evaluateTogether([[...good], [fn, bad, call(tokens)]]), TypeError);
    });

  for (const [what, bad] of Object.entries({
    'a 16-bit gradient that is too short': { grad: new Uint16Array(5), gradDtypes: 2 },
    'a 16-bit gradient in an array of float32': { grad: new Float32Array(6), gradDtypes: 1 },
    'a float32 gradient in an array of 16 bits': { grad: new Uint16Array(6), gradDtypes: 0 },
    'a gradient of an unknown dtype': { grad: new Uint16Array(6), gradDtypes: 3 },
    'a gradient of entropy in an array of float32': { gradEntropy: new Float32Array(6), gradDtypes: 8 },
    'more dtypes than gradients': { gradDtypes: 64 },
    'negative dtypes': { gradDtypes: -64 },
    'dtypes that no integer holds': { gradDtypes: 1e300 },
    'infinite dtypes': { gradDtypes: Infinity },
    'dtypes that are NaN': { gradDtypes: NaN },
  }))
    it(`refuses ${what}`, () => {
      const given = { ...call(6), ...bad } as never;
      assert.throws(() => native.evaluateSync(fn, batch(6, {}), given), TypeError);
    });

  // The codes of the columns take 30 bits, those of gradients the next 6.
  for (const [what, dtypes, grad] of [
    ['a 16-bit gradient that is too short', 2 * 2 ** 30, new Uint16Array(5)],
    ['a 16-bit gradient in an array of float32', 2 * 2 ** 30, new Float32Array(6)],
    ['a float32 gradient in an array of 16 bits', 0, new Uint16Array(6)],
    ['a gradient of an unknown dtype', 3 * 2 ** 30, new Uint16Array(6)],
    ['more dtypes than gradients', 64 * 2 ** 30, new Float32Array(6)],
    ['more dtypes than gradients by far', 2 ** 62, new Float32Array(6)],
    ['negative dtypes', -64 * 2 ** 30, new Float32Array(6)],
    ['dtypes that no integer holds', 1e300, new Float32Array(6)],
    ['dtypes that are a text', '0', new Float32Array(6)],
  ] as const)
    it(`refuses ${what} in its fastest calls`, async () => {
      const { rows, rowLength, data, mask } = batch(6, { data: [] });
      const columns = Array.from({ length: 10 }, (_, i) =>
        i === 0 || i === 3 ? new Float32Array(6) : data[i],
      );
      const values = new Float64Array(2);
      const given = [fn, rows, rowLength, undefined, dtypes, ...columns, mask, undefined, values, grad];
      const whole = [...given, undefined, 0, 0, 0] as unknown as Parameters<typeof native.evaluateHost>;
      assert.throws(() => native.evaluateHost(...whole), Error);
      assert.throws(() => native.evaluateHostLater(...whole, undefined, false), Error);
    });

  it('computes the fastest calls with the dtypes of the gradients', () => {
    const { rows, rowLength, mask } = batch(6, {});
    const column = Float32Array.of(-1, -2, -3, -4, -5, -6);
    const columns = Array.from({ length: 10 }, (_, i) => (i === 0 || i === 3 ? column : undefined));
    const before = [fn, rows, rowLength, undefined];
    const compute = (dtypes: number, grad: Float32Array | Uint16Array) => {
      const values = new Float64Array(2);
      const given = [...before, dtypes, ...columns, mask, undefined, values, grad, undefined, 0, 0, 0];
      native.evaluateHost(...(given as unknown as Parameters<typeof native.evaluateHost>));
      return grad;
    };
    const full = compute(0, new Float32Array(6)) as Float32Array;
    assert.notEqual(full[0], 0);
    const half = compute(2 * 2 ** 30, new Uint16Array(6));
    assert.deepEqual(
      Array.from(half),
      Array.from(full, (x) => toHalf(x, 'bfloat16')),
    );
  });

  const logits = (over: object) => ({
    rows: 6,
    vocabulary: 4,
    rowStride: 4,
    data: new Float32Array(24),
    dtype: 0,
    targets: new Int32Array(6),
    temperature: 1,
    temperatures: undefined,
    softcap: 0,
    logprob: new Float32Array(6),
    out: new Float32Array(24),
    outDtype: 0,
    outStride: 4,
    firstToken: 0,
    ...over,
  });
  const supports = {
    tokenIds: new Int32Array(1000),
    offsets: Int32Array.of(0, 1000, 1000, 1000, 1000, 1000, 1000),
  };
  for (const [what, bad] of Object.entries({
    'logits of more tokens than the batch has': logits({ firstToken: 1 }),
    'logits of tokens before the batch': logits({ firstToken: -1 }),
    'logits that are too short': logits({ rowStride: 5 }),
    'logits whose gradient is too short': logits({ outStride: 5 }),
    'a support with more tokens than the vocabulary': logits(supports),
    'logits without a place for the log-probabilities': logits({ logprob: undefined }),
    'logits without a place for the gradient': logits({ out: undefined }),
    'logits on a device': logits({ data: 4096n }),
  }))
    it(`refuses ${what}`, () => {
      const given = { ...call(6), logits: bad as never };
      assert.throws(() => native.evaluateSync(fn, batch(6, {}), given), TypeError);
    });

  it('refuses 16-bit gradients from which that of logits is computed', () => {
    for (const bad of [
      { grad: new Uint16Array(6), gradDtypes: 2 },
      { gradEntropy: new Uint16Array(6), gradDtypes: 16 },
    ]) {
      const given = { ...call(6), ...bad, logits: logits({}) } as never;
      assert.throws(() => native.evaluateSync(fn, batch(6, {}), given), /not in float32/);
    }
  });

  it('refuses logits for a function whose gradient is not per token', () => {
    const options = { beta: 0.1, label_smoothing: 0, pairwise: false };
    const pairs = native.createFunction({ policyLoss: { name: 'dpo', options, aggregation: 'token-mean' } });
    assert.equal(native.gradientIsPerToken(pairs), false);
    assert.equal(native.gradientIsPerToken(fn), true);
    const given = {
      ...batch(6, {}),
      data: [new Float32Array(6), undefined, new Float32Array(6)],
    } as NativeBatch;
    const values = new Float64Array(native.valueNames(pairs).length);
    const bad = { ...call(6), values, logits: logits({}) as never };
    assert.throws(() => native.evaluateSync(pairs, given, bad), /no gradients per token/);
  });

  it('computes two calls if a getter of one makes the other', async () => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const tokens = 4096;
    const inners = [
      () => native.evaluateSync(fn, batch(tokens, {}), call(tokens)),
      () => native.evaluate(fn, batch(tokens, {}), call(tokens)),
    ];
    for (const inner of inners)
      for (let time = 0; time < 5; time++) {
        let made: unknown;
        const outer = {
          ...call(tokens),
          get repeats() {
            made = inner();
            collect();
            return undefined;
          },
        };
        const input = batch(tokens, {});
        const promise = native.evaluate(fn, input, outer);
        for (const { buffer } of [input.data[0], input.data[3], outer.grad] as Float32Array<ArrayBuffer>[])
          structuredClone(buffer, { transfer: [buffer] });
        collect();
        await promise;
        await made;
        assert.equal(outer.values[0], 0);
      }
  });
});
