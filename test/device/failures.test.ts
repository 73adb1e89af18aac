/**
 * Makes the functions of the CUDA runtime fail, one after another, in the middle of calls. A call must then reject with
 * a LossError that names what failed, and the next call must be right. Only the emulation can do this, so the tests are
 * skipped on a real device.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  ADVANTAGE_FN,
  allocPinned,
  CORRECTION_FN,
  ENTROPY_LOSS_FN,
  freePinned,
  KL_FN,
  LOGITS_LOSS_FN,
  LossError,
  logprobs,
  logprobsBackward,
  lossFromExpression,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { dataOf, makeLogits, PLAIN_ROWS } from '../support/logits.js';
import { copyToDevice } from '../support/logits-ways.js';
import { isEmulated } from '../support/on-device.js';
import { paddedBatch } from '../support/subject.js';

const DEVICE = 'cuda:0';
/** Functions that may fail without an effect on the call. */
const DISPENSABLE = [
  'cudaEventDestroy',
  'cudaFreeAsync',
  'cudaFreeHost',
  'cudaSetDevice',
  'cudaGetDevice',
  'cudaStreamSynchronize',
  'cudaDriverGetVersion',
  'cudaRuntimeGetVersion',
];

const batch = paddedBatch(
  makeBatch({ ...EDGE_LENGTHS, rowLengths: undefined, rows: 4, columns: 200, packed: false } as never),
);
const rewarded = {
  ...batch,
  rewards: Float64Array.of(0.1, 0.5, 0.2, 0.9),
  groupIds: Int32Array.of(0, 0, 1, 1),
};

const options = { grad: true, device: DEVICE };
const losses = {
  ppo: POLICY_LOSS_FN.create('ppo', { clip_range: 0.2 }),
  gspo: POLICY_LOSS_FN.create('gspo', { clip_range: 0.2 }),
  'a loss from an expression': POLICY_LOSS_FN.create('verl/geo_mean'),
  'a program': lossFromExpression('-r * A + batch_mean(row_mean(r)) * d'),
  'a correction': POLICY_LOSS_FN.create('ppo', {
    clip_range: 0.2,
    correction: { rollout_is: 'sequence', rollout_is_threshold: '1.1' },
  }),
  'a quantile of the batch': POLICY_LOSS_FN.create('ppo', {
    clip_range: 0.2,
    masks: { top_entropy_quantile: 0.3 },
  }),
};
const kl = KL_FN.create('k3');
const entropy = ENTROPY_LOSS_FN.create('default');
const correction = CORRECTION_FN.create('verl/rollout_correction', { rollout_is: 'token' });

/** The calls whose functions of the runtime fail. */
const calls: Record<string, () => Promise<unknown>> = {
  'a KL loss': () => kl.calculateKlLoss(batch, options),
  'KL values': () => kl.calculateKl(batch, { device: DEVICE }),
  'an entropy loss': () => entropy.compute(batch, options),
  'advantages of grpo': () => ADVANTAGE_FN.create('grpo').compute(rewarded, { device: DEVICE }),
  'advantages of reinforceplusplus': () =>
    ADVANTAGE_FN.create('reinforceplusplus').compute(rewarded, { device: DEVICE }),
};
for (const [name, fn] of Object.entries(losses)) {
  calls[name] = () => fn.compute(batch, options);
  calls[`${name}, on a resident batch`] = async () => {
    using resident = await upload(batch, DEVICE);
    return [await fn.compute(resident, { grad: true }), fn.computeSync(resident, { grad: true })];
  };
}
calls['weights of a resident batch'] = async () => {
  using resident = await upload(batch, DEVICE);
  return await correction.compute(resident);
};
calls['an update, and a gradient on the device'] = async () => {
  using resident = await upload(batch, DEVICE);
  const { deviceGrad, loss } = await losses.ppo.compute(resident, { grad: 'device' });
  using grad = deviceGrad!;
  await resident.update({ logprob: batch.oldLogprob as Float32Array, refLogprob: grad });
  return [loss, await grad.toHost(), await losses.ppo.compute(resident, { grad: true })];
};

