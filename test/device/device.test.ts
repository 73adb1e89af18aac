/**
 * Tests losses on a CUDA device, real or emulated. Golden cases and random batches must meet the same tolerances as on
 * the CPU. Also tests uploaded batches and errors. `npm run test:emulated` and `npm run test:gpu` run these tests.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { ROW_COLUMNS } from '../../lib/batch/columns.js';
import {
  ALGORITHM_TYPE,
  type Batch,
  type DeviceBatch,
  devices,
  KL_FN,
  LOSS_FN,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { without } from '../support/batch-keys.js';
import { ARGUMENTS, requiredArgs } from '../support/draw-arguments.js';
import { EveryColumnLossFn } from '../support/every-column.js';
import { gpus, isEmulated, rejects, TOKENS } from '../support/on-device.js';
import { generator } from '../support/random.js';
import { type Computed, HOST_ONLY, LOSS_FAMILIES, subject } from '../support/subject.js';
import { assertArray, assertComputed, assertSameBits } from '../support/tolerance.js';

const DEVICE = 'cuda:0';

describe('the device', () => {
  it('exists', () => {
    assert.ok(
      devices().some((d) => d.name === DEVICE && d.available),
      JSON.stringify(devices()),
    );
  });
});

describe(`batches on ${DEVICE}`, () => {
  const tokens = 600;
  const column = (value: (i: number) => number) => Float32Array.from({ length: tokens }, (_, i) => value(i));
  const batch: Batch = {
    shape: [6, 100],
    logprob: column((i) => -1 - (i % 7) / 10),
    oldLogprob: column((i) => -1 - (i % 5) / 10),
    advantages: Float32Array.of(1, -1, 0.5, -0.5, 2, -2),
    actionMask: Uint8Array.from({ length: tokens }, (_, i) => (i % 11 === 0 ? 0 : 1)),
  };
  const ppo = POLICY_LOSS_FN.create('ppo');
  const onCpu = () => ppo.computeSync(batch, { grad: true }) as unknown as Computed;

  it('read 16-bit columns, one advantage per row, and a mask', async () => {
    const bits = (x: number) => new Uint32Array(Float32Array.of(x).buffer)[0]! >>> 16;
    const half = (values: Float32Array) => ({
      data: Uint16Array.from(values, bits),
      dtype: 'bfloat16' as const,
    });
    const rounded = (values: Float32Array) =>
      Float32Array.from(values, (x) => new Float32Array(Uint32Array.of(bits(x) << 16).buffer)[0]!);
    const { logprob, oldLogprob } = batch as { logprob: Float32Array; oldLogprob: Float32Array };
    const expected = ppo.computeSync(
      { ...batch, logprob: rounded(logprob), oldLogprob: rounded(oldLogprob) },
      { grad: true },
    ) as unknown as Computed;
    using resident = await upload({ ...batch, logprob: half(logprob), oldLogprob: half(oldLogprob) }, DEVICE);
    assertComputed((await ppo.compute(resident, { grad: true })) as unknown as Computed, expected);
  });

  it('write the gradient into an array that the caller passes', async () => {
    const grad = new Float32Array(tokens);
    const result = await ppo.compute(batch, { grad, device: 'cuda' });
    assert.equal(result.grad, grad);
    assertArray(grad, onCpu().grad, 'grad');
  });

  it('take a KL penalty', async () => {
    const scores = column((i) => i);
    const penalised = { ...batch, token_level_scores: scores, ref_logprob: column(() => -1.2) };
    const fn = KL_FN.create('k3', { kl_coef: 0.2 });
    const expected = fn.applyKlPenaltyToRewardSync(penalised);
    const actual = await fn.applyKlPenaltyToReward(penalised, { device: DEVICE });
    assertArray(actual.tokenLevelRewards, expected.tokenLevelRewards, 'rewards');
    assert.ok(Math.abs(actual.metrics.kl! - expected.metrics.kl!) < 1e-6);
  });

  it('are uploaded as they were passed, even if the caller changes them during long conversions', async () => {
    const [rows, length] = [40_000, 6];
    const numbers = (scale: number) =>
      Array.from({ length: rows * length }, (_, i) => -(((i * 7) % 11) + 1) * scale);
    const columns = () => ({
      oldLogprob: { data: Float32Array.from(numbers(0.11)), dtype: 'float32' as const },
      tokenLevelRewards: { data: Float32Array.from(numbers(0.4)), dtype: 'float32' as const },
    });
    const others = {
      shape: [rows, length] as const,
      logprob: numbers(0.1),
      actionMask: new Array<number>(rows * length).fill(1),
    };
    const objective = ALGORITHM_TYPE.get('ppo').objective({
      advantage_fn: 'reinforceplusplus',
      kl_penalty_fn: 'none',
      kl_loss_fn: 'none',
    });
    using expected = await upload({ ...others, ...columns() }, DEVICE);
    const batch = { ...others, ...columns() };
    const { oldLogprob, tokenLevelRewards } = batch;
    const uploaded = upload(batch, DEVICE);
    oldLogprob.data = tokenLevelRewards.data = new Float32Array(rows * length);
    batch.actionMask = batch.logprob;
    using found = await uploaded;
    const grad = { grad: true } as const;
    assert.deepEqual(await objective.compute(found, grad), await objective.compute(expected, grad));
    const floats = {
      logprob: Float32Array.from(others.logprob),
      actionMask: new Uint8Array(rows * length).fill(1),
    };
    using ready = await upload({ ...others, ...columns(), ...floats }, DEVICE);
    assert.deepEqual(await objective.compute(ready, grad), await objective.compute(expected, grad));
  });

  it('are refused after dispose(), on another device, and if a column was not uploaded', async () => {
    const resident = await upload(batch, DEVICE);
    assert.deepEqual([resident.device, resident.shape, resident.disposed], [DEVICE, [6, 100], false]);
    await rejects(
      () => ppo.compute(resident, { device: 'cpu' }),
      'ERR_INVALID_INPUT',
      /device: expected cuda:0.*'cpu'/,
    );
    await rejects(() => KL_FN.create('k1').calculateKlLoss(resident), 'ERR_MISSING_INPUT', /refLogprob/);
    const underWay = ppo.compute(resident, { grad: true });
    resident.dispose();
    resident.dispose();
    assertComputed((await underWay) as unknown as Computed, onCpu());
    assert.equal(resident.disposed, true);
    await rejects(() => ppo.compute(resident), 'ERR_INVALID_INPUT', /disposed/);
  });

  it('have every column that the declaration of a loss names', async () => {
    const fn = new EveryColumnLossFn();
    const whole = {
      ...batch,
      refLogprob: column((i) => -1 - (i % 3) / 10),
      entropy: column((i) => (i % 13) / 10),
      rolloutLogprob: column((i) => -1 - (i % 4) / 10),
      proxLogprob: column((i) => -1 - (i % 6) / 10),
      teacherLogprob: Float32Array.from({ length: 6 }, (_, row) => -1 - row / 10),
      oldEntropy: column((i) => (i % 11) / 10),
      clipCovKeys: column((i) => (i % 8) / 8),
      values: column((i) => (i % 5) / 5),
      oldValues: column((i) => (i % 7) / 7),
      returns: column((i) => (i % 9) / 9),
      logSumSqProb: column((i) => -(i % 10) / 10),
      entropyOther: column((i) => -(i % 12) / 12),
      answerMask: column((i) => i % 3),
    };
    using resident = await upload(whole, DEVICE);
    for (const on of [whole, resident]) {
      const found = await fn.compute(on, { grad: true, ...(on === whole && { device: DEVICE }) });
      assertComputed(found as Computed, fn.computeSync(whole, { grad: true }) as Computed);
    }
    for (const key of ['rolloutLogprob', 'proxLogprob', 'teacherLogprob', 'oldEntropy', 'returns'] as const) {
      using lacking = await upload(without(whole, key), DEVICE);
      await assert.rejects(fn.compute(lacking), { code: 'ERR_MISSING_INPUT', key });
    }
  });

  it('are refused on an unknown device', async () => {
    for (const device of ['cuda:7', 'tpu'])
      await rejects(() => upload(batch, device), 'ERR_DEVICE_UNAVAILABLE', /expected one of cpu, cuda:0/);
    await rejects(() => upload(batch, 'cpu'), 'ERR_DEVICE_UNAVAILABLE', /expected a CUDA device/);
    await rejects(() => ppo.compute(batch, { device: 'cuda:7' }), 'ERR_DEVICE_UNAVAILABLE', /'cuda:7'/);
  });

  it('can be aborted', async () => {
    await rejects(() => upload(batch, DEVICE, { signal: AbortSignal.abort() }), 'ERR_ABORTED', /aborted/);
    const controller = new AbortController();
    // A GPU would have computed a small batch before it is aborted.
    const count = isEmulated ? TOKENS : 2 ** 22;
    const zeros = new Float32Array(count);
    const large = {
      ...{ shape: [1, count] as const, logprob: zeros, oldLogprob: zeros, advantages: zeros },
      actionMask: new Uint8Array(count).fill(1),
    };
    const calls = Array.from({ length: 8 }, () =>
      ppo.compute(large, { device: DEVICE, signal: controller.signal }),
    );
    controller.abort();
    const settled = await Promise.allSettled(calls);
    assert.ok(settled.some((s) => s.status === 'rejected' && s.reason.code === 'ERR_ABORTED'));
  });

  it('do not disturb each other', async () => {
    const batches = await Promise.all(
      [1, 2, 3].map((scale) =>
        upload({ ...batch, advantages: column((i) => scale * ((i % 3) - 1)) }, DEVICE),
      ),
    );
    const alone: Computed[] = [];
    for (const one of batches) alone.push((await ppo.compute(one, { grad: true })) as unknown as Computed);
    const together = await Promise.all(
      Array.from({ length: 30 }, (_, i) => ppo.compute(batches[i % 3] as DeviceBatch, { grad: true })),
    );
    together.forEach((result, i) => {
      assertSameBits(result as unknown as Computed, alone[i % 3]!);
    });

    for (const one of batches) one.dispose();
  });

  // These two tests run mainly on the emulation, which has two small devices. A real machine seldom has two.
  if (gpus.length > 1)
    it('on two devices do not disturb each other, and stay on their device', async () => {
      using first = await upload(batch, 'cuda:0');
      using second = await upload({ ...batch, advantages: column((i) => (i % 3) - 1) }, 'cuda:1');
      const alone = [await ppo.compute(first, { grad: true }), await ppo.compute(second, { grad: true })];
      const together = await Promise.all(
        Array.from({ length: 20 }, (_, i) => ppo.compute(i % 2 ? second : first, { grad: true })),
      );
      together.forEach((result, i) => {
        assertSameBits(result as unknown as Computed, alone[i % 2] as unknown as Computed);
      });
      await rejects(
        () => ppo.compute(first, { device: 'cuda:1' }),
        'ERR_INVALID_INPUT',
        /expected cuda:0.*'cuda:1'/,
      );
    });
  if (gpus[0] && gpus[0].memory <= 2 ** 30)
    it('that are too large cause an error, and the process goes on', async () => {
      const count = gpus[0]!.memory / 4 + 1024;
      const huge: Batch = {
        shape: [1, count],
        logprob: new Float32Array(count),
        actionMask: new Uint8Array(count).fill(1),
      };
      const sft = POLICY_LOSS_FN.create('sft');
      await rejects(() => upload(huge, DEVICE), 'ERR_OUT_OF_MEMORY', /memory/);
      await rejects(() => sft.compute(huge, { device: DEVICE }), 'ERR_OUT_OF_MEMORY', /memory/);
      assertComputed(
        (await ppo.compute(batch, { grad: true, device: DEVICE })) as unknown as Computed,
        onCpu(),
      );
    });

  it('of two worker threads do not disturb each other', async () => {
    // Worker threads do not inherit the TypeScript loader tsx, so the worker registers it. Compiled tests do not need
    // tsx.
    const load = import.meta.url.endsWith('.ts')
      ? `import('tsx/esm/api').then(({ register }) => { register(); return import(${JSON.stringify(new URL('./worker.ts', import.meta.url).href)}); })`
      : `import(${JSON.stringify(new URL('./worker.js', import.meta.url).href)})`;
    const answers = await Promise.all(
      [1, 2].map(async (scale) => {
        const worker = new Worker(load, { eval: true, workerData: { device: DEVICE, scale, calls: 20 } });
        const [answer] = await once(worker, 'message');
        return answer as { expected: number; losses: number[]; apart: number };
      }),
    );
    for (const { expected, losses, apart } of answers) {
      assert.equal(new Set(losses).size, 1, 'every call gives the same bits');
      assert.ok(Math.abs(losses[0]! - expected) < 1e-6);
      assert.ok(apart < 1e-8);
    }
  });

  it('agree with the CPU on many tokens, a million on a GPU', async () => {
    const count = Number(process.env.POLICY_LOSS_TEST_TOKENS ?? (isEmulated ? 131_072 : 1_048_576));
    const rows = count / 1024;
    const random = generator(7).uniform;
    const draw = (value: () => number) => Float32Array.from({ length: count }, value);
    const logprob = draw(() => -3 * random());
    const near = (spread: number) => logprob.map((x) => x + spread * (random() - 0.5));
    const values = draw(random);
    const large: Batch & { oldEntropy: Float32Array } = {
      shape: [rows, 1024],
      logprob,
      oldLogprob: near(1),
      refLogprob: near(1),
      rolloutLogprob: near(0.5),
      proxLogprob: near(0.5),
      teacherLogprob: near(2),
      entropy: draw(random),
      oldEntropy: draw(random),
      advantages: draw(() => 4 * random() - 2),
      values,
      oldValues: values.map((x) => x + random() - 0.5),
      returns: values.map((x) => x + 2 * random() - 1),
      actionMask: Uint8Array.from({ length: count }, () => (random() < 0.8 ? 1 : 0)),
      expertMask: Uint8Array.from({ length: rows }, (_, b) => b % 2),
      logSumSqProb: draw(() => -random()),
      entropyOther: draw(() => -random()),
      ...Object.fromEntries(ROW_COLUMNS.map((name) => [name, Float64Array.from({ length: rows }, random)])),
      ...Object.fromEntries(
        (['sample_mask', 'label', 'chosen'] as const).map((name) => [
          name,
          Uint8Array.from({ length: rows }, (_, b) => Number(b % 6 < 4)),
        ]),
      ),
      groupIds: Int32Array.from({ length: rows }, (_, b) => b >> 2),
      step: 3,
    };
    using resident = await upload(large, DEVICE);
    for (const family of LOSS_FAMILIES)
      for (const name of Object.keys(ARGUMENTS[family]).filter((each) => !HOST_ONLY.includes(each))) {
        const isAggregated = family === 'kl' || family === 'entropy';
        const args = isAggregated
          ? { loss_agg_mode: 'token-mean' }
          : requiredArgs(LOSS_FN.get(name).declaration);
        const on = subject(family, name, args);
        const cpu = on.sync(large);
        const gpu = await on.async(resident);
        assertComputed({ ...gpu, grad: new Float32Array(0) }, { ...cpu, grad: new Float32Array(0) });
        assertClose(gpu.grad, cpu.grad, name);
      }
  });
});

// Asserts that two float32 gradients agree in all but a thousandth of the tokens. A token within a rounding error of a
// clip bound may be on either side of it.
function assertClose(actual: Float32Array, expected: Float32Array, what: string): void {
  const largest = expected.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  let apart = 0;
  for (let i = 0; i < expected.length; i++)
    if (Math.abs(actual[i]! - expected[i]!) > 2e-5 * Math.max(Math.abs(expected[i]!), largest / 100)) apart++;
  assert.ok(apart <= expected.length / 1000, `${what}: ${apart} of ${expected.length} gradients differ`);
}
