/**
 * Tests objects of other realms, such as the contexts of node:vm in which some test runners run the tests: their typed
 * arrays and AbortSignals are accepted, the whole package works in a context, and LossErrors of another copy of the
 * package are recognised.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify, types } from 'node:util';
import { runInNewContext, runInThisContext } from 'node:vm';
import { fromNative } from '../../lib/base/abortable.js';
import {
  isArrayBuffer,
  isError,
  isFloat32Array,
  isFloat64Array,
  isInt32Array,
  isPromise,
  isUint8Array,
  isUint16Array,
  typedArrayName,
} from '../../lib/base/kinds.js';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  type Batch,
  KL_FN,
  LossError,
  POLICY_LOSS_FN,
  PPOPolicyLossFn,
  SAPOPolicyLossFn,
} from '../../lib/index.js';
import { makeBatch } from '../support/draw.js';
import { isLossError } from '../support/loss-error.js';
import { packedBatch, paddedBatch } from '../support/subject.js';

const other = runInNewContext('globalThis') as typeof globalThis;

/** Copies a value with all of its arrays, typed arrays and buffers to the other realm. */
function foreign(value: unknown, shared = false): unknown {
  if (Array.isArray(value)) return other.Array.from(value, (element) => foreign(element, shared));
  if (ArrayBuffer.isView(value)) {
    const view = value as Float32Array;
    const Type = (other as unknown as Record<string, new (buffer: ArrayBufferLike) => Float32Array>)[
      view.constructor.name
    ]!;
    const copy = new Type(new (shared ? other.SharedArrayBuffer : other.ArrayBuffer)(view.byteLength));
    copy.set(view);
    assert.ok(!(copy instanceof (view.constructor as typeof Float32Array)));
    return copy;
  }
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([key, own]) => [key, foreign(own, shared)]));
}

/** An AbortSignal such as those of a DOM in JavaScript: it is not an instance of Node's class. */
class OwnSignal extends EventTarget {
  aborted = false;
  reason: unknown;
  abort(reason: unknown): void {
    this.aborted = true;
    this.reason = reason;
    this.dispatchEvent(new Event('abort'));
  }
}

