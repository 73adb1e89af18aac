/**
 * Tests updates of batches on a CUDA device, real or emulated: the values that calls read before, during and after an
 * update, and errors.
 */
import assert from 'node:assert/strict';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  type Batch,
  type CudaDevice,
  devices,
  type LossErrorCode,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { fitting } from '../support/draw-arguments.js';
import { everyFunction } from '../support/functions.js';
import {
  column,
  DEVICE,
  makeColumns as makeBatchOnDevice,
  ROWS,
  rejects,
  TOKENS,
} from '../support/on-device.js';
import { type Computed, HOST_ONLY, packedBatch, paddedBatch, subject } from '../support/subject.js';
import { assertComputed, assertSameArray, assertSameBits } from '../support/tolerance.js';

const makeColumns = () => {
  const { shape, logprob, oldLogprob, actionMask } = makeBatchOnDevice();
  return { shape, logprob, oldLogprob, actionMask, advantages: Float32Array.of(1, -1, 0.5, -0.5, 2, -2) };
};
const batch = makeColumns();
const next = column((i) => -1.2 - (i % 9) / 20);
const ppo = POLICY_LOSS_FN.create('ppo');
// A loss that makes several native calls, because it is computed under a correction.
const corrected = POLICY_LOSS_FN.create('ppo', {
  correction: { rollout_is: 'token', rollout_is_threshold: '0.9_1.1' },
});

const onDevice = async (on: Parameters<typeof ppo.compute>[0], fn = ppo) =>
  (await fn.compute(on, { grad: true })) as unknown as Computed;
const fresh = async (host: Batch, fn = ppo) => {
  using resident = await upload(host, DEVICE);
  return await onDevice(resident, fn);
};