calls['page-locked arrays'] = async () => {
  const array = new Float32Array(await allocPinned(800 * 4)).fill(-1);
  using resident = await upload({ ...batch, logprob: array }, DEVICE);
  const { loss } = await losses.ppo.compute(resident, { grad: array });
  const grad = [...array];
  freePinned(array.buffer as ArrayBuffer);
  return [loss, grad];
};

calls['log-probabilities from logits, and the gradient back'] = async () => {
  // Rows with a gap are copied one by one, and ignored rows are not copied.
  const spec = {
    ...PLAIN_ROWS,
    rows: 6,
    vocabulary: 40,
    gap: 3,
    dtype: 'bfloat16',
    temperature: 'per row',
    support: true,
  } as const;
  const { logits, options, gradLogprob, gradEntropy } = makeLogits({ ...spec, ignored: 0.3 });
  const shared = { ...options, device: DEVICE };
  const found = await logprobs(logits, { ...shared, entropy: true });
  await logprobsBackward(logits, { ...shared, gradLogprob, gradEntropy, out: logits });
  return [found, dataOf(logits)];
};
let there: ReturnType<typeof copyToDevice> | undefined;
let gradThere: ReturnType<typeof copyToDevice> | undefined;
calls['logits on the device, and their gradient in their place'] = async () => {
  const { logits, options } = makeLogits({ ...PLAIN_ROWS, rows: 6, vocabulary: 40 });
  there ??= copyToDevice(logits, [6, 40]);
  const shared = { ...options, device: DEVICE, stream: 0n };
  const found = await logprobs(there, shared);
  // The gradient is 0. So the logits are 0 after the first call, and all others find the same.
  await logprobsBackward(there, { ...shared, gradLogprob: new Float64Array(6), out: there });
  return found;
};

calls['losses of logits on the device, whose gradients go there'] = async () => {
  const { logits } = makeLogits({ ...PLAIN_ROWS, rows: 6, vocabulary: 40 });
  there ??= copyToDevice(logits, [6, 40]);
  gradThere ??= copyToDevice(logits, [6, 40]);
  const given = { shape: [1, 6] as const, targets: [0, 1, 2, 3, 4, 5], logits: there };
  const shared = { device: DEVICE, stream: 0n, gradLogits: gradThere };
  return [
    await LOGITS_LOSS_FN.create('liger/cross_entropy').compute(given, shared),
    await LOGITS_LOSS_FN.create('axolotl/eaft').compute(given, shared),
  ];
};

const { env } = process;

describe('a failure of the CUDA runtime', () => {
  before(function () {
    if (!isEmulated) this.skip();
  });
  afterEach(() => {
    delete env.POLICY_LOSS_EMULATION_FAIL;
  });
  after(() => {
    there?.free();
    gradThere?.free();
  });

  for (const [name, call] of Object.entries(calls))
    it(`rejects the call, whatever fails: ${name}`, async () => {
      await call();
      const expected = await call();
      let failures = 0;
      for (let n = 1; ; n++) {
        delete env.POLICY_LOSS_EMULATION_FAILED;
        env.POLICY_LOSS_EMULATION_FAIL = String(n);
        const found: unknown = await call().catch((error: unknown) => error);
        delete env.POLICY_LOSS_EMULATION_FAIL;
        const failed = env.POLICY_LOSS_EMULATION_FAILED;
        if (!failed) break;
        failures++;
        if (found instanceof Error) {
          const message = /cudaLaunchKernel|cudaFuncSetAttribute/.test(failed)
            ? /\w+_kernel failed: /
            : new RegExp(`${failed} failed: `);
          assert.ok(found instanceof LossError, String(found));
          assert.match(found.message, message);
          const code = /Malloc|HostAlloc/.test(failed) ? 'ERR_OUT_OF_MEMORY' : 'ERR_DEVICE_UNAVAILABLE';
          assert.equal(found.code, code);
        } else {
          assert.ok(DISPENSABLE.includes(failed), failed);
          assert.deepEqual(found, expected);
        }
        assert.deepEqual(await call(), expected, `the call after failure ${n}, in ${failed}`);
      }
      assert.ok(failures > 20, `only ${failures} functions were called`);
    });
});

