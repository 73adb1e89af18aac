/**
 * Tests the option `stream`: calls on a CUDA device wait for the work on a stream of another addon. The emulated device
 * does the work of a stream as late as it may, so a call that did not wait would use memory too early.
 */
import assert from 'node:assert/strict';
import { ALGORITHM_TYPE, type DeviceGradient, KL_FN, POLICY_LOSS_FN, upload } from '../../lib/index.js';
import { framework } from '../support/framework.js';
import { batch, column, DEVICE, gpus, isEmulated, ROWS, rejects, TOKENS } from '../support/on-device.js';
import type { Computed } from '../support/subject.js';
import { assertSameArray, assertSameBits } from '../support/tolerance.js';

const ppo = POLICY_LOSS_FN.create('ppo');
const BYTES = 4 * TOKENS;
const shape = [ROWS, TOKENS / ROWS];

describe(`a caller's stream on ${DEVICE}`, () => {
  const other = framework()!;
  let stream: bigint;
  let source: bigint;

  before(function () {
    if (!other) this.skip();
    stream = other.makeStream(0);
    source = other.allocate(0, BYTES);
    other.write(stream, source, batch.oldLogprob);
  });

  // Returns a column that the stream has not written yet.
  const written = (on: bigint) => {
    const pointer = other.allocate(0, BYTES);
    other.copy(on, pointer, source, BYTES);
    return { pointer, dtype: 'float32', device: DEVICE, shape } as const;
  };

  it('has written the columns before upload() and update() read them', async () => {
    const expected = ppo.computeSync({ ...batch, logprob: batch.oldLogprob }, { grad: true });
    for (const on of [stream, 0n]) {
      const columns = [written(on), written(on)];
      using uploaded = await upload({ ...batch, logprob: columns[0]! }, DEVICE, { stream: on });
      using updated = await upload(batch, DEVICE);
      await updated.update({ logprob: columns[1]! }, { stream: on });
      // The call is done with the memory.
      for (const { pointer } of columns) other.clear(on, pointer, BYTES);
      for (const resident of [uploaded, updated]) {
        const { loss, grad } = await ppo.compute(resident, { grad: true });
        assert.ok(Math.abs(loss - expected.loss) < 1e-6);
        assert.equal(grad!.length, TOKENS);
      }
      for (const { pointer } of columns) {
        other.read(on, pointer, new Float32Array(TOKENS));
        other.free(pointer);
      }
    }
  });

  it('may still write them if it is not passed, which the emulation shows', async function () {
    if (!isEmulated) this.skip();
    const logprob = written(stream);
    using resident = await upload(batch, DEVICE);
    await resident.update({ logprob });
    assert.ok(Number.isNaN((await ppo.compute(resident)).loss));
    other.read(stream, logprob.pointer, new Float32Array(TOKENS));
    other.free(logprob.pointer);
  });

  it('has read a gradient before a call overwrites it', async () => {
    const objective = ALGORITHM_TYPE.get('ppo').objective({ kl_loss_fn: 'none', entropy_loss_fn: 'none' });
    type Call = (on: typeof resident, options: object) => Promise<{ deviceGrad?: DeviceGradient }>;
    const calls: Call[] = [
      (on, options) => ppo.compute(on, options),
      (on, options) => objective.compute(on, options),
      (on, options) => KL_FN.create('k3').calculateKlLoss(on, options),
      (_, options) => ppo.compute(batch, { ...options, device: DEVICE }),
    ];
    using resident = await upload(batch, DEVICE);
    using another = await upload({ ...batch, logprob: column((i) => -1 - (i % 4) / 9) }, DEVICE);
    const copy = other.allocate(0, BYTES);
    for (const call of calls) {
      const { deviceGrad } = await call(another, { grad: 'device' });
      using grad = deviceGrad!;
      // A host batch has other values.
      if (call === calls.at(-1)) await ppo.compute(another, { grad });
      const before = await grad.toHost();
      other.copy(stream, copy, grad.pointer, BYTES);
      await call(resident, { grad, stream });
      assert.notDeepEqual(await grad.toHost(), before);
      const found = new Float32Array(TOKENS);
      other.read(stream, copy, found);
      assertSameArray(found, before, 'grad');
    }
    other.free(copy);
  });

  it('is refused if it is not a stream of the device', async () => {
    using resident = await upload(batch, DEVICE);
    const before = (await ppo.compute(resident, { grad: true })) as unknown as Computed;
    const ended = other.makeStream(0);
    other.destroyStream(ended);
    const cases: [stream: unknown, message: RegExp][] = [
      [7, /stream: expected a cudaStream_t as a bigint, got number 7/],
      [-1n, /stream: expected a cudaStream_t as a bigint/],
      [2n ** 64n, /stream: expected a cudaStream_t as a bigint/],
      [2n, /stream: expected a stream that every thread can name, got cudaStreamPerThread/],
    ];
    // CUDA does not say what a call with a stream that was destroyed does.
    if (isEmulated) cases.push([ended, /stream: expected a stream of cuda:0, got another one/]);
    if (gpus.length > 1) cases.push([other.makeStream(1), /stream: expected a stream of cuda:0/]);
    for (const [given, message] of cases) {
      const options = { stream: given as bigint };
      await rejects(() => upload(batch, DEVICE, options), 'ERR_INVALID_INPUT', message);
      await rejects(() => resident.update({ logprob: batch.logprob }, options), 'ERR_INVALID_INPUT', message);
      await rejects(() => ppo.compute(resident, options), 'ERR_INVALID_INPUT', message);
      await rejects(() => ppo.compute(batch, { ...options, device: DEVICE }), 'ERR_INVALID_INPUT', message);
    }
    await rejects(
      () => ppo.compute(batch, { stream }),
      'ERR_INVALID_INPUT',
      /no stream, because the CPU computes/,
    );
    assertSameBits((await ppo.compute(resident, { grad: true, stream })) as unknown as Computed, before);
  });
});