describe(`update() of a batch on ${DEVICE}`, () => {
  const first = everyFunction(1).filter(
    ({ family, name }, i, all) =>
      !HOST_ONLY.includes(name) &&
      i === all.findIndex((each) => each.family === family && each.name === name),
  );
  for (const { family, name, args } of first)
    it(`gives the same bits as an upload: ${family} ${name}`, async () => {
      const on = subject(family, name, args);
      const drawn = makeBatch(fitting(name, args, EDGE_LENGTHS));
      for (const laid of [packedBatch(drawn), paddedBatch(drawn)] as Record<string, unknown>[]) {
        const key = family === 'value' ? 'values' : laid.logprob ? 'logprob' : 'entropy';
        const values = Float32Array.from(laid[key] as Float32Array, (x) => x * 0.75);
        using resident = await upload(laid as Batch, DEVICE);
        using expected = await upload({ ...laid, [key]: values } as Batch, DEVICE);
        await resident.update({ [key]: values });
        assertSameBits(await on.async(resident), await on.async(expected));
        assertSameBits(on.sync(resident), await on.async(expected));
      }
    });

  it('copies only the given columns', async () => {
    const host = makeColumns();
    using resident = await upload(host, DEVICE);
    for (const array of [host.oldLogprob, host.advantages, host.actionMask]) array.fill(0);
    await resident.update({ logprob: next });
    assertSameBits(await onDevice(resident), await fresh({ ...batch, logprob: next }));
  });

  it('accepts every form of a column, under every name', async () => {
    using resident = await upload(batch, DEVICE);
    const expected = await fresh({ ...batch, logprob: next });
    const rows = Array.from({ length: ROWS }, (_, b) => [...next.subarray(b * 100, (b + 1) * 100)]);
    for (const values of [
      Float64Array.from(next),
      [...next],
      rows,
      { data: next, dtype: 'float32' } as const,
    ])
      for (const key of ['logprob', 'log_prob'] as const) {
        await resident.update({ logprob: column(() => -9) });
        await resident.update({ [key]: values });
        assertSameBits(await onDevice(resident), expected);
      }
    const half = { data: new Uint16Array(TOKENS).fill(0xbf80), dtype: 'bfloat16' } as const; // −1
    await resident.update({ logprob: half });
    assertSameBits(await onDevice(resident), await fresh({ ...batch, logprob: column(() => -1) }));
  });

  it('adds columns, and changes between one value per token and one per row', async () => {
    const { oldLogprob, advantages, ...rest } = batch;
    using resident = await upload(rest, DEVICE);
    await rejects(() => ppo.compute(resident), 'ERR_MISSING_INPUT', /oldLogprob/);
    assert.equal(resident.has('old_logprob'), false);
    await resident.update({ oldLogprob, advantages });
    assert.equal(resident.has('old_logprob'), true);
    const perRow = await fresh(batch);
    assertSameBits(await onDevice(resident), perRow);
    await resident.update({ advantages: column((i) => (i % 3) - 1) });
    const perToken = await fresh({ ...batch, advantages: column((i) => (i % 3) - 1) });
    assertSameBits(await onDevice(resident), perToken);
    assert.notEqual(perRow.loss, perToken.loss);
    await resident.update({ advantages });
    assertSameBits(await onDevice(resident), perRow);
  });

  it('reaches advantage functions, and the advantages that an objective computes', async () => {
    const host = {
      ...makeColumns(),
      tokenLevelRewards: column((i) => (i % 4) / 4),
      values: column((i) => (i % 3) / 3),
      teacherLogprob: column((i) => -1 - (i % 4) / 10),
      refLogprob: column((i) => -1 - (i % 3) / 10),
    };
    const changes = {
      values: column((i) => (i % 5) / 5),
      tokenLevelRewards: column((i) => (i % 2) / 2),
      oldLogprob: column((i) => -1.5 + (i % 3) / 10),
      teacherLogprob: column((i) => -1.1 - (i % 6) / 10),
    };
    const { advantages: _, ...rewarded } = host;
    using resident = await upload(rewarded, DEVICE);
    const before = await ADVANTAGE_FN.create('ppo').compute(resident);
    await resident.update(changes);
    using expected = await upload({ ...rewarded, ...changes }, DEVICE);
    for (const name of ['ppo', 'on_policy_distill']) {
      const found = await ADVANTAGE_FN.create(name).compute(resident);
      const wanted = await ADVANTAGE_FN.create(name).compute(expected);
      assertSameArray(found.advantages, wanted.advantages, name);
      assert.deepEqual(found.metrics, wanted.metrics);
    }
    assert.notDeepEqual((await ADVANTAGE_FN.create('ppo').compute(resident)).advantages, before.advantages);
    const objective = ALGORITHM_TYPE.get('ppo').objective();
    const [found, wanted] = [await objective.compute(resident), await objective.compute(expected)];
    assert.deepEqual(found, wanted);
  });

  it('leaves the old values to calls that began before, and refuses calls until it ends', async () => {
    const host = { ...batch, rolloutLogprob: batch.oldLogprob };
    const [old, after] = [await fresh(host, corrected), await fresh({ ...host, logprob: next }, corrected)];
    assert.notEqual(old.loss, after.loss);
    using resident = await upload(host, DEVICE);
    const calls = Array.from({ length: 5 }, () => onDevice(resident, corrected));
    const update = resident.update({ logprob: next });
    const refused = /batch on cuda:0: expected a call after update\(\) has ended.*Await/;
    await rejects(() => ppo.compute(resident), 'ERR_INVALID_INPUT', refused);
    assert.throws(() => ppo.computeSync(resident), { code: 'ERR_INVALID_INPUT', message: refused });
    await rejects(() => resident.update({ logprob: next }), 'ERR_INVALID_INPUT', refused);
    await update;
    for (const call of calls) assertSameBits(await call, old);
    assertSameBits(await onDevice(resident, corrected), after);
  });

  it('leaves the old values to an objective that began before and computes advantages', async () => {
    const { advantages: _, ...rest } = batch;
    const { oldLogprob: refLogprob } = batch;
    const host = { ...rest, refLogprob, rewards: [1, 0, 1, 1, 0, 0], groupIds: [0, 0, 0, 1, 1, 1] };
    const objective = ALGORITHM_TYPE.get('grpo').objective();
    using resident = await upload(host, DEVICE);
    const old = await objective.compute(resident);
    const [call, counted] = [objective.compute(resident), objective.count(resident)];
    await resident.update({ logprob: next });
    assert.deepEqual((await call).loss, old.loss);
    assert.equal((await counted).rows, ROWS);
    assert.notEqual((await objective.compute(resident)).loss, old.loss);
  });

  it('lets a call of several steps finish after dispose()', async () => {
    const host = { ...batch, rolloutLogprob: batch.oldLogprob };
    const expected = await fresh(host, corrected);
    const resident = await upload(host, DEVICE);
    const call = onDevice(resident, corrected);
    resident.dispose();
    assertSameBits(await call, expected);
  });

  it('takes the arrays that were passed, even if the caller changes the columns during long conversions', async () => {
    const [rows, length] = [40_000, 6];
    const numbers = (scale: number) =>
      Array.from({ length: rows * length }, (_, i) => -(((i * 7) % 11) + 1) * scale);
    const column = () => ({ data: Float32Array.from(numbers(0.11)), dtype: 'float32' as const });
    const logprob = numbers(0.1);
    const actionMask = new Array<number>(rows * length).fill(1);
    const advantages = Array.from({ length: rows }, (_, row) => (row % 5) - 2);
    const whole = { shape: [rows, length] as const, logprob, oldLogprob: column(), advantages, actionMask };
    using expected = await upload(whole, DEVICE);
    using resident = await upload({ ...whole, oldLogprob: logprob }, DEVICE);
    const oldLogprob = column();
    const updated = resident.update({ logprob, oldLogprob });
    oldLogprob.data = new Float32Array(rows * length);
    await updated;
    assertSameBits(await onDevice(resident), await onDevice(expected));
  });

  it('is refused after dispose(), and rejects if the batch is disposed of meanwhile', async () => {
    for (const logprob of [next, Float64Array.from(next)]) {
      const resident = await upload(batch, DEVICE);
      const update = resident.update({ logprob });
      resident.dispose();
      await rejects(() => update, 'ERR_INVALID_INPUT', /disposed/);
      await rejects(() => resident.update({ logprob }), 'ERR_INVALID_INPUT', /disposed/);
      assert.equal(resident.disposed, true);
    }
  });

  it('changes nothing if it fails', async () => {
    using resident = await upload(batch, DEVICE);
    const old = await onDevice(resident);
    const short = new Float32Array(TOKENS - 1);
    const bad = [1, 'x'] as unknown as number[];
    type Case = [columns: object, code: LossErrorCode, message: RegExp];
    const cases: Case[] = [
      [{ logprob: short }, 'ERR_SHAPE_MISMATCH', /logprob: expected \[6, 100\] = 600 values, got 599/],
      [{ logprob: next, oldLogprob: short }, 'ERR_SHAPE_MISMATCH', /oldLogprob/],
      [{ logprob: new Float32Array(ROWS) }, 'ERR_SHAPE_MISMATCH', /logprob/],
      [{ values: new Float32Array(ROWS) }, 'ERR_SHAPE_MISMATCH', /values/],
      [{ advantages: bad }, 'ERR_SHAPE_MISMATCH', /advantages/],
      [{ logprob: [...next].with(7, '-1' as never) }, 'ERR_INVALID_INPUT', /logprob\[7\]: expected a number/],
      [
        { logprob: next, actionMask: batch.actionMask },
        'ERR_INVALID_INPUT',
        /actionMask.*upload the batch again/,
      ],
      [{ logprop: next }, 'ERR_INVALID_INPUT', /logprop/],
      [{}, 'ERR_INVALID_INPUT', /at least one float column, such as logprob, got none/],
      [{ logprob: undefined }, 'ERR_INVALID_INPUT', /got none/],
      [next, 'ERR_INVALID_INPUT', /an object of columns, got a Float32Array/],
    ];
    for (const [columns, code, message] of cases)
      await rejects(() => resident.update(columns), code, message);
    await rejects(
      () => resident.update({ logprob: next }, { signal: AbortSignal.abort() }),
      'ERR_ABORTED',
      /aborted/,
    );
    await rejects(() => resident.update({ logprob: next }, { backend: 'none' }), 'ERR_UNKNOWN_NAME', /none/);
    assertSameBits(await onDevice(resident), old);
  });

  it('can be aborted while it copies, and be repeated', async () => {
    // The update copies several chunks, and looks for the signal before each.
    const count = 2 ** 22;
    const logprob = new Float32Array(count);
    using resident = await upload({ shape: [1, count], logprob, actionMask: new Uint8Array(count) }, DEVICE);
    const controller = new AbortController();
    const update = resident.update({ logprob }, { signal: controller.signal });
    controller.abort();
    await rejects(() => update, 'ERR_ABORTED', /aborted/);
    await resident.update({ logprob });
  });

  it('frees the old values', async () => {
    const count = 2 ** 20;
    const host = {
      shape: [1, count] as const,
      logprob: new Float32Array(count),
      actionMask: new Uint8Array(count),
    };
    using resident = await upload(host, DEVICE);
    const updates = Math.min(1000, Math.ceil((1.2 * memory()) / (4 * count)));
    for (let i = 0; i < updates; i++) await resident.update({ logprob: host.logprob });
  });

  it('keeps the old values if the device has no room for the new ones', async function () {
    if (memory() > 2 ** 30) this.skip(); // a real device
    const count = 2 ** 20;
    const flat = (length: number) => ({
      shape: [1, length] as const,
      logprob: new Float32Array(length).fill(-1),
      actionMask: new Uint8Array(length).fill(1),
    });
    const sft = POLICY_LOSS_FN.create('sft');
    using resident = await upload(flat(count), DEVICE);
    const { loss } = await sft.compute(resident);
    const fillers = [];
    // Each filler is smaller than the one before, so that in the end less than a column is free.
    for (let length = 2 ** 24; length >= 2 ** 17; )
      try {
        fillers.push(await upload(flat(length), DEVICE));
      } catch {
        length /= 2;
      }
    const halved = { logprob: new Float32Array(count).fill(-0.5) };
    await rejects(() => resident.update(halved), 'ERR_OUT_OF_MEMORY', /memory/);
    for (const filler of fillers) filler.dispose();
    assert.equal((await sft.compute(resident)).loss, loss);
    await resident.update(halved);
    assert.equal((await sft.compute(resident)).loss, loss / 2);
  });

  it('does not make dispose() wait for calls in progress', async () => {
    const count = 2 ** 20;
    const ones = new Uint8Array(count).fill(1);
    const logprob = new Float32Array(count).fill(-1);
    using long = await upload({ shape: [1, count], logprob, actionMask: ones }, DEVICE);
    const short = await upload(batch, DEVICE);
    const sft = POLICY_LOSS_FN.create('sft');
    // Calls on one device are computed one after another, and each writes its gradient at its end.
    const grads = Array.from({ length: 8 }, () => new Float32Array(count).fill(1));
    const calls = grads.map((grad) => sft.compute(long, { grad }));
    await new Promise(setImmediate);
    short.dispose();
    assert.equal(grads.at(-1)!.at(-1), 1, 'dispose() waited for the last call');
    await Promise.all(calls);
    assert.notEqual(grads.at(-1)!.at(-1), 1);
  });

  it('does not disturb another batch', async () => {
    using first = await upload(batch, DEVICE);
    using second = await upload({ ...batch, advantages: column((i) => (i % 3) - 1) }, DEVICE);
    const alone = await onDevice(second);
    const calls = Array.from({ length: 10 }, () => onDevice(second));
    for (let epoch = 0; epoch < 5; epoch++) {
      const logprob = column((i) => -1 - ((i + epoch) % 7) / 10);
      await first.update({ logprob });
      assertComputed(await onDevice(first), ppo.computeSync({ ...batch, logprob }, { grad: true }) as never);
    }
    for (const call of calls) assertSameBits(await call, alone);
  });
});

function memory(): number {
  const device = devices().find((d): d is CudaDevice => d.name === DEVICE && d.available);
  return device!.memory;
}