const LIBRARY = JSON.stringify(new URL('../../lib/index.js', import.meta.url).href);

/** Runs a program in a process of its own. */
function run(program: string, variables: Record<string, string>) {
  const loader = import.meta.url.endsWith('.ts') ? ['--import', 'tsx'] : [];
  return spawnSync(process.execPath, [...loader, '--input-type=module', '--eval', program], {
    encoding: 'utf8',
    env: { ...env, ...variables },
  });
}

describe('a process that uses a device', () => {
  before(function () {
    if (!isEmulated) this.skip();
  });

  it('may end in the middle of a call and of an upload', () => {
    const { status, stderr } = run(
      `
      import { POLICY_LOSS_FN, upload } from ${LIBRARY};
      const count = 2_000_000;
      const batch = {
        shape: [100, count / 100],
        logprob: new Float32Array(count).fill(-1),
        oldLogprob: new Float32Array(count).fill(-1),
        advantages: new Float32Array(count).fill(1),
        actionMask: new Uint8Array(count).fill(1),
      };
      const fn = POLICY_LOSS_FN.create('ppo', { clip_range: 0.2 });
      void fn.compute(batch, { device: 'cuda:0', grad: true });
      for (let i = 0; i < 30; i++) void upload(batch, 'cuda:0');
      setTimeout(() => process.exit(7), 100);`,
      {},
    );
    assert.equal(status, 7, stderr);
    assert.equal(stderr, '');
  });

  it('must be restarted after an error in a kernel', () => {
    const { stdout, stderr } = run(
      `
      import { POLICY_LOSS_FN } from ${LIBRARY};
      const batch = { shape: [1, 1], logprob: [0], oldLogprob: [0], advantages: [1], actionMask: [1] };
      const fn = POLICY_LOSS_FN.create('ppo', { clip_range: 0.2 });
      await fn.compute(batch, { device: 'cuda:0' });
      process.env.POLICY_LOSS_EMULATION_FAIL = '41';
      for (let i = 0; i < 2; i++)
        await fn.compute(batch, { device: 'cuda:0' }).catch(({ name, code, message }) => {
          console.log(JSON.stringify({ name, code, message }));
        });`,
      { POLICY_LOSS_EMULATION_STICKY: '1' },
    );
    const errors = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { name: string; code: string; message: string });
    assert.equal(errors.length, 2, stderr);
    for (const { name, code, message } of errors) {
      assert.deepEqual([name, code], ['LossError', 'ERR_DEVICE_UNAVAILABLE']);
      assert.match(message, /illegal memory access.*after the launch of \w+_kernel.*must be restarted/);
    }
  });

  it('may have a device without memory pools', () => {
    const { stdout, stderr } = run(
      `
      import { POLICY_LOSS_FN, upload } from ${LIBRARY};
      const batch = { shape: [1, 2], logprob: [0, -1], oldLogprob: [0, -2], advantages: [1, 2], actionMask: [1, 1] };
      const fn = POLICY_LOSS_FN.create('ppo', { clip_range: 0.2 });
      const resident = await upload(batch, 'cuda:0');
      const results = [await fn.compute(batch, { device: 'cuda:0' }), await fn.compute(resident), fn.computeSync(batch)];
      console.log(JSON.stringify(results.map(({ loss }) => loss)));`,
      { POLICY_LOSS_EMULATION_POOLS: '0' },
    );
    const [host, resident, cpu] = JSON.parse(stdout || '[]') as number[];
    assert.ok(cpu !== undefined, stderr);
    assert.deepEqual([host, resident], [cpu, cpu]);
  });
});
