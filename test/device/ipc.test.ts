/** Tests memory of a CUDA device, real or emulated, that two processes share. */
import assert from 'node:assert/strict';
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import {
  ALGORITHM_TYPE,
  type DeviceBatch,
  type IpcColumn,
  LOGITS_LOSS_FN,
  type LossErrorCode,
  logprobs,
  logprobsBackward,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { framework } from '../support/framework.js';
import { batch, DEVICE, gpus, isEmulated, ROWS, rejects, TOKENS } from '../support/on-device.js';
import type { Computed } from '../support/subject.js';
import { assertSameArray, assertSameBits } from '../support/tolerance.js';
import type { Answer, Question } from './other-process.js';

const ppo = POLICY_LOSS_FN.create('ppo');
const { env } = process;
const shape = [ROWS, TOKENS / ROWS];
const REFUSED =
  /ipc: expected the handle of memory on cuda:0 that another process has exported and not freed, got/;

const computed = async (on: DeviceBatch) => (await ppo.compute(on, { grad: true })) as unknown as Computed;
const column = (ipc: Uint8Array, more: Partial<IpcColumn> = {}): IpcColumn => ({
  ipc,
  dtype: 'float32',
  device: DEVICE,
  shape,
  ...more,
});

const started: ChildProcess[] = [];
function startProcess(): ChildProcess {
  const isCompiled = !import.meta.url.endsWith('.ts');
  const file = new URL(`./other-process.${isCompiled ? 'js' : 'ts'}`, import.meta.url);
  const execArgv = isCompiled ? [] : ['--import', 'tsx'];
  const other = fork(fileURLToPath(file), { execArgv, serialization: 'advanced' });
  started.push(other);
  return other;
}

async function ask(other: ChildProcess, question: Question): Promise<Required<Answer>> {
  other.send(question);
  const [answer] = await once(other, 'message');
  return answer as Required<Answer>;
}

// Starts a long upload, for which later ones must wait.
async function keepBusy(): Promise<void> {
  const tokens = 2 ** 22;
  (await upload({ shape: [1, tokens], logprob: new Float32Array(tokens) }, DEVICE)).dispose();
}

// Returns a gradient of this process.
async function computeHere(device = DEVICE) {
  using resident = await upload(batch, device);
  const { deviceGrad } = await ppo.compute(resident, { grad: 'shareable' });
  return deviceGrad!;
}

describe(`memory on ${DEVICE} of another process`, () => {
  let other: ChildProcess;
  const exporting = (device = DEVICE, scale = 1) => ask(other, { ask: 'export', device, scale });

  before(function () {
    if (gpus.length === 0) this.skip();
    other = startProcess();
  });
  after(() => {
    for (const each of started) each.kill();
  });

  it('is read by upload() and update(), also for several columns', async () => {
    const { handle, values } = await exporting();
    using expected = await upload(
      { ...batch, logprob: values, advantages: values.slice(3, 3 + ROWS) },
      DEVICE,
    );
    const columns = {
      logprob: column(handle),
      advantages: column(handle, { offset: 12, shape: [ROWS] }),
    };
    using uploaded = await upload({ ...batch, ...columns }, DEVICE);
    using updated = await upload(batch, DEVICE);
    await updated.update(columns);
    await exporting(DEVICE, 2); // The calls have read the memory.
    for (const on of [uploaded, updated]) assertSameBits(await computed(on), await computed(expected));
  });

  it('has the values of its latest call', async () => {
    const first = await exporting();
    using resident = await upload({ ...batch, logprob: column(first.handle) }, DEVICE);
    const second = await exporting(DEVICE, 5);
    assert.deepEqual(second.handle, first.handle);
    assert.notDeepEqual(second.values, first.values);
    await resident.update({ logprob: column(first.handle) });
    using expected = await upload({ ...batch, logprob: second.values }, DEVICE);
    assertSameBits(await computed(resident), await computed(expected));
  });

  it('can be read by the other process too', async () => {
    using grad = await computeHere();
    const { values } = await ask(other, { ask: 'read', column: column(await grad.ipcHandle()) });
    using expected = await upload({ ...batch, logprob: await grad.toHost() }, DEVICE);
    assertSameArray(values, (await ppo.compute(expected, { grad: true })).grad!, 'grad');
    grad.dispose();
  });

  it('may be logits, and receive their gradient', async () => {
    const { handle, values } = await exporting();
    const options = {
      shape: [ROWS, TOKENS / ROWS] as [number, number],
      targets: [0, 1, 2, -100, 4, 5],
      device: DEVICE,
    };
    assert.deepEqual(await logprobs(column(handle), options), await logprobs(values, options));
    const grads = { ...options, gradLogprob: [1, 2, 3, 4, 5, 6] };
    const expected = await logprobsBackward(values, grads);
    await rejects(
      () => logprobsBackward(column(handle), { ...grads, out: column(handle, { offset: 4 }) }),
      'ERR_INVALID_INPUT',
      /^out: .*overlaps with the logits/,
    );
    await logprobsBackward(column(handle), { ...grads, out: column(handle) });
    const found = await ask(other, { ask: 'read', column: column(handle) });
    using resident = await upload({ ...batch, logprob: expected }, DEVICE);
    assertSameArray(found.values, (await ppo.compute(resident, { grad: true })).grad!, 'grad');
  });

  it('may be logits of a loss over the vocabulary, and their gradient in their place', async () => {
    const { handle, values } = await exporting();
    const given = { shape: [1, ROWS] as const, targets: [0, 1, 2, 3, 4, 5] };
    const fn = LOGITS_LOSS_FN.create('liger/cross_entropy', { label_smoothing: 0.1 });
    const expected = await fn.compute({ ...given, logits: values }, { device: DEVICE, gradLogits: true });
    const logits = column(handle);
    const found = await fn.compute({ ...given, logits }, { device: DEVICE, gradLogits: logits });
    assert.deepEqual(found, { loss: expected.loss, metrics: expected.metrics });
    const grad = await ask(other, { ask: 'read', column: column(handle) });
    using resident = await upload({ ...batch, logprob: expected.gradLogits as Float32Array }, DEVICE);
    assertSameArray(grad.values, (await ppo.compute(resident, { grad: true })).grad!, 'grad');
  });

  it('is closed after every call', async () => {
    const { handle } = await exporting();
    using resident = await upload(batch, DEVICE);
    const calls = Math.min(100, Math.ceil((1.2 * gpus[0]!.memory) / 2 ** 21));
    for (let i = 0; i < calls; i++) await resident.update({ logprob: column(handle) });
  });

  it('is closed also if a function of the runtime fails', async function () {
    if (!isEmulated) this.skip();
    const { handle } = await exporting();
    using resident = await upload(batch, DEVICE);
    const logprob = column(handle);
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
  });

  it('is refused where it does not fit, and the batch keeps its values', async () => {
    const { handle } = await exporting();
    using resident = await upload(batch, DEVICE);
    const before = await computed(resident);
    const cases: [change: object, code: LossErrorCode, message: RegExp][] = [
      [{ ipc: new Uint8Array(64) }, 'ERR_INVALID_INPUT', REFUSED],
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
      const there = await ask(startProcess(), { ask: 'export', device: 'cuda:1', scale: 1 });
      cases.push([{ ipc: there.handle }, 'ERR_INVALID_INPUT', /expected memory of the device/]);
    }
    for (const [change, code, message] of cases) {
      const logprob = { ...column(handle), ...change } as IpcColumn;
      await rejects(() => resident.update({ logprob }), code, message);
      await rejects(() => upload({ ...batch, logprob }, DEVICE), code, message);
    }
    await rejects(
      () => ppo.compute({ ...batch, logprob: column(handle) as never }, { device: DEVICE }),
      'ERR_INVALID_INPUT',
      /got memory of a device/,
    );
    assertSameBits(await computed(resident), before);
  });

  it('is refused if a bit of the handle has changed', async function () {
    if (!isEmulated) this.skip(); // CUDA may not use all bits.
    const { handle } = await exporting();
    for (let i = 0; i < 64; i++) {
      const changed = handle.slice();
      changed[i]! ^= 1 << (i % 8);
      const logprob = column(changed);
      await rejects(() => upload({ ...batch, logprob }, DEVICE), 'ERR_INVALID_INPUT', REFUSED);
    }
  });

  it('is refused after it was freed, and after the process has ended', async () => {
    const { handle } = await exporting();
    using resident = await upload({ ...batch, logprob: column(handle) }, DEVICE);
    const before = await computed(resident);
    const refused = () =>
      rejects(() => resident.update({ logprob: column(handle) }), 'ERR_INVALID_INPUT', REFUSED);
    await ask(other, { ask: 'free', device: DEVICE });
    await refused();
    const another = startProcess();
    const last = await ask(another, { ask: 'export', device: DEVICE, scale: 1 });
    await resident.update({ logprob: column(last.handle) });
    assertSameBits(await computed(resident), before);
    another.kill('SIGKILL');
    await once(another, 'exit');
    await rejects(() => resident.update({ logprob: column(last.handle) }), 'ERR_INVALID_INPUT', REFUSED);
    assertSameBits(await computed(resident), before);
  });
});

describe(`memory on ${DEVICE} that this process exports`, () => {
  before(function () {
    if (gpus.length === 0) this.skip();
  });

  it('is exported only for shareable gradients, and only before dispose()', async () => {
    const grad = await computeHere();
    const own = await grad.ipcHandle();
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

  it('can be read through its handle until dispose()', async () => {
    const grad = await computeHere();
    const values = await grad.toHost();
    const handle = await grad.ipcHandle();
    using resident = await upload(batch, DEVICE);
    const logprob = column(handle);
    const advantages = column(handle, { offset: 12, shape: [ROWS] });
    const busy = keepBusy();
    const update = resident.update({ logprob, advantages });
    // The update that began reads the memory, and the next call does not.
    grad.dispose();
    await rejects(() => upload({ ...batch, logprob }, DEVICE), 'ERR_INVALID_INPUT', REFUSED);
    await Promise.all([busy, update]);
    using expected = await upload(
      { ...batch, logprob: values, advantages: values.slice(3, 3 + ROWS) },
      DEVICE,
    );
    assertSameBits(await computed(resident), await computed(expected));
    await rejects(() => resident.update({ logprob }), 'ERR_INVALID_INPUT', REFUSED);
  });

  it('is refused if the gradient was disposed of while it was exported', async () => {
    const grad = await computeHere();
    const exporting = grad.ipcHandle();
    grad.dispose();
    const logprob = column(await exporting);
    await rejects(() => upload({ ...batch, logprob }, DEVICE), 'ERR_INVALID_INPUT', REFUSED);
  });

  it('is refused after the gradient was collected', async () => {
    setFlagsFromString('--expose-gc');
    const collectGarbage = runInNewContext('gc') as () => void;
    const logprob = column(await (await computeHere()).ipcHandle());
    for (let i = 0; i < 5; i++) {
      await setTimeout(5);
      collectGarbage();
    }
    await rejects(() => upload({ ...batch, logprob }, DEVICE), 'ERR_INVALID_INPUT', REFUSED);
  });

  it('stays until a call that reads the gradient as a column has ended', async () => {
    const grad = await computeHere();
    using expected = await upload({ ...batch, logprob: await grad.toHost() }, DEVICE);
    using resident = await upload(batch, DEVICE);
    const busy = keepBusy();
    const update = resident.update({ logprob: grad });
    const uploaded = upload({ ...batch, logprob: grad }, DEVICE);
    grad.dispose();
    await Promise.all([busy, update]);
    using other = await uploaded;
    for (const on of [resident, other]) assertSameBits(await computed(on), await computed(expected));
  });

  it('is freed by dispose()', async () => {
    const calls = Math.min(100, Math.ceil((1.2 * gpus[0]!.memory) / 2 ** 21));
    for (let i = 0; i < 2 * calls; i++) {
      const grad = await computeHere();
      using resident = await upload(batch, DEVICE);
      await resident.update({ logprob: column(await grad.ipcHandle()) });
      grad.dispose();
    }
  });

  it('is refused if it is not a gradient', function () {
    const other = framework();
    if (!other) return this.skip();
    const pointer = other.allocate(0, 4 * TOKENS);
    const logprob = column(other.exportMemory(pointer));
    return rejects(() => upload({ ...batch, logprob }, DEVICE), 'ERR_INVALID_INPUT', REFUSED).finally(() =>
      other.free(pointer),
    );
  });
});
