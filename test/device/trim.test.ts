/** Tests trimDevice(), and uploads to a CUDA device, real or emulated, while it computes. */
import assert from 'node:assert/strict';
import { POLICY_LOSS_FN, trimDevice, upload } from '../../lib/index.js';
import { batch, column, DEVICE, rejects } from '../support/on-device.js';
import type { Computed } from '../support/subject.js';
import { assertSameBits } from '../support/tolerance.js';

const ppo = POLICY_LOSS_FN.create('ppo');
const compute = async (on: Parameters<typeof ppo.compute>[0]) =>
  (await ppo.compute(on, { grad: true, device: DEVICE })) as unknown as Computed;

describe(`trimDevice() of ${DEVICE}`, () => {
  it('changes no result, and keeps uploaded batches and gradients', async () => {
    const expected = await compute(batch);
    using resident = await upload(batch, DEVICE);
    const { deviceGrad } = await ppo.compute(resident, { grad: 'device' });
    const grad = await deviceGrad!.toHost();
    await trimDevice(DEVICE);
    assert.deepEqual(await deviceGrad!.toHost(), grad);
    assertSameBits(await compute(resident), expected);
    assertSameBits(await compute(batch), expected);
    await trimDevice();
    await trimDevice('cuda');
    assertSameBits(await compute(resident), expected);
    deviceGrad!.dispose();
  });

  it('waits for calls in progress', async () => {
    const expected = await compute(batch);
    const calls = [compute(batch), upload(batch, DEVICE), trimDevice(DEVICE), compute(batch)] as const;
    const [first, resident, , last] = await Promise.all(calls);
    assertSameBits(first, expected);
    assertSameBits(last, expected);
    assertSameBits(await compute(resident), expected);
    resident.dispose();
  });

  it('refuses other devices', async () => {
    await rejects(() => trimDevice('cpu'), 'ERR_DEVICE_UNAVAILABLE', /expected a CUDA device, got 'cpu'/);
    await rejects(() => trimDevice('cuda:99'), 'ERR_DEVICE_UNAVAILABLE', /cuda:99/);
    await rejects(() => trimDevice(0 as never), 'ERR_DEVICE_UNAVAILABLE', /expected one of/);
  });
});

describe(`uploads to ${DEVICE} while it computes`, () => {
  it('do not wait for the calls that were made before', async () => {
    const ended: string[] = [];
    const note =
      (name: string) =>
      <T>(value: T) => {
        ended.push(name);
        return value;
      };
    const computing = Array.from({ length: 60 }, () => compute(batch).then(note('computed')));
    using resident = await upload(batch, DEVICE).then(note('uploaded'));
    await resident.update({ logprob: column((i) => -1.1 - (i % 4) / 10) }).then(note('updated'));
    await Promise.all(computing);
    assert.notEqual(ended.at(-1), 'updated', `in the order ${ended}`);
  });
});
