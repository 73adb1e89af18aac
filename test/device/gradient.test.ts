/** Tests gradients in 16 bits of a CUDA device, real or emulated, and gradients that stay there. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setTimeout } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Worker } from 'node:worker_threads';
import {
  ALGORITHM_TYPE,
  type Batch,
  type DeviceBatch,
  type DeviceGradient,
  ENTROPY_LOSS_FN,
  KL_FN,
  type LossComputeOptions,
  lossFromExpression,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { assertRounded, fromHalf } from '../support/half.js';
import { batch, column, DEVICE, gpus, packed, rejects } from '../support/on-device.js';
import { assertSameArray } from '../support/tolerance.js';

const ppo = POLICY_LOSS_FN.create('ppo');

describe(`gradients of ${DEVICE} in 16 bits`, () => {
  const objective = ALGORITHM_TYPE.get('ppo').objective({
    kl_loss_fn: 'k2',
    entropy_loss_fn: 'default',
    entropy_loss_fn_args: { entropy_coef: 0.1 },
  });
  const calls = {
    ppo: (on: Batch | DeviceBatch, options: LossComputeOptions) => ppo.compute(on, options),
    'an expression': (on: Batch | DeviceBatch, options: LossComputeOptions) =>
      expression.compute(on, options),
    'an objective': (on: Batch | DeviceBatch, options: LossComputeOptions) => objective.compute(on, options),
    'a limited ratio': (on: Batch | DeviceBatch, options: LossComputeOptions) => limited.compute(on, options),
  };
  const expression = lossFromExpression('-A*min(r, 1.2)*batch_mean(r) + entropy');
  const limited = POLICY_LOSS_FN.create('ppo', { masks: { delta: 1.1 } });

  for (const [name, compute] of Object.entries(calls))
    it(`of ${name} are the rounded ones`, async () => {
      for (const host of [batch, packed]) {
        using resident = await upload(host, DEVICE);
        const full = await compute(resident, { grad: true, gradEntropy: true });
        for (const dtype of ['bfloat16', 'float16'] as const) {
          const options = { grad: { dtype }, gradEntropy: { dtype } };
          for (const found of [
            await compute(resident, options),
            await compute(host, { ...options, device: DEVICE }),
          ]) {
            assert.deepEqual([found.loss, found.metrics], [full.loss, full.metrics]);
            assertRounded(found.halfGrad, full.grad, dtype, 'grad');
            assertRounded(found.halfGradEntropy, full.gradEntropy, dtype, 'gradEntropy');
          }
          const mixed = await compute(resident, { grad: true, gradEntropy: { dtype } });
          assertSameArray(mixed.grad!, full.grad!, 'grad');
          assertRounded(mixed.halfGradEntropy, full.gradEntropy, dtype, 'gradEntropy');
        }
      }
    });

  it('are returned by computeSync(), and written to arrays of the caller', async () => {
    using resident = await upload(batch, DEVICE);
    const { grad } = ppo.computeSync(resident, { grad: true });
    const data = new Uint16Array(grad!.length);
    const { halfGrad } = ppo.computeSync(resident, { grad: { dtype: 'float16', data } });
    assert.equal(halfGrad!.data, data);
    assertRounded(halfGrad, grad, 'float16', 'grad');
  });

  it('keep every NaN a NaN', async () => {
    const bits = Uint32Array.from(batch.logprob, (_, i) => (i % 2 === 0 ? 0x7fffffff : 0xff800001));
    const given = { ...batch, advantages: new Float32Array(bits.buffer) };
    for (const dtype of ['bfloat16', 'float16'] as const) {
      const { halfGrad } = await ppo.compute(given, { grad: { dtype }, device: DEVICE });
      halfGrad!.data.forEach((value, i) => {
        if (batch.actionMask[i]) assert.ok(Number.isNaN(fromHalf(value, dtype)));
        else assert.equal(value, 0);
      });
    }
  });
});

describe(`gradients that stay on ${DEVICE}`, () => {
  it('have the same bits as gradients on the host', async () => {
    const calls: Record<
      string,
      (on: Batch | Awaited<ReturnType<typeof upload>>, options: object) => unknown
    > = {
      ppo: (on, options) => ppo.compute(on, options),
      'ppo, at once': (on, options) => ppo.computeSync(on, options),
      k3: (on, options) => KL_FN.create('k3').calculateKlLoss(on, options),
      'k3, at once': (on, options) => KL_FN.create('k3').calculateKlLossSync(on, options),
      entropy: (on, options) => ENTROPY_LOSS_FN.create('default').compute(on, options),
    };
    for (const host of [batch, packed])
      for (const [name, call] of Object.entries(calls)) {
        using resident = await upload(host, DEVICE);
        const expected = (await call(resident, { grad: true })) as { loss: number; grad: Float32Array };
        const found = (await call(resident, { grad: 'device' })) as typeof expected & {
          deviceGrad: DeviceGradient;
        };
        assert.deepEqual([found.loss, found.grad], [expected.loss, undefined], name);
        assertSameArray(await found.deviceGrad.toHost(), expected.grad, name);
        found.deviceGrad.dispose();
      }
  });

  it('come from host batches too', async () => {
    const { deviceGrad } = await ppo.compute(batch, { grad: 'device', device: DEVICE });
    using grad = deviceGrad!;
    assertSameArray(
      await grad.toHost(),
      (await ppo.compute(batch, { grad: true, device: DEVICE })).grad!,
      'grad',
    );
  });

  it('tell their place', async () => {
    using resident = await upload(batch, DEVICE);
    using rows = await upload(packed, DEVICE);
    const { deviceGrad: padded } = await ppo.compute(resident, { grad: 'device' });
    const { deviceGrad: flat } = await ppo.compute(rows, { grad: 'device' });
    assert.deepEqual([padded!.device, padded!.dtype, padded!.shape], [DEVICE, 'float32', [6, 100]]);
    assert.deepEqual([flat!.device, flat!.dtype, flat!.shape], [DEVICE, 'float32', [600]]);
    assert.equal(typeof padded!.pointer, 'bigint');
    assert.notEqual(padded!.pointer, flat!.pointer);
    assert.equal(padded!.pointer % 16n, 0n);
    for (const grad of [padded!, flat!]) grad.dispose();
  });

  it('are overwritten by later calls', async () => {
    using resident = await upload(batch, DEVICE);
    const { deviceGrad } = await ppo.compute(resident, { grad: 'device' });
    using grad = deviceGrad!;
    const { pointer } = grad;
    const first = await grad.toHost();
    for (let epoch = 0; epoch < 4; epoch++) {
      await resident.update({ logprob: column((i) => -1.1 - ((i + epoch) % 9) / 20) });
      const result = await ppo.compute(resident, { grad });
      assert.equal(result.deviceGrad, grad);
      assert.equal(grad.pointer, pointer);
      assertSameArray(await grad.toHost(), (await ppo.compute(resident, { grad: true })).grad!, 'grad');
    }
    assert.notDeepEqual(await grad.toHost(), first);
  });

  it('can be requested with respect to the entropy', async () => {
    const objective = ALGORITHM_TYPE.get('ppo').objective({
      kl_loss_fn: 'none',
      entropy_loss_fn: 'default',
      entropy_loss_fn_args: { entropy_coef: 0.1 },
    });
    using resident = await upload(batch, DEVICE);
    const expected = await objective.compute(resident, { grad: true });
    const both = await objective.compute(resident, { grad: 'device' });
    assert.deepEqual([both.grad, both.gradEntropy], [undefined, undefined]);
    assertSameArray(await both.deviceGrad!.toHost(), expected.grad!, 'grad');
    assertSameArray(await both.deviceGradEntropy!.toHost(), expected.gradEntropy!, 'gradEntropy');
    const again = objective.computeSync(resident, { grad: both.deviceGrad!, gradEntropy: true });
    assertSameArray(again.gradEntropy!, expected.gradEntropy!, 'gradEntropy');
    await rejects(
      () => ppo.compute(resident, { grad: both.deviceGrad!, gradEntropy: both.deviceGrad! }),
      'ERR_INVALID_INPUT',
      /gradEntropy: expected other memory than grad/,
    );
    const without = ALGORITHM_TYPE.get('ppo').objective({ kl_loss_fn: 'none', entropy_loss_fn: 'none' });
    const { deviceGrad, deviceGradEntropy, gradEntropy } = await without.compute(resident, {
      grad: 'device',
    });
    assert.ok(deviceGrad);
    assert.deepEqual([deviceGradEntropy, gradEntropy], [undefined, undefined]);
  });

  it('are refused by a call on the CPU', async () => {
    using resident = await upload(batch, DEVICE);
    const { deviceGrad } = await ppo.compute(resident, { grad: 'device' });
    using grad = deviceGrad!;
    const message = /grad: expected .* because the CPU computes the call, got .*uploaded batch/;
    for (const request of ['device', grad] as const) {
      await rejects(() => ppo.compute(batch, { grad: request }), 'ERR_INVALID_INPUT', message);
      assert.throws(() => ppo.computeSync(batch, { grad: request }), { code: 'ERR_INVALID_INPUT', message });
    }
    await rejects(() => ppo.compute(batch, { grad: 'here' as 'device' }), 'ERR_INVALID_INPUT', /grad/);
  });

  it('are refused for another shape, and after dispose()', async () => {
    using resident = await upload(batch, DEVICE);
    using rows = await upload(packed, DEVICE);
    const { deviceGrad } = await ppo.compute(resident, { grad: 'device' });
    const grad = deviceGrad!;
    await rejects(
      () => ppo.compute(rows, { grad }),
      'ERR_SHAPE_MISMATCH',
      /grad: expected a gradient of shape \[600\], got \[6, 100\]/,
    );
    const underWay = ppo.compute(resident, { grad });
    const copy = grad.toHost();
    grad.dispose();
    grad.dispose();
    assert.equal((await underWay).loss, (await ppo.compute(resident)).loss);
    assertSameArray(await copy, (await ppo.compute(resident, { grad: true })).grad!, 'grad');
    assert.equal(grad.disposed, true);
    const message = /gradient on cuda:0: expected a gradient in memory, got one that was disposed of/;
    assert.throws(() => grad.pointer, { code: 'ERR_INVALID_INPUT', message });
    await rejects(() => grad.toHost(), 'ERR_INVALID_INPUT', message);
    await rejects(() => ppo.compute(resident, { grad }), 'ERR_INVALID_INPUT', message);
  });

  it('outlive their batch', async () => {
    const resident = await upload(batch, DEVICE);
    const { deviceGrad } = await ppo.compute(resident, { grad: 'device' });
    const { grad: expected } = await ppo.compute(resident, { grad: true });
    resident.dispose();
    assertSameArray(await deviceGrad!.toHost(), expected!, 'grad');
    deviceGrad!.dispose();
  });

  if (gpus.length > 1)
    it('are refused on another device', async () => {
      using first = await upload(batch, 'cuda:0');
      using second = await upload(batch, 'cuda:1');
      const { deviceGrad } = await ppo.compute(first, { grad: 'device' });
      await rejects(
        () => ppo.compute(second, { grad: deviceGrad! }),
        'ERR_INVALID_INPUT',
        /grad: expected a gradient on cuda:1, which computes the call, got one on cuda:0/,
      );
      const there = (await ppo.compute(second, { grad: 'device' })).deviceGrad!;
      assert.equal(there.device, 'cuda:1');
      assertSameArray(await there.toHost(), await deviceGrad!.toHost(), 'grad');
    });

  it('do not stop a worker thread from ending in the middle of calls', async () => {
    const library = JSON.stringify(new URL('../../lib/index.js', import.meta.url).href);
    const body = `import(${library}).then(async ({ POLICY_LOSS_FN, upload }) => {
      const { parentPort, workerData } = require('node:worker_threads');
      const ppo = POLICY_LOSS_FN.create('ppo');
      const resident = await upload(workerData, '${DEVICE}');
      const { deviceGrad: grad } = await ppo.compute(resident, { grad: 'device' });
      for (let i = 0; i < 50; i++) {
        void ppo.compute(resident, { grad });
        void grad.toHost();
      }
      void resident.update({ logprob: workerData.logprob });
      parentPort.postMessage(grad.pointer);
    })`;
    const load = import.meta.url.endsWith('.ts')
      ? `import('tsx/esm/api').then(({ register }) => { register(); return ${body}; })`
      : body;
    for (let round = 0; round < 3; round++) {
      const worker = new Worker(load, { eval: true, workerData: batch });
      const [pointer] = await once(worker, 'message');
      assert.equal(typeof pointer, 'bigint');
      await worker.terminate();
    }
    using resident = await upload(batch, DEVICE);
    const { deviceGrad } = await ppo.compute(resident, { grad: 'device' });
    assertSameArray(await deviceGrad!.toHost(), ppo.computeSync(resident, { grad: true }).grad!, 'grad');
  });

  it('are refused by a limit of the ratio, which changes them on the host', async () => {
    const limited = POLICY_LOSS_FN.create('ppo', { masks: { delta: 1.1 } });
    using resident = await upload(batch, DEVICE);
    const expected = limited.computeSync(resident, { grad: true });
    const call = () => limited.compute(resident, { grad: 'device' });
    await rejects(call, 'ERR_INVALID_INPUT', /grad: expected true, false, a Float32Array or \{ dtype \}/);
    assert.throws(() => limited.computeSync(resident, { grad: 'device' }), { code: 'ERR_INVALID_INPUT' });
    assert.equal((await limited.compute(resident)).loss, expected.loss);
  });

  it('are freed by dispose(), by a failed call, and when they are collected', async () => {
    const count = 2 ** 20;
    const large = {
      shape: [1, count] as const,
      logprob: new Float32Array(count),
      actionMask: new Uint8Array(count), // kernels skip masked tokens
    };
    const sft = POLICY_LOSS_FN.create('sft');
    using resident = await upload(large, DEVICE);
    const calls = Math.min(100, Math.ceil((1.2 * gpus[0]!.memory) / (4 * count)));
    for (let i = 0; i < calls; i++) (await sft.compute(resident, { grad: 'device' })).deviceGrad!.dispose();
    for (let i = 0; i < calls; i++) {
      const controller = new AbortController();
      const call = sft.compute(resident, { grad: 'device', signal: controller.signal });
      if (i % 2) await setTimeout(1);
      controller.abort();
      await call.then(
        ({ deviceGrad }) => deviceGrad!.dispose(),
        ({ code }) => assert.equal(code, 'ERR_ABORTED'),
      );
    }
    setFlagsFromString('--expose-gc');
    const collectGarbage = runInNewContext('gc') as () => void;
    for (let i = 0; i < calls; i++) {
      assert.ok((await sft.compute(resident, { grad: 'device' })).deviceGrad);
      if (i % 8 === 0) collectGarbage();
    }
  });
});