describe('another realm', () => {
  const spec = { seed: 3, rows: 8, columns: 20, values: 'moderate', mask: 'random' } as const;
  const drawn = {
    padded: makeBatch({ ...spec, packed: false }),
    packed: makeBatch({ ...spec, packed: true }),
  };
  const batches = {
    padded: paddedBatch(drawn.padded),
    packed: packedBatch(drawn.packed),
    halves: {
      ...paddedBatch(drawn.padded),
      refLogprob: { data: new Uint16Array(160).fill(0xbf80), dtype: 'bfloat16' },
      logprob: Float64Array.from(drawn.padded.logprob!),
      actionMask: Array.from(drawn.padded.actionMask, Boolean),
    },
  };
  const rewarded = {
    rewards: Float64Array.of(1, 0, 2, 1, 0, 0, 1, 3),
    groupIds: Int32Array.of(1, 1, 1, 1, 2, 2, 2, 2),
    runIds: [1, 1, 2, 2, 1, 1, 2, 2],
  };
  const grad = () => ({ grad: foreign(new Float32Array(160)) as Float32Array });

  for (const [what, columns] of Object.entries(batches))
    for (const shared of [false, true])
      it(`${what} columns${shared ? ' in shared memory' : ''}`, async () => {
        const batch = { ...columns, ...rewarded } as unknown as Batch;
        const theirs = foreign(batch, shared) as Batch;
        for (const name of ['ppo', 'dpo', 'mix', 'mix_chord']) {
          const fn = POLICY_LOSS_FN.create(name);
          const expected = fn.computeSync(batch, { grad: true });
          assert.deepEqual(fn.computeSync(theirs, { grad: true }), expected, name);
          assert.deepEqual(await fn.compute(theirs, { grad: true }), expected, name);
        }
        const kl = KL_FN.create('k3');
        assert.deepEqual(await kl.calculateKl(theirs), kl.calculateKlSync(batch));
        for (const name of ['grpo', 'rloo', 'step_wise_grpo']) {
          const fn = ADVANTAGE_FN.create(name);
          assert.deepEqual(await fn.compute(theirs), fn.computeSync(batch), name);
        }
        const { advantages: _, ...without } = theirs;
        const { advantages: _a, ...ours } = batch;
        const objective = ALGORITHM_TYPE.get('grpo').objective();
        assert.equal((await objective.compute(without)).loss, objective.computeSync(ours).loss);
      });

  it('a gradient, resizable memory and the arguments of a gate', () => {
    const ppo = POLICY_LOSS_FN.create('ppo');
    const expected = ppo.computeSync(batches.padded, { grad: true });
    const options = grad();
    assert.equal(ppo.computeSync(batches.padded, options).grad, options.grad);
    assert.deepEqual(Array.from(options.grad), Array.from(expected.grad!));
    const logprob = runInNewContext('new Float32Array(new ArrayBuffer(640, { maxByteLength: 1280 }))');
    logprob.set(batches.padded.logprob);
    assert.deepEqual(ppo.computeSync({ ...batches.padded, logprob }, { grad: true }), expected);
    const gates = new SAPOPolicyLossFn().softGateFunction(other.Float32Array.of(1, 2), other.Array.of(1, -1));
    assert.equal(gates.length, 2);
  });

  it('a typed array of the wrong type or memory is still an error', () => {
    const ppo = POLICY_LOSS_FN.create('ppo');
    const detached = runInNewContext('new Float32Array(160)');
    structuredClone(detached.buffer, { transfer: [detached.buffer] });
    for (const logprob of [
      new other.Int8Array(160),
      new other.BigInt64Array(160),
      new other.DataView(new ArrayBuffer(160)),
      detached,
      Object.create(Float32Array.prototype),
    ])
      assert.throws(
        () => ppo.computeSync({ ...batches.padded, logprob }),
        isLossError(['ERR_INVALID_INPUT', 'ERR_SHAPE_MISMATCH']),
      );
  });

  it('an AbortSignal that is not an instance of this realm', async () => {
    const ppo = POLICY_LOSS_FN.create('ppo');
    const logprob = Array.from({ length: 200_000 }, () => -1);
    const long: Batch = {
      shape: [1, 200_000],
      logprob,
      oldLogprob: logprob,
      advantages: [1],
      actionMask: logprob,
    };
    for (const batch of [long, batches.padded]) {
      const signal = new OwnSignal();
      assert.ok(Number.isFinite((await ppo.compute(batch, { signal })).loss));
      signal.abort('enough');
      await assert.rejects(ppo.compute(batch, { signal }), (error: Error) => error.cause === 'enough');
    }
    const signal = new OwnSignal();
    const promise = ppo.compute(long, { signal });
    signal.abort('enough');
    await assert.rejects(promise, isLossError('ERR_ABORTED'));
    for (const wrong of [{}, null, { aborted: false }, 'signal', other.Object.create(AbortSignal.prototype)])
      await assert.rejects(
        ppo.compute(batches.padded, { signal: wrong as AbortSignal }),
        isLossError('ERR_INVALID_INPUT'),
      );
  });

  it('errors of native code that belong to the main realm', () => {
    const error = fromNative(runInNewContext(`new TypeError('rows')`));
    isLossError('ERR_INVALID_INPUT', /rows/)(error);
    const memory = fromNative(
      runInNewContext(`Object.assign(new Error('none'), { code: 'ERR_OUT_OF_MEMORY' })`),
    );
    isLossError('ERR_OUT_OF_MEMORY')(memory);
  });

  it('an error of a getter becomes the cause', () => {
    const thrown = runInNewContext(`new RangeError('theirs')`);
    const batch = {
      get shape() {
        throw thrown;
      },
    };
    assert.throws(
      () => POLICY_LOSS_FN.create('ppo').computeSync(batch as unknown as Batch),
      (error: LossError) => isLossError('ERR_INVALID_INPUT', /theirs/)(error) && error.cause === thrown,
    );
  });

  it('the whole package in a context of node:vm', async () => {
    const script = fileURLToPath(new URL('../support/in-context.mjs', import.meta.url));
    const { stdout } = await promisify(execFile)(process.execPath, [
      '--experimental-vm-modules',
      '--no-warnings',
      script,
    ]);
    assert.deepEqual(JSON.parse(stdout), {
      loss: PPO_LOSS,
      fromLists: PPO_LOSS,
      isLossErrorThere: true,
      isLossErrorHere: true,
      detached: 'ERR_INVALID_INPUT',
    });
  });
});

const PPO_LOSS = new PPOPolicyLossFn({ clipRange: 0.2 }).computeSync({
  shape: [1, 2],
  logprob: [-1, -2],
  oldLogprob: [-1.1, -2],
  advantages: [1, -1],
  actionMask: [1, 1],
}).loss;

