/** Tests the functions of lib/logits on a CUDA device, real or emulated. */
import assert from 'node:assert/strict';
import {
  type DeviceColumn,
  type LossErrorCode,
  logprobs,
  logprobsBackward,
  logprobsBackwardSync,
  logprobsSync,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { testDrawnLogits } from '../support/drawn-logits-suite.js';
import { framework } from '../support/framework.js';
import { dataOf, makeLogits, PLAIN_ROWS, stored } from '../support/logits.js';
import { testLogits } from '../support/logits-suite.js';
import { copyToDevice, DEVICE_WAYS } from '../support/logits-ways.js';
import { batch, DEVICE, gpus, isEmulated, ROWS, rejects, TOKENS } from '../support/on-device.js';
import { assertArray, assertSameArray } from '../support/tolerance.js';

const device = DEVICE;
const SHAPE: [number, number] = [4, 90];
const SPEC = { ...PLAIN_ROWS, rows: 4, vocabulary: 90 } as const;
const other = framework()!;

describe(`logits on ${DEVICE}`, () => {
  testLogits(DEVICE_WAYS);

  describe('drawn', () => testDrawnLogits(DEVICE_WAYS));

  it('agree with the CPU within rounding', async () => {
    const { logits, options } = makeLogits({ ...SPEC, rows: 40, vocabulary: 3000 });
    const cpu = logprobsSync(logits, { ...options, entropy: true });
    const found = await logprobs(logits, { ...options, entropy: true, device });
    for (const key of ['logprob', 'logsumexp', 'entropy'] as const)
      for (const [i, x] of found[key]!.entries())
        assert.ok(Math.abs(x - cpu[key]![i]!) < 3e-6 * Math.max(1, Math.abs(x)), `${key} ${i}`);
  });

  it('take rows of every alignment, to and from every alignment', async function () {
    if (!other) this.skip();
    for (const dtype of ['float32', 'float16', 'bfloat16'] as const) {
      const size = dtype === 'float32' ? 4 : 2;
      const spec = { ...SPEC, vocabulary: 5003, dtype, ignored: 0.3, seed: 12 };
      const { logits, options, gradLogprob, gradEntropy } = makeLogits(spec);
      const { support: _, ...plain } = options;
      const expected = await logprobs(logits, { ...plain, entropy: true, device });
      const grads = { ...plain, gradLogprob, gradEntropy, device };
      const expectedGrad = stored(dataOf(await logprobsBackward(logits, grads)), dtype);
      for (let offset = 0; offset < 16 / size; offset++) {
        // The numbers before the logits and after them are NaN, which must not change.
        const around = new Float64Array(offset + dataOf(logits).length + 3).fill(Number.NaN);
        const { logits: padded } = stored(around, dtype);
        dataOf(padded).set(dataOf(logits), offset);
        const before = dataOf(padded).slice();
        const there = copyToDevice(padded, SHAPE);
        const shape = [4, 5003];
        const part: DeviceColumn = { ...there, pointer: there.pointer + BigInt(offset * size), shape };
        const found = await logprobs(part, { ...plain, entropy: true, device });
        for (const key of ['logprob', 'logsumexp', 'entropy'] as const)
          assertSameArray(found[key]!, expected[key]!, key);
        const apart = copyToDevice(stored(new Float64Array(5003 * 4 + 20), dtype).logits, SHAPE);
        const shifted = { ...apart, pointer: apart.pointer + BigInt(size * (offset % 3)), shape };
        assert.equal(await logprobsBackward(part, { ...grads, out: shifted }), shifted);
        await logprobsBackward(part, { ...grads, out: part });
        there.fetch();
        apart.free();
        before.set(dataOf(expectedGrad.logits), offset);
        assertSameArray(dataOf(padded), before, `${dtype} ${offset}`);
        there.free();
      }
    }
  });

  it('may be tensors of several dimensions and gradients on the device', async function () {
    if (!other) this.skip();
    const { logits, options, gradLogprob } = makeLogits(SPEC);
    const expected = await logprobs(logits, { ...options, device });
    const grads = { ...options, gradLogprob, device };
    const expectedGrad = dataOf(await logprobsBackward(logits, grads));
    const there = copyToDevice(logits, [2, 2, 90]);
    assert.deepEqual(await logprobs(there, { ...options, device }), expected);
    assert.deepEqual(await logprobs({ ...there, shape: [360] }, { ...options, device }), expected);
    assert.equal(await logprobsBackward(there, { ...grads, out: there }), there);
    there.fetch();
    assertSameArray(dataOf(logits), expectedGrad, 'in place');
    there.free();

    using resident = await upload(batch, DEVICE);
    const { deviceGrad } = await POLICY_LOSS_FN.create('ppo').compute(resident, { grad: 'device' });
    using grad = deviceGrad!;
    const whole = { shape: [ROWS, TOKENS / ROWS] as [number, number], targets: [0, 1, 2, 3, 4, 5] };
    const onHost = await logprobs(await grad.toHost(), { ...whole, device });
    assert.deepEqual(await logprobs(grad, { ...whole, device }), onHost);
  });

  it('wait for the stream of the caller', async function () {
    if (!other) this.skip();
    const { logits, options, gradLogprob } = makeLogits(SPEC);
    const expected = await logprobs(logits, { ...options, device });
    const grad = dataOf(await logprobsBackward(logits, { ...options, gradLogprob, device }));
    const stream = other.makeStream(0);
    const there = { pointer: other.allocate(0, 1440), dtype: 'float32', device, shape: SHAPE } as const;
    const source = other.allocate(0, 1440);
    other.write(stream, source, logits as Float32Array);
    const writeLater = () => other.copy(stream, there.pointer, source, 1440);
    writeLater();
    assert.deepEqual(await logprobs(there, { ...options, device, stream }), expected);
    writeLater();
    assertSameArray(
      dataOf((await logprobsBackward(there, { ...options, gradLogprob, device, stream })) as Float32Array),
      grad,
      'grad',
    );
    await rejects(
      () => logprobs(logits, { ...options, stream }),
      'ERR_INVALID_INPUT',
      /no stream, because the CPU computes the call/,
    );
    other.free(there.pointer);
    other.free(source);
    other.destroyStream(stream);
  });

  it('are refused where they do not fit', async function () {
    if (!other) this.skip();
    const { logits, options, gradLogprob } = makeLogits(SPEC);
    const there = copyToDevice(logits, SHAPE);
    const half = { ...there, dtype: 'float16' } as const;
    const cases: [logits: object, more: object, code: LossErrorCode, message: RegExp][] = [
      [
        { ...there, shape: [4, 91] },
        {},
        'ERR_SHAPE_MISMATCH',
        /^logits: expected \[4, 90\] = 360 values, got/,
      ],
      [{ ...there, shape: [90, 4] }, {}, 'ERR_SHAPE_MISMATCH', /^logits: .*shape \[90, 4\]/],
      [{ ...there, shape: undefined }, {}, 'ERR_SHAPE_MISMATCH', /^logits: .*undefined/],
      [there, { rowStride: 91 }, 'ERR_SHAPE_MISMATCH', /^logits: expected \[4, 91\]/],
      [{ ...there, dtype: 'float64' }, {}, 'ERR_INVALID_INPUT', /^logits: expected dtype/],
      [{ ...there, device: 'cpu' }, {}, 'ERR_INVALID_INPUT', /^logits: .*cuda:0, the device of the call/],
      [{ ...there, pointer: 4096n }, {}, 'ERR_INVALID_INPUT', /^logits: .*memory of the device with room/],
      [
        { ...there, pointer: there.pointer + 2n },
        {},
        'ERR_INVALID_INPUT',
        /^logits: .*bigint that 4 divides/,
      ],
      [{ ...there, pointer: there.pointer + 4n }, {}, 'ERR_INVALID_INPUT', /^logits: .*room for all values/],
      [
        there,
        { device: undefined },
        'ERR_INVALID_INPUT',
        /^logits: expected memory of the host.*Pass the name/,
      ],
      [logits, { device: 'cuda:99' }, 'ERR_DEVICE_UNAVAILABLE', /^device: expected one of cpu, cuda:0/],
    ];
    const outs: typeof cases = [
      [there, { out: half }, 'ERR_INVALID_INPUT', /^out: expected dtype float32 or that of the logits/],
      [there, { out: { ...there, pointer: there.pointer + 4n } }, 'ERR_INVALID_INPUT', /^out: .*overlaps/],
      [half, { out: there }, 'ERR_INVALID_INPUT', /^out: .*overlaps with the logits/],
      [logits, { out: { ...there, shape: [90, 4] } }, 'ERR_SHAPE_MISMATCH', /^out: expected \[4, 90\]/],
      [logits, { out: { ...there, pointer: 4096n } }, 'ERR_INVALID_INPUT', /^out: .*memory of the device/],
      [logits, { out: there, device: 'cpu' }, 'ERR_INVALID_INPUT', /^out: expected memory of the host/],
    ];
    if (gpus.length > 1)
      cases.push([there, { device: 'cuda:1' }, 'ERR_INVALID_INPUT', /^logits: .*cuda:1, .*got .*'cuda:0'/]);
    const call = { ...options, gradLogprob, device };
    for (const [wrong, more, code, message] of [...cases, ...outs])
      await rejects(() => logprobsBackward(wrong as typeof there, { ...call, ...more }), code, message);
    for (const [wrong, more, code, message] of cases)
      await rejects(() => logprobs(wrong as typeof there, { ...options, device, ...more }), code, message);
    assert.throws(() => logprobsSync(logits, { ...options, device }), {
      code: 'ERR_DEVICE_UNAVAILABLE',
      message: /^device: expected 'cpu', because only the asynchronous calls run on a device/,
    });
    there.free();
  });

  it('go to memory of the device from the host, and back', async function () {
    if (!other) this.skip();
    for (const support of [false, true]) {
      const { logits, options, gradLogprob } = makeLogits({
        ...SPEC,
        support,
        ignored: 0.3,
        dtype: 'bfloat16',
      });
      const grads = { ...options, gradLogprob, device };
      const expected = dataOf(await logprobsBackward(logits, grads));
      const fromHost = stored(new Float64Array(360), 'float32').logits;
      const there = copyToDevice(fromHost, SHAPE);
      await logprobsBackward(logits, { ...grads, out: there });
      there.fetch();
      assertSameArray(dataOf(fromHost), expected, 'from the host');
      there.free();
    }
  });

  it('are copied in chunks of rows, with their supports', async () => {
    const [rows, vocabulary] = [3, 2 ** 22]; // one row in each chunk
    const logits = new Float32Array(rows * vocabulary);
    const tokenIds = [5, 7, 2 ** 21, 4, vocabulary - 1, 9, 8, 3];
    const offsets = [0, 2, 5, 8];
    const places = tokenIds.map((id, i) => id + vocabulary * offsets.findLastIndex((begin) => begin <= i));
    for (const [i, at] of places.entries()) logits[at] = Math.sin(i);
    const options = {
      shape: [rows, vocabulary] as [number, number],
      targets: [7, 2 ** 21, 9],
      temperature: [0.5, 1, 2],
      support: { tokenIds, offsets },
    };
    const cpu = logprobsSync(logits, { ...options, entropy: true });
    const found = await logprobs(logits, { ...options, entropy: true, device });
    for (const key of ['logprob', 'logsumexp', 'entropy'] as const) assertArray(found[key]!, cpu[key]!, key);
    const grads = { ...options, ...cpu, gradLogprob: [1, 2, 3], gradEntropy: [3, 1, 2] };
    const expected = logprobsBackwardSync(logits, grads);
    await logprobsBackward(logits, { ...grads, device, out: logits });
    const some = (grad: Float32Array) => places.map((at) => grad[at]!);
    assertArray(some(logits), some(expected), 'grad');
    assert.equal(logits.filter((x) => x !== 0).length, places.length);
  });

  it('need little memory of the device, however many they are', async function () {
    if (!isEmulated || gpus[0]!.memory > 2 ** 28) this.skip();
    // The logits are larger than the memory of the device. Most rows are ignored, to save time.
    const [rows, vocabulary] = [9, 2 ** 24];
    const logits = { data: new Uint16Array(rows * vocabulary), dtype: 'bfloat16' } as const;
    const targets = new Int32Array(rows).fill(-100);
    targets[0] = targets[8] = 7;
    const { logprob } = await logprobs(logits, { shape: [rows, vocabulary], targets, device });
    assert.equal(logprob[0], Math.fround(-Math.log(vocabulary)));
    assert.equal(logprob[8], logprob[0]);
  });

  it('stop when the signal is aborted', async () => {
    const { logits, options } = makeLogits(SPEC);
    const aborted = AbortSignal.abort();
    await rejects(() => logprobs(logits, { ...options, device, signal: aborted }), 'ERR_ABORTED', /aborted/);
    const large = new Float32Array(2 ** 25);
    const controller = new AbortController();
    const call = logprobs(large, {
      shape: [2 ** 15, 2 ** 10],
      targets: new Int32Array(2 ** 15),
      device,
      signal: controller.signal,
    });
    setImmediate(() => controller.abort());
    await rejects(() => call, 'ERR_ABORTED', /aborted/);
  });
});
