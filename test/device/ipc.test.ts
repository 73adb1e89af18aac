/**
 * Tests memory that processes share. CUDA opens no memory of the own process, so the tests need the emulation: it takes a
 * handle as one of another process if a test changes its last byte.
 */
import assert from 'node:assert/strict';
import {
  ALGORITHM_TYPE,
  type DeviceBatch,
  type IpcColumn,
  type LossErrorCode,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { batch, DEVICE, gpus, ROWS, rejects, TOKENS } from '../support/on-device.js';
import type { Computed } from '../support/subject.js';
import { assertSameArray, assertSameBits } from '../support/tolerance.js';

const ppo = POLICY_LOSS_FN.create('ppo');
const { env } = process;
const shape = [ROWS, TOKENS / ROWS];

const computed = async (on: DeviceBatch) => (await ppo.compute(on, { grad: true })) as unknown as Computed;

// Returns a gradient, its values, and its handle as another process would send it.
async function exported(device = DEVICE) {
  using resident = await upload(batch, device);
  const grad = (await ppo.compute(resident, { grad: 'shareable' })).deviceGrad!;
  const own = await grad.ipcHandle();
  const handle = own.slice();
  handle[63] = 2;
  return { grad, own, handle, values: await grad.toHost() };
}

describe(`memory on ${DEVICE} that processes share`, () => {
  before(function () {
    if (gpus[0]?.description !== 'emulated') this.skip();
  });

  it('is read by upload() and update(), also for several columns', async () => {
    const { grad, handle, values } = await exported();
    const ipc = (offset: number, given: readonly number[]): IpcColumn => ({
      ipc: handle,
      offset,
      dtype: 'float32',
      device: DEVICE,
      shape: given,
    });
    using expected = await upload(
      { ...batch, logprob: values, advantages: values.slice(3, 3 + ROWS) },
      DEVICE,
    );
    const columns = { logprob: ipc(0, shape), advantages: ipc(12, [ROWS]) };
    using uploaded = await upload({ ...batch, ...columns }, DEVICE);
    using updated = await upload(batch, DEVICE);
    await updated.update(columns);
    const { offset: _, ...whole } = columns.logprob;
    await updated.update({ logprob: whole });
    // The calls have read the memory.
    using other = await upload({ ...batch, advantages: batch.entropy }, DEVICE);
    await ppo.compute(other, { grad });
    for (const on of [uploaded, updated]) assertSameBits(await computed(on), await computed(expected));
    grad.dispose();
  });

  it('is exported only for shareable gradients, and only before dispose()', async () => {
    const { grad, own } = await exported();
    assert.equal(own.length, 64);
    using resident = await upload(batch, DEVICE);
    const expected = (await ppo.compute(resident, { grad: true })).grad!;
    const { deviceGrad } = await ppo.compute(resident, { grad });
    assert.equal(deviceGrad, grad);
    assert.deepEqual(await grad.ipcHandle(), own);
    assertSameArray(await grad.toHost(), expected, 'grad');
    const objective = ALGORITHM_TYPE.get('ppo').objective({
      kl_loss_fn: 'none',
      entropy_loss_fn: 'default',
      entropy_loss_fn_args: { entropy_coef: 0.1 },
    });
    const both = await objective.compute(resident, { grad: 'shareable' });
    for (const each of [both.deviceGrad!, both.deviceGradEntropy!]) {
      assert.equal((await each.ipcHandle()).length, 64);
      each.dispose();
    }
    using plain = (await ppo.compute(resident, { grad: 'device' })).deviceGrad!;
    const message =
      /expected one with shareable memory, got one with other memory. Request it with grad: 'shareable'/;
    await rejects(() => plain.ipcHandle(), 'ERR_INVALID_INPUT', message);
    grad.dispose();
    await rejects(() => grad.ipcHandle(), 'ERR_INVALID_INPUT', /disposed/);
    await rejects(
      () => ppo.compute(batch, { grad: 'shareable' }),
      'ERR_INVALID_INPUT',
      /the CPU computes the call/,
    );
  });

  it('is refused where it does not fit, and the batch keeps its values', async () => {
    const { grad, own, handle } = await exported();
    const elsewhere = handle.slice();
    elsewhere[0]! ^= 1; // no memory begins there
    using resident = await upload(batch, DEVICE);
    const before = await computed(resident);
    const whole: IpcColumn = { ipc: handle, dtype: 'float32', device: DEVICE, shape };
    const refused =
      /ipc: expected the handle of memory on cuda:0 that another process has exported, got one that CUDA/;
    const cases: [change: object, code: LossErrorCode, message: RegExp][] = [
      [{ ipc: own }, 'ERR_INVALID_INPUT', refused],
      [{ ipc: elsewhere }, 'ERR_INVALID_INPUT', refused],
      [{ ipc: new Uint8Array(64) }, 'ERR_INVALID_INPUT', refused],
      [
        { ipc: handle.slice(1) },
        'ERR_INVALID_INPUT',
        /logprob: expected ipc with the 64 bytes of a cudaIpcMemHandle_t/,
      ],
      [{ ipc: [...handle] }, 'ERR_INVALID_INPUT', /logprob: expected ipc with the 64 bytes/],
      [{ offset: 2 }, 'ERR_INVALID_INPUT', /an offset of float32 values, a bigint that 4 divides/],
      [{ offset: -4 }, 'ERR_INVALID_INPUT', /an offset that is a whole number of bytes, got number -4/],
      [{ offset: 2 ** 21 }, 'ERR_INVALID_INPUT', /with room for all values/],
      [{ shape: [5, 100] }, 'ERR_SHAPE_MISMATCH', /logprob/],
      [{ dtype: 'float64' }, 'ERR_INVALID_INPUT', /dtype/],
      [{ device: 'cpu' }, 'ERR_INVALID_INPUT', /expected a column on cuda:0/],
    ];
    if (gpus.length > 1) {
      cases.push([{ device: 'cuda:1' }, 'ERR_INVALID_INPUT', /expected a column on cuda:0/]);
      const there = await exported('cuda:1');
      cases.push([{ ipc: there.handle }, 'ERR_INVALID_INPUT', /expected memory of the device/]);
    }
    for (const [change, code, message] of cases) {
      const logprob = { ...whole, ...change } as IpcColumn;
      await rejects(() => resident.update({ logprob }), code, message);
      await rejects(() => upload({ ...batch, logprob }, DEVICE), code, message);
    }
    await rejects(
      () => ppo.compute({ ...batch, logprob: whole as never }, { device: DEVICE }),
      'ERR_INVALID_INPUT',
      /got memory of a device/,
    );
    assertSameBits(await computed(resident), before);
    grad.dispose();
  });

  it('is freed by dispose()', async () => {
    const calls = Math.min(100, Math.ceil((1.2 * gpus[0]!.memory) / 2 ** 21));
    for (let i = 0; i < 2 * calls; i++) {
      const { grad, handle } = await exported();
      using resident = await upload(batch, DEVICE);
      await resident.update({ logprob: { ipc: handle, dtype: 'float32', device: DEVICE, shape } });
      grad.dispose();
    }
  }).timeout(60_000);

  it('is closed after every call, also if a function of the runtime fails', async () => {
    const { grad, handle } = await exported();
    using resident = await upload(batch, DEVICE);
    const logprob: IpcColumn = { ipc: handle, dtype: 'float32', device: DEVICE, shape };
    let failures = 0;
    for (let n = 1; ; n++) {
      delete env.POLICY_LOSS_EMULATION_FAILED;
      env.POLICY_LOSS_EMULATION_FAIL = String(n);
      await resident.update({ logprob }).catch(() => failures++);
      delete env.POLICY_LOSS_EMULATION_FAIL;
      const failed = env.POLICY_LOSS_EMULATION_FAILED;
      if (!failed) break;
      await resident.update({ logprob }); // memory that is still open could not be opened again
    }
    assert.ok(failures > 5);
    grad.dispose();
  });
});