describe('kinds of values are those of node:util', () => {
  const pairs: readonly [ours: (value: unknown) => boolean, theirs: (value: unknown) => boolean][] = [
    [isFloat32Array, types.isFloat32Array],
    [isFloat64Array, types.isFloat64Array],
    [isInt32Array, types.isInt32Array],
    [isUint8Array, types.isUint8Array],
    [isUint16Array, types.isUint16Array],
    [isArrayBuffer, types.isArrayBuffer],
    [isError, types.isNativeError],
    [(value) => typedArrayName(value) !== undefined, types.isTypedArray],
  ];
  const arrays = 'Float32 Float64 Int8 Int16 Int32 BigInt64 Uint8 Uint8Clamped Uint16 Uint32 BigUint64'.split(
    ' ',
  );
  const detach = '(value) => (structuredClone(value, { transfer: [value] }), value)';
  for (const expression of [
    ...['undefined', 'null', '1', '1n', 'true', `'Error'`, 'Symbol()', '[1]', '({})', '(() => {})', '/x/'],
    ...arrays.map((name) => `new ${name}Array(2)`),
    ...['new ArrayBuffer(8)', 'new SharedArrayBuffer(8)', 'new DataView(new ArrayBuffer(8))'],
    ...[`(${detach})(new ArrayBuffer(8))`, 'new Float32Array(new SharedArrayBuffer(8))'],
    ...['new (class extends Float32Array {})(2)', 'new (class extends ArrayBuffer {})(2)'],
    ...['new Error()', 'new TypeError()', 'new (class extends RangeError {})()', 'new AggregateError([])'],
    ...['Promise.resolve()', 'new (class extends Promise {})(() => {})', 'Object.create(Promise.prototype)'],
    ...['new Float32Array(2)', 'new ArrayBuffer(8)', 'new Error()'].flatMap((value) => [
      ...[`new Proxy(${value}, {})`, `Object.setPrototypeOf(${value}, null)`, `Object.create(${value})`],
    ]),
    ...['Float32Array', 'ArrayBuffer', 'Error'].flatMap((name) => [
      ...[`({ [Symbol.toStringTag]: '${name}' })`, `Object.create(${name}.prototype)`, name],
    ]),
    `Object.defineProperty(new Int32Array(1), Symbol.toStringTag, { value: 'Uint8Array' })`,
    '(({ proxy, revoke }) => (revoke(), proxy))(Proxy.revocable([], {}))',
    `new Proxy(new Error(), { get() { throw 'get'; }, has() { throw 'has'; } })`,
  ])
    it(expression, () => {
      for (const value of [runInThisContext(expression), runInNewContext(expression, { structuredClone })])
        for (const [ours, theirs] of pairs) assert.equal(ours(value), theirs(value), theirs.name);
    });

  it('promises, also those of another library', () => {
    for (const promise of ['Promise.resolve()', '({ then() {} })'])
      for (const value of [runInThisContext(promise), runInNewContext(promise)]) assert.ok(isPromise(value));
    for (const value of [undefined, null, 0, 'text', [], {}, () => {}]) assert.ok(!isPromise(value));
  });
});

describe('LossError', () => {
  it('is recognised if another copy of the package made it', async () => {
    const path: string = '../../lib/base/errors.js?another-copy';
    const copy = (await import(path)) as typeof import('../../lib/base/errors.js');
    assert.notEqual(copy.LossError, LossError);
    const theirs = new copy.LossError('ERR_INVALID_INPUT', { key: 'logprob', expected: 'x', received: 'y' });
    assert.ok(theirs instanceof LossError);
    assert.ok(new LossError('ERR_INVALID_INPUT', 'text') instanceof copy.LossError);
    const batch = {
      get shape() {
        throw theirs;
      },
    };
    assert.throws(
      () => POLICY_LOSS_FN.create('ppo').computeSync(batch as unknown as Batch),
      (error) => error === theirs,
    );
  });

  it('is not mistaken for another error, and subclasses remain distinct', () => {
    class Refused extends LossError {}
    const refused = new Refused('ERR_INVALID_INPUT', 'text');
    assert.ok(refused instanceof Refused && refused instanceof LossError && refused instanceof Error);
    assert.ok(!(new LossError('ERR_INVALID_INPUT', 'text') instanceof Refused));
    const imitation = {
      name: 'LossError',
      code: 'ERR_INVALID_INPUT',
      [Symbol.for('policy-loss.LossError')]: true,
    };
    for (const value of [new Error('text'), imitation, null, undefined, 'LossError', Object.create(null)])
      assert.ok(!((value as unknown) instanceof LossError));
  });
});
