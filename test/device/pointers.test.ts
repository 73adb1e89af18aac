/** Tests columns that already are in the memory of a CUDA device, real or emulated. */
import assert from 'node:assert/strict';
import {
  ADVANTAGE_FN,
  type DeviceBatch,
  type DeviceColumn,
  type LossErrorCode,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import {
  batch,
  column,
  DEVICE,
  gpus,
  isEmulated,
  packed,
  ROWS,
  rejects,
  TOKENS,
} from '../support/on-device.js';
import type { Computed } from '../support/subject.js';
import { assertSameArray, assertSameBits } from '../support/tolerance.js';

const ppo = POLICY_LOSS_FN.create('ppo');

const computed = async (on: DeviceBatch) => (await ppo.compute(on, { grad: true })) as unknown as Computed;

// Returns a column of 600 values on the device, and the same values on the host. They are a gradient.
async function made(host: Parameters<typeof upload>[0] = batch) {
  using resident = await upload(host, DEVICE);
  const { deviceGrad } = await ppo.compute(resident, { grad: 'device' });
  return { grad: deviceGrad!, values: await deviceGrad!.toHost() };
}

describe(`columns in the memory of ${DEVICE}`, () => {
  it('give the same bits as host arrays, in upload() and in update()', async () => {
    for (const host of [batch, packed]) {
      const { grad, values } = await made(host);
      const { pointer, dtype, device, shape } = grad;
      for (const logprob of [
        grad,
        { pointer, dtype, device, shape },
        { pointer, dtype, device, shape: [TOKENS] },
      ]) {
        using expected = await upload({ ...host, logprob: values }, DEVICE);
        using uploaded = await upload({ ...host, logprob }, DEVICE);
        using updated = await upload(host, DEVICE);
        await updated.update({ logprob });
        for (const on of [uploaded, updated]) assertSameBits(await computed(on), await computed(expected));
      }
      grad.dispose();
    }
  });

  it('may have 16-bit floats, and one value per row', async () => {
    const { grad, values } = await made();
    const { pointer, device } = grad;
    const bits = new Uint16Array(values.buffer).slice(2, TOKENS + 2);
    for (const dtype of ['float16', 'bfloat16'] as const) {
      using expected = await upload(
        { ...batch, advantages: values.slice(2, 2 + ROWS), oldLogprob: { data: bits, dtype } },
        DEVICE,
      );
      using found = await upload(batch, DEVICE);
      await found.update({
        advantages: { pointer: pointer + 8n, dtype: 'float32', device, shape: [ROWS] },
        oldLogprob: { pointer: pointer + 4n, dtype, device, shape: [ROWS, TOKENS / ROWS] },
      });
      const { loss, grad: there } = await computed(found);
      const wanted = await computed(expected);
      assert.equal(loss, wanted.loss);
      assertSameArray(there, wanted.grad, dtype);
    }
    grad.dispose();
  });

  it('reach advantage functions', async () => {
    const { grad, values } = await made();
    const rewarded = { ...batch, tokenLevelRewards: batch.advantages, values: batch.oldLogprob };
    using expected = await upload({ ...rewarded, values }, DEVICE);
    using uploaded = await upload({ ...rewarded, values: grad }, DEVICE);
    using updated = await upload(rewarded, DEVICE);
    await updated.update({ values: grad });
    const gae = ADVANTAGE_FN.create('ppo');
    const { advantages } = await gae.compute(expected);
    for (const on of [uploaded, updated])
      assertSameArray((await gae.compute(on)).advantages, advantages, 'advantages');
    assert.notDeepEqual((await gae.compute(rewarded)).advantages, advantages);
  });

  it('may be overwritten after the call', async () => {
    const { grad, values } = await made();
    using resident = await upload(batch, DEVICE);
    await resident.update({ logprob: grad });
    using other = await upload({ ...batch, advantages: column(() => 7) }, DEVICE);
    await ppo.compute(other, { grad });
    assert.notDeepEqual(await grad.toHost(), values);
    grad.dispose();
    using expected = await upload({ ...batch, logprob: values }, DEVICE);
    assertSameBits(await computed(resident), await computed(expected));
  });

  it('are refused where they do not fit, and the batch keeps its values', async () => {
    const { grad } = await made();
    const { pointer, dtype, device, shape } = grad;
    const whole: DeviceColumn = { pointer, dtype, device, shape };
    using resident = await upload(batch, DEVICE);
    const before = await computed(resident);
    const cases: [change: object, code: LossErrorCode, message: RegExp][] = [
      [
        { shape: [5, 100] },
        'ERR_SHAPE_MISMATCH',
        /logprob: expected \[6, 100\] = 600 values, got shape \[5, 100\]/,
      ],
      [{ shape: [ROWS] }, 'ERR_SHAPE_MISMATCH', /logprob/],
      [{ shape: undefined }, 'ERR_SHAPE_MISMATCH', /logprob.*undefined/],
      [{ dtype: 'float64' }, 'ERR_INVALID_INPUT', /logprob: expected dtype float32.*'float64'/],
      [{ device: 'cpu' }, 'ERR_INVALID_INPUT', /logprob: expected a column on cuda:0.*'cpu'/],
      [{ device: undefined }, 'ERR_INVALID_INPUT', /logprob: expected a column on cuda:0/],
      [
        { pointer: Number(pointer) },
        'ERR_INVALID_INPUT',
        /logprob: expected a pointer to float32 values, a bigint/,
      ],
      [{ pointer: pointer + 2n }, 'ERR_INVALID_INPUT', /a bigint that 4 divides/],
      [{ pointer: -4n }, 'ERR_INVALID_INPUT', /a bigint/],
      [{ pointer: 2n ** 64n }, 'ERR_INVALID_INPUT', /a bigint/],
      [{ pointer: 0n }, 'ERR_INVALID_INPUT', /0x0/],
      [{ pointer: 4096n }, 'ERR_INVALID_INPUT', /expected memory of the device/],
    ];
    // On a real device, the memory behind an array usually belongs to another array.
    if (isEmulated) cases.push([{ pointer: pointer + 4n }, 'ERR_INVALID_INPUT', /with room for all values/]);
    for (const [change, code, message] of cases) {
      const logprob = { ...whole, ...change } as DeviceColumn;
      await rejects(() => resident.update({ logprob }), code, message);
      await rejects(() => upload({ ...batch, logprob }, DEVICE), code, message);
    }
    assertSameBits(await computed(resident), before);
    grad.dispose();
    await rejects(() => resident.update({ logprob: grad }), 'ERR_INVALID_INPUT', /disposed/);
  });

  if (gpus.length > 1)
    it('are refused by a batch on another device', async () => {
      const { grad } = await made();
      const there = { pointer: grad.pointer, dtype: grad.dtype, device: 'cuda:1', shape: grad.shape };
      using resident = await upload(batch, 'cuda:1');
      await rejects(
        () => resident.update({ logprob: grad }),
        'ERR_INVALID_INPUT',
        /expected a column on cuda:1/,
      );
      await rejects(() => resident.update({ logprob: there }), 'ERR_INVALID_INPUT', /memory of the device/);
      grad.dispose();
    });

  it('are refused by calls that take host arrays', async () => {
    const { grad } = await made();
    const message = /logprob: expected .*, got memory of a device. upload\(\) and update\(\) accept/;
    const host = { ...batch, logprob: grad as unknown as Float32Array };
    await rejects(() => ppo.compute(host), 'ERR_INVALID_INPUT', message);
    await rejects(() => ppo.compute(host, { device: DEVICE }), 'ERR_INVALID_INPUT', message);
    grad.dispose();
  });
});
