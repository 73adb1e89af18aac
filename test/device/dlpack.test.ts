/** Tests DLPack tensors that other addons pass to a CUDA device's batches, and those that gradients hand out. */
import assert from 'node:assert/strict';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import {
  type DeviceBatch,
  type DLPackCapsule,
  type LossErrorCode,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { FLOAT32_TENSOR, framework, type TensorSpec } from '../support/framework.js';
import { batch, DEVICE, gpus, packed, ROWS, rejects, TOKENS } from '../support/on-device.js';
import type { Computed } from '../support/subject.js';
import { assertSameArray, assertSameBits } from '../support/tolerance.js';

const ppo = POLICY_LOSS_FN.create('ppo');
const other = framework();

const computed = async (on: DeviceBatch) => (await ppo.compute(on, { grad: true })) as unknown as Computed;

/**
 * Calls the garbage collector three times, and its finalizers, and then until a condition holds, fifty times at most:
 * a frame that has not been left, or compiled code, can keep an object a little longer.
 */
async function collectGarbage(until: () => boolean = () => true): Promise<void> {
  setFlagsFromString('--expose-gc');
  for (let i = 0; i < 3 || (i < 50 && !until()); i++) {
    (runInNewContext('gc') as () => void)();
    await new Promise((resolve) => setTimeout(resolve, i < 3 ? 0 : 20));
  }
}

describe(`DLPack tensors of gradients on ${DEVICE}`, () => {
  it('are columns for other batches, and each is taken once', async () => {
    for (const host of [batch, packed]) {
      using resident = await upload(host, DEVICE);
      const { deviceGrad } = await ppo.compute(resident, { grad: 'device' });
      using grad = deviceGrad!;
      using expected = await upload({ ...host, logprob: await grad.toHost() }, DEVICE);
      using uploaded = await upload({ ...host, logprob: grad.toDLPack() }, DEVICE);
      const capsule = grad.toDLPack();
      using updated = await upload(host, DEVICE);
      await updated.update({ logprob: capsule });
      for (const on of [uploaded, updated]) assertSameBits(await computed(on), await computed(expected));
      await rejects(
        () => updated.update({ logprob: capsule }),
        'ERR_INVALID_INPUT',
        /logprob: expected a capsule with its tensor, got one whose tensor was taken before/,
      );
    }
  });

  it('cannot be made after dispose(), or be columns of two keys or of a call on the host', async () => {
    using resident = await upload(batch, DEVICE);
    const { deviceGrad } = await ppo.compute(resident, { grad: 'device' });
    const grad = deviceGrad!;
    const capsule = grad.toDLPack();
    await rejects(
      () => resident.update({ logprob: capsule, refLogprob: capsule }),
      'ERR_INVALID_INPUT',
      /refLogprob: expected a capsule of its own, got the capsule of another column/,
    );
    await rejects(
      () => resident.update({ logprob: capsule, values: capsule }),
      'ERR_INVALID_INPUT',
      /the tensor of a DLPack capsule was taken/,
    );
    for (const options of [{}, { device: DEVICE }])
      await rejects(
        () => ppo.compute({ ...batch, logprob: grad.toDLPack() as never }, options),
        'ERR_INVALID_INPUT',
        /logprob: expected .* got memory of a device/,
      );
    grad.dispose();
    assert.throws(() => grad.toDLPack(), { code: 'ERR_INVALID_INPUT', message: /disposed/ });
  });

  it('keep the memory after dispose(), until they are taken or collected', async function () {
    this.timeout(120_000);
    const count = 2 ** 20;
    const actionMask = new Uint8Array(count); // kernels skip masked tokens
    const shape = [1, count] as const;
    const sft = POLICY_LOSS_FN.create('sft');
    using resident = await upload({ shape, logprob: new Float32Array(count), actionMask }, DEVICE);
    const calls = Math.min(100, Math.ceil((1.2 * gpus[0]!.memory) / (4 * count)));
    for (let i = 0; i < calls; i++) {
      const { deviceGrad } = await sft.compute(resident, { grad: 'device' });
      const capsule = deviceGrad!.toDLPack();
      deviceGrad!.dispose();
      if (i % 2 === 0) await resident.update({ logprob: capsule });
      else if (other && i % 4 === 1) other.takeTensor(capsule).release();
      else if (i % 8 === 3) await collectGarbage();
    }
    assert.equal((await sft.compute(resident)).loss, 0);
  });
});

describe(`DLPack tensors and ${DEVICE}, with another addon`, () => {
  before(function () {
    if (!other) this.skip();
  });

  const spec: Omit<TensorSpec, 'pointer'> = {
    ...FLOAT32_TENSOR,
    shape: [ROWS, TOKENS / ROWS],
  };

  it('are columns, and are deleted when the promise has settled', async () => {
    const pointer = other!.allocate(0, 4 * TOKENS + 16);
    other!.write(0n, pointer + 16n, batch.oldLogprob);
    using expected = await upload({ ...batch, logprob: batch.oldLogprob }, DEVICE);
    using resident = await upload(batch, DEVICE);
    const strides = [TOKENS / ROWS, 1];
    for (const change of [
      { pointer: pointer + 16n },
      { pointer, offset: 16 },
      { pointer, offset: 16, strides },
      { pointer, offset: 16, shape: [TOKENS], strides: [1] },
      { pointer, offset: 16, type: 13 },
    ]) {
      const before = other!.deleted();
      const update = resident.update({ logprob: other!.makeTensor({ ...spec, ...change }) });
      await update;
      assert.equal(other!.deleted(), before + 1);
      assertSameBits(await computed(resident), await computed(expected));
    }
    other!.free(pointer);
    await collectGarbage();
  });

  it('may have 16-bit floats, and one value per row', async () => {
    const pointer = other!.allocate(0, 4 * TOKENS);
    other!.write(0n, pointer, batch.oldLogprob);
    const bits = new Uint16Array(batch.oldLogprob.buffer).slice(0, TOKENS);
    for (const [dtype, code] of [
      ['float16', 2],
      ['bfloat16', 4],
    ] as const) {
      using expected = await upload(
        { ...batch, advantages: batch.oldLogprob.slice(0, ROWS), oldLogprob: { data: bits, dtype } },
        DEVICE,
      );
      using found = await upload(
        {
          ...batch,
          advantages: other!.makeTensor({ ...spec, pointer, shape: [ROWS] }),
          oldLogprob: other!.makeTensor({ ...spec, pointer, code, bits: 16 }),
        },
        DEVICE,
      );
      const [{ loss, grad }, wanted] = [await computed(found), await computed(expected)];
      assert.equal(loss, wanted.loss);
      assertSameArray(grad, wanted.grad, dtype);
    }
    other!.free(pointer);
  });

  it('are refused where they do not fit, and then not taken', async () => {
    const pointer = other!.allocate(0, 4 * TOKENS);
    using resident = await upload(batch, DEVICE);
    const before = await computed(resident);
    const cases: [change: Partial<TensorSpec>, code: LossErrorCode, message: RegExp][] = [
      [{ shape: [5, 100] }, 'ERR_SHAPE_MISMATCH', /logprob: expected \[6, 100\].*got shape \[5, 100\]/],
      [{ shape: [] }, 'ERR_SHAPE_MISMATCH', /logprob/],
      [{ shape: [1, ROWS, TOKENS / ROWS] }, 'ERR_SHAPE_MISMATCH', /logprob/],
      [
        { strides: [1, ROWS] },
        'ERR_INVALID_INPUT',
        /logprob: expected a contiguous tensor, got one with strides/,
      ],
      [{ strides: [200, 1] }, 'ERR_INVALID_INPUT', /contiguous/],
      [
        { bits: 64 },
        'ERR_INVALID_INPUT',
        /logprob: expected dtype float32, float16 or bfloat16, got dtype 'other'/,
      ],
      [{ code: 1 }, 'ERR_INVALID_INPUT', /'other'/],
      [{ lanes: 4 }, 'ERR_INVALID_INPUT', /'vectors'/],
      [{ type: 1 }, 'ERR_INVALID_INPUT', /logprob: expected a column on cuda:0.*got one on 'cpu'/],
      [{ device: 99 }, 'ERR_DEVICE_UNAVAILABLE', /cuda:99/],
      [{ offset: 2 }, 'ERR_INVALID_INPUT', /a bigint that 4 divides/],
      [{ tag: false }, 'ERR_INVALID_INPUT', /logprob: expected a DLPack capsule, got another external/],
    ];
    if (gpus.length > 1)
      cases.push([{ device: 1 }, 'ERR_INVALID_INPUT', /a column on cuda:0.*got one on 'cuda:1'/]);
    const deleted = other!.deleted();
    // in a function of its own, so that no variable of this frame refers to a capsule when garbage is collected
    const refuseAll = async () => {
      const capsules: DLPackCapsule[] = [];
      for (const [change, code, message] of cases) {
        const capsule = other!.makeTensor({ ...spec, pointer, ...change });
        capsules.push(capsule);
        await rejects(() => resident.update({ logprob: capsule }), code, message);
        await rejects(() => upload({ ...batch, logprob: capsule }, DEVICE), code, message);
      }
      assert.equal(other!.deleted(), deleted);
      return capsules.length;
    };
    const refused = await refuseAll();
    assertSameBits(await computed(resident), before);
    await collectGarbage(() => other!.deleted() >= deleted + refused);
    assert.equal(other!.deleted(), deleted + refused);
    other!.free(pointer);
  });

  it('are deleted once by a call that fails or is aborted', async () => {
    const pointer = other!.allocate(0, 4 * TOKENS);
    using resident = await upload(batch, DEVICE);
    const short = other!.makeTensor({ ...spec, pointer: pointer + 4n });
    const deleted = other!.deleted();
    await rejects(() => resident.update({ logprob: short }), 'ERR_INVALID_INPUT', /with room for all values/);
    assert.equal(other!.deleted(), deleted + 1);
    const controller = new AbortController();
    const aborted = resident.update({ logprob: other!.makeTensor({ ...spec, pointer }) }, controller);
    controller.abort();
    await aborted.catch(({ code }) => assert.equal(code, 'ERR_ABORTED'));
    assert.equal(other!.deleted(), deleted + 2);
    await collectGarbage();
    assert.equal(other!.deleted(), deleted + 2);
    other!.free(pointer);
  });

  it('of gradients can be taken, and keep their memory', async () => {
    using resident = await upload(batch, DEVICE);
    const { deviceGrad } = await ppo.compute(resident, { grad: 'device' });
    const values = await deviceGrad!.toHost();
    const capsule = deviceGrad!.toDLPack();
    const { release, ...tensor } = other!.takeTensor(capsule);
    assert.deepEqual(tensor, {
      pointer: deviceGrad!.pointer,
      shape: [ROWS, TOKENS / ROWS],
      type: 2,
      device: 0,
      code: 2,
      bits: 32,
    });
    await rejects(() => resident.update({ logprob: capsule }), 'ERR_INVALID_INPUT', /was taken before/);
    deviceGrad!.dispose();
    await ppo.compute(resident, { grad: 'device' });
    const found = new Float32Array(TOKENS);
    other!.read(0n, tensor.pointer, found);
    assertSameArray(found, values, 'grad');
    release();
  });
});
