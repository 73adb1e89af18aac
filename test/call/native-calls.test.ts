/**
 * Calls the native module without the checks of lib/. Tests that the module itself refuses batches that would make it
 * read out of bounds.
 */
import assert from 'node:assert/strict';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { NativeBatch, NativeCall } from '../../binding.js';
import { native } from '../../lib/base/native.js';
import { toHalf } from '../support/half.js';

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

const call = (tokens: number, given: NativeBatch = batch(tokens, {})) => ({
  fn,
  batch: given,
  values: new Float64Array(2),
  grad: new Float32Array(tokens),
  gradEntropy: undefined,
  mu: 0,
  klCoef: 0,
  entropyCoef: 0,
});

/** Asserts that native code refuses a call before it begins, also if other threads would compute it. */
function refuses(given: NativeCall, error: RegExp | typeof TypeError = TypeError): void {
  assert.throws(() => native.evaluate(given), error);
  assert.throws(() => native.evaluate({ ...given, later: true }), error);
}

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
      refuses(call(bad.mask!.length, bad));
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
      refuses({ ...call(6), ...bad } as NativeCall);
    });

  it('writes gradients in the dtypes that the call names', () => {
    const column = Float32Array.of(-1, -2, -3, -4, -5, -6);
    const given = batch(6, { data: [column, undefined, undefined, column] });
    const compute = <G extends Float32Array | Uint16Array>(gradDtypes: number, grad: G): G => {
      native.evaluate({ ...call(6, given), gradDtypes, grad });
      return grad;
    };
    const full = compute(0, new Float32Array(6));
    assert.notEqual(full[0], 0);
    const half = compute(2, new Uint16Array(6));
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
      refuses({ ...call(6), logits: bad as never });
    });

  it('refuses 16-bit gradients from which that of logits is computed', () => {
    for (const bad of [
      { grad: new Uint16Array(6), gradDtypes: 2 },
      { gradEntropy: new Uint16Array(6), gradDtypes: 16 },
    ]) {
      refuses({ ...call(6), ...bad, logits: logits({}) } as never, /not in float32/);
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
    refuses({ ...call(6, given), fn: pairs, values, logits: logits({}) as never }, /no gradients per token/);
  });

  it('keeps the arrays of a call until its promise settles, and computes a call that a getter makes', async () => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const tokens = 2 ** 20;
    const inners = [
      () => native.evaluate(call(tokens)),
      () => native.evaluate({ ...call(tokens), later: true }),
    ];
    for (const inner of inners)
      for (let time = 0; time < 5; time++) {
        let made: unknown;
        const values = new Float64Array(2);
        const promise = native.evaluate({
          ...call(tokens),
          values,
          later: true,
          get gradLogZ() {
            made = inner();
            return undefined;
          },
        });
        // Now nothing but the running call refers to its arrays.
        collect();
        await promise;
        await made;
        assert.equal(values[0], 0);
      }
  });

  it('returns -1 for a call that is aborted before it begins', async () => {
    const abort = Int32Array.of(1);
    assert.equal(await native.evaluate({ ...call(6), later: true, abort }), -1);
    const wrong = Int32Array.of(0, 0);
    assert.throws(() => native.evaluate({ ...call(6), later: true, abort: wrong }), TypeError);
  });
});
