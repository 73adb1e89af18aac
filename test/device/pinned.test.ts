/** Tests arrays in page-locked host memory, which a CUDA device, real or emulated, copies without staging. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Worker } from 'node:worker_threads';
import {
  ADVANTAGE_FN,
  allocPinned,
  type DeviceBatch,
  freePinned,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import {
  batch,
  DEVICE,
  gpus,
  isEmulated,
  makeColumns,
  packed,
  rejects,
  TOKENS,
} from '../support/on-device.js';
import type { Computed } from '../support/subject.js';
import { assertSameArray, assertSameBits } from '../support/tolerance.js';

const ppo = POLICY_LOSS_FN.create('ppo');
const { env } = process;

async function pinnedCopy(values: Float32Array): Promise<Float32Array> {
  const copy = new Float32Array(await allocPinned(values.byteLength));
  copy.set(values);
  return copy;
}

// Returns a batch whose columns and mask are page-locked.
async function pinnedBatch() {
  const { shape, actionMask, ...columns } = makeColumns();
  const copies: Record<string, Float32Array> = {};
  for (const [name, values] of Object.entries(columns)) copies[name] = await pinnedCopy(values);
  const mask = new Uint8Array(await allocPinned(TOKENS));
  mask.set(actionMask);
  return { shape, actionMask: mask, ...(copies as typeof columns) };
}

// Returns how many copies a call makes.
async function copiesOf(call: () => Promise<unknown>): Promise<number> {
  delete env.POLICY_LOSS_EMULATION_COUNTED;
  env.POLICY_LOSS_EMULATION_COUNT = 'cudaMemcpyAsync';
  await call();
  delete env.POLICY_LOSS_EMULATION_COUNT;
  return Number(env.POLICY_LOSS_EMULATION_COUNTED);
}

describe(`page-locked arrays and ${DEVICE}`, () => {
  it('give the same bits as other arrays', async () => {
    const pinned = await pinnedBatch();
    const { shape: _, ...flat } = pinned;
    for (const [host, own] of [
      [pinned, batch],
      [{ ...flat, cuSeqlens: packed.cuSeqlens }, packed],
    ]) {
      const expected = (await ppo.compute(own!, { device: DEVICE, grad: true })) as unknown as Computed;
      const grad = new Float32Array(await allocPinned(4 * TOKENS)).fill(7);
      const found = await ppo.compute(host!, { device: DEVICE, grad });
      assert.equal(found.grad, grad);
      assertSameBits(found as unknown as Computed, expected);
      using resident = await upload(host!, DEVICE);
      await resident.update({ logprob: pinned.logprob });
      assertSameBits((await ppo.compute(resident, { grad: true })) as unknown as Computed, expected);
      assertSameBits(ppo.computeSync(resident, { grad: grad.fill(7) }) as unknown as Computed, expected);
      assertSameBits(
        (await ppo.compute(host!, { grad: true })) as unknown as Computed,
        ppo.computeSync(own!, { grad: true }) as unknown as Computed,
      );
    }
    const rewarded = { ...pinned, tokenLevelRewards: pinned.advantages, values: pinned.oldLogprob };
    const gae = ADVANTAGE_FN.create('ppo');
    assertSameArray(
      (await gae.compute(rewarded, { device: DEVICE })).advantages,
      (
        await gae.compute(
          { ...batch, tokenLevelRewards: batch.advantages, values: batch.oldLogprob },
          { device: DEVICE },
        )
      ).advantages,
      'advantages',
    );
  });

  it('may lie anywhere in the memory, with other arrays around them', async () => {
    const memory = await allocPinned(4 * (2 * TOKENS + 5));
    const logprob = new Float32Array(memory, 4 * 3, TOKENS);
    const grad = new Float32Array(memory, 4 * (TOKENS + 4), TOKENS);
    const whole = new Float32Array(memory).fill(9);
    logprob.set(batch.logprob);
    const expected = await ppo.compute(batch, { device: DEVICE, grad: true });
    await ppo.compute({ ...batch, logprob }, { device: DEVICE, grad });
    assertSameArray(grad, expected.grad!, 'grad');
    assertSameArray(logprob, batch.logprob, 'logprob');
    assert.deepEqual([...whole.slice(0, 3), whole[TOKENS + 3], whole.at(-1)], [9, 9, 9, 9, 9]);
  });

  it('may be overwritten as soon as the promise has settled', async () => {
    const logprob = await pinnedCopy(batch.logprob);
    const expected = (await ppo.compute(batch, { device: DEVICE, grad: true })) as unknown as Computed;
    using uploaded = await upload({ ...batch, logprob }, DEVICE);
    logprob.fill(Number.NaN);
    assertSameBits((await ppo.compute(uploaded, { grad: true })) as unknown as Computed, expected);
    using updated = await upload({ ...batch, logprob: batch.oldLogprob }, DEVICE);
    logprob.set(batch.logprob);
    await updated.update({ logprob });
    logprob.fill(Number.NaN);
    assertSameBits((await ppo.compute(updated, { grad: true })) as unknown as Computed, expected);
  });

  it('are copied in one piece, without staging', async function () {
    if (!isEmulated) this.skip();
    const count = 2 ** 19; // 2 MiB, two stages
    const actionMask = new Uint8Array(count); // kernels skip masked tokens
    const shape = [1, count] as const;
    const sft = POLICY_LOSS_FN.create('sft');
    using resident = await upload({ shape, logprob: new Float32Array(count), actionMask }, DEVICE);
    const sent: DeviceBatch[] = [];
    const staged = new Float32Array(count);
    const direct = new Float32Array(await allocPinned(4 * count));
    const read = (grad: Float32Array) => copiesOf(() => sft.compute(resident, { grad }));
    const send = (logprob: Float32Array) =>
      copiesOf(async () => sent.push(await upload({ shape, logprob }, DEVICE)));
    await read(staged); // allocates memory that later calls reuse
    assert.equal((await read(staged)) - (await read(direct)), 1);
    assert.equal((await send(staged)) - (await send(direct)), 1);
    for (const one of sent) one.dispose();
  });

  it('are freed by freePinned(), after the calls that use them', async () => {
    const logprob = await pinnedCopy(batch.logprob);
    const grad = new Float32Array(await allocPinned(4 * TOKENS));
    const expected = (await ppo.compute(batch, { device: DEVICE, grad: true })) as unknown as Computed;
    using resident = await upload({ ...batch, logprob: batch.oldLogprob }, DEVICE);
    const update = resident.update({ logprob });
    const memory = logprob.buffer as ArrayBuffer;
    freePinned(memory);
    assert.deepEqual([memory.byteLength, logprob.length], [0, 0]);
    freePinned(memory);
    await update;
    assertSameBits((await ppo.compute(resident, { grad })) as unknown as Computed, expected);
    await rejects(() => resident.update({ logprob }), 'ERR_INVALID_INPUT', /detached/);
    freePinned(grad.buffer as ArrayBuffer);
    for (const other of [new ArrayBuffer(8), new Uint8Array(8), null, 7])
      assert.throws(() => freePinned(other as ArrayBuffer), {
        code: 'ERR_INVALID_INPUT',
        message: /buffer: expected an ArrayBuffer of allocPinned\(\)/,
      });
  });

  it('are freed when they are collected', async function () {
    if (!isEmulated) this.skip();
    setFlagsFromString('--expose-gc');
    const collectGarbage = runInNewContext('gc') as () => void;
    const bytes = gpus[0]!.memory / 8;
    // The emulation has as much page-locked memory for all blocks together as a device has.
    for (let i = 0; i < 24; i++) {
      await allocPinned(bytes);
      collectGarbage();
      await new Promise(setImmediate);
    }
  });

  it('are refused where they cannot be', async () => {
    await rejects(
      () => allocPinned(8, 'cpu'),
      'ERR_DEVICE_UNAVAILABLE',
      /device: expected a CUDA device, got 'cpu'/,
    );
    await rejects(() => allocPinned(8, 'cuda:99'), 'ERR_DEVICE_UNAVAILABLE', /cuda:99/);
    for (const bytes of [-1, 1.5, Number.NaN, 2 ** 60, '8', undefined])
      await rejects(
        () => allocPinned(bytes as number),
        'ERR_INVALID_INPUT',
        /bytes: expected a whole number from 0/,
      );
    assert.equal((await allocPinned(0)).byteLength, 0);
    if (isEmulated)
      await rejects(() => allocPinned(gpus[0]!.memory + 1), 'ERR_OUT_OF_MEMORY', /cudaHostAlloc/);
    const pinned = await allocPinned(8);
    // Some versions of Node copy the buffer, and others throw.
    try {
      structuredClone(pinned, { transfer: [pinned] });
    } catch {}
    assert.equal(pinned.byteLength, 8);
  });

  it('do not stop a worker thread from ending in the middle of calls', async () => {
    const library = JSON.stringify(new URL('../../lib/index.js', import.meta.url).href);
    const body = `import(${library}).then(async ({ allocPinned, POLICY_LOSS_FN, upload }) => {
      const { parentPort, workerData } = require('node:worker_threads');
      const ppo = POLICY_LOSS_FN.create('ppo');
      const logprob = new Float32Array(await allocPinned(4 * workerData.logprob.length));
      const grad = new Float32Array(await allocPinned(4 * workerData.logprob.length));
      logprob.set(workerData.logprob);
      const host = { ...workerData, logprob };
      for (let i = 0; i < 50; i++) {
        void upload(host, '${DEVICE}');
        void ppo.compute(host, { device: '${DEVICE}', grad });
        void ppo.compute(host, { grad });
      }
      parentPort.postMessage('started');
    })`;
    const load = import.meta.url.endsWith('.ts')
      ? `import('tsx/esm/api').then(({ register }) => { register(); return ${body}; })`
      : body;
    for (let round = 0; round < 3; round++) {
      const worker = new Worker(load, { eval: true, workerData: batch });
      await once(worker, 'message');
      await worker.terminate();
    }
    const expected = ppo.computeSync(batch, { grad: true });
    assertSameArray((await ppo.compute(await pinnedBatch(), { grad: true })).grad!, expected.grad!, 'grad');
  });
});
