/**
 * Tests advantage functions and objectives on a CUDA device, real or emulated. On the golden cases, they must meet the
 * same tolerances as on the CPU. On random batches, they must agree with the CPU. Batches lie in host memory or were
 * uploaded to the device. `npm run test:emulated` and `npm run test:gpu` run these tests.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  ADVANTAGE_FN,
  type AdvantageResult,
  ALGORITHM_TYPE,
  type Batch,
  type DeviceBatch,
  type ObjectiveConfig,
  type ObjectiveResult,
  sumCounts,
  upload,
} from '../../lib/index.js';
import type { Args } from '../reference/index.js';
import { layOut, makeRewarded, type RewardSpec, rewardSpec } from '../support/draw.js';
import { isInterleaved } from '../support/on-device.js';
import { assertArray, assertComputed, assertNumber, assertSameArray } from '../support/tolerance.js';

const DEVICE = 'cuda:0';
const SEED = Number(process.env.FC_SEED ?? 2025);

/** The functions that are computed along rows, with arguments. */
const RECURRENCES: Readonly<Record<string, Args>> = {
  ppo: { gamma: 0.99, lam: 0.95 },
  reinforceplusplus: { gamma: 0.98 },
  remax: {},
  'verl/gae': { gamma: 0.99, lam: 0.95 },
  'verl/reinforce_plus_plus': { gamma: 0.98 },
};
/** The functions that do not read the rewards of masked tokens. */
const IGNORES_MASKED_REWARDS: ReadonlySet<string> = new Set([
  'remax',
  'verl/gae',
  'verl/reinforce_plus_plus',
  'verl/optimal_token_baseline',
  'verl/tir_optimal_token_baseline',
]);

/**
 * Computes advantages on the device, from a batch in host memory and from its uploaded copy. The uploaded copy is
 * computed both asynchronously and synchronously. Asserts that all results have equal bits.
 */
async function onDevice(name: string, args: Args, batch: Batch): Promise<AdvantageResult> {
  const fn = ADVANTAGE_FN.create(name, args);
  const fromHost = await fn.compute(batch, { device: DEVICE });
  // Rewards under keys that the caller chose are not uploaded.
  if (fn.definition.named || fn.definition.hostOnly) return fromHost;
  using resident = await upload(batch, DEVICE);
  assert.deepStrictEqual(await fn.compute(resident), fromHost);
  assert.deepStrictEqual(fn.computeSync(resident), fromHost);
  return fromHost;
}

function assertLikeCpu(actual: AdvantageResult, expected: AdvantageResult): void {
  assertArray(actual.advantages, expected.advantages, 'advantages');
  assertArray(actual.returns, expected.returns, 'returns');
  assert.deepStrictEqual(actual.keptRows, expected.keptRows);
  assert.deepStrictEqual(actual.copies, expected.copies);
  assert.deepEqual(Object.keys(actual.metrics), Object.keys(expected.metrics));
  for (const [metric, value] of Object.entries(expected.metrics))
    assertNumber(actual.metrics[metric], value, metric);
}

describe(`advantages on ${DEVICE} agree with the CPU's`, () => {
  const further: [string, fc.Arbitrary<Args>][] = [
    ['rec', fc.constant({ drop: 'balance', seed: 3 })],
    ['grpo', fc.constant({ std_threshold: 0.5, duplicate_experiences: true, seed: 5 })],
  ];
  for (const [name, args] of further)
    it(`${name}: drawn batches`, async () => {
      await fc.assert(
        fc.asyncProperty(args, rewardSpec, async (drawnArgs, spec) => {
          const batch = layOut(makeRewarded(spec));
          assertLikeCpu(
            await onDevice(name, drawnArgs, batch),
            ADVANTAGE_FN.create(name, drawnArgs).computeSync(batch),
          );
        }),
        { numRuns: 15, seed: SEED },
      );
    });

  it('a row of 20,000 tokens among short ones', async () => {
    const lengths = [3, 20_000, 0, 17];
    const cuSeqlens = Int32Array.from([0, 3, 20_003, 20_003, 20_020]);
    const tokens = cuSeqlens.at(-1)!;
    const column = (seed: number) =>
      Float32Array.from({ length: tokens }, (_, i) => Math.sin(seed * (i + 1)) - 1);
    const batch = {
      cuSeqlens,
      actionMask: Uint8Array.from({ length: tokens }, (_, i) => (i % 7 === 3 ? 0 : 1)),
      tokenLevelRewards: column(0.3),
      values: column(0.7),
      sumPiSquared: column(0.9).map((x) => 2 + x),
      advantages: column(0.5),
      logprob: column(0.6),
      oldLogprob: column(1.1),
      teacherLogprob: column(1.3),
      rewards: lengths.map((_, b) => b / 3),
      rewardBaselines: lengths.map((_, b) => b / 5),
      groupIds: ['a', 'a', 'b', 'b'],
      runIds: [1, 1, 1, 2],
    };
    for (const name of ADVANTAGE_FN.names())
      assertLikeCpu(await onDevice(name, {}, batch), ADVANTAGE_FN.create(name).computeSync(batch));
  });
});

describe(`long rows on ${DEVICE}`, () => {
  /** Returns every column for a number of tokens. What lies under the mask is NaN where no function may read it. */
  function drawColumns(tokens: number, isMasked: (token: number) => boolean) {
    const column = (seed: number, masked = Number.NaN) =>
      Float32Array.from({ length: tokens }, (_, i) =>
        isMasked(i) && Number.isNaN(masked) ? masked : Math.sin(seed * (i + 1)) - 1,
      );
    return {
      actionMask: Uint8Array.from({ length: tokens }, (_, i) => (isMasked(i) ? 0 : 1)),
      tokenLevelRewards: column(0.3, 0),
      values: column(0.7, 0),
      sumPiSquared: column(0.9).map((x) => 4 + x),
      oldLogprob: column(1.1),
      teacherLogprob: column(1.3),
    };
  }

  const MASKS: Readonly<Record<string, (token: number) => boolean>> = {
    'with holes': (i) => i % 7 === 3,
    'with a hole of 30,000 tokens': (i) => i >= 20_001 && i < 50_001,
    'with a masked end': (i) => i % 5 === 0 || i >= 30_003,
  };
  // Blocks that take turns take long, so they compute less.
  const TITLES = isInterleaved ? ['with a hole of 30,000 tokens'] : Object.keys(MASKS);
  const REWARDS = isInterleaved ? ['per token'] : ['per token', 'per row'];
  for (const title of TITLES)
    for (const rewards of REWARDS)
      it(`a row of 100,000 tokens ${title}, rewards ${rewards}`, async () => {
        const tokens = 100_000;
        const isMasked = MASKS[title]!;
        const { tokenLevelRewards, ...columns } = drawColumns(tokens, isMasked);
        const unread = tokenLevelRewards.map((x, i) => (isMasked(i) ? Number.NaN : x));
        const batch: Batch = { ...columns, rewards: [1.5], rewardBaselines: [0.5], groupIds: ['a'] };
        if (rewards === 'per token') batch.shape = [1, tokens];
        else batch.cuSeqlens = Int32Array.of(0, tokens);
        for (const name of new Set([...Object.keys(RECURRENCES), ...IGNORES_MASKED_REWARDS])) {
          if (rewards === 'per token')
            batch.tokenLevelRewards = IGNORES_MASKED_REWARDS.has(name) ? unread : tokenLevelRewards;
          assertLikeCpu(await onDevice(name, {}, batch), ADVANTAGE_FN.create(name).computeSync(batch));
        }
      });

  // Ten rows of one length are computed one by one. If a row is alone, all warps share it.
  for (const [name, args] of Object.entries(RECURRENCES))
    for (const rewards of REWARDS)
      it(`${name}: the same bits for a row alone and among others, rewards ${rewards}`, async () => {
        const [rows, length] = [10, 5004];
        const { tokenLevelRewards, ...columns } = drawColumns(
          rows * length,
          (i) => i % 7 === 3 || (i > 1000 && i < 9000),
        );
        const perToken = { ...columns, ...(rewards === 'per token' && { tokenLevelRewards }) };
        const ofRows = (first: number, last: number, layout: Pick<Batch, 'shape' | 'cuSeqlens'>): Batch => ({
          ...Object.fromEntries(
            Object.entries(perToken).map(([key, x]) => [key, x.subarray(first * length, last * length)]),
          ),
          rewards: Array.from({ length: last - first }, (_, b) => (first + b) / 3),
          rewardBaselines: Array.from({ length: last - first }, (_, b) => (first + b) / 5),
          ...layout,
        });
        const { returns } = await onDevice(name, args, ofRows(0, rows, { shape: [rows, length] }));
        for (let row = isInterleaved ? rows - 1 : 0; row < rows; row++)
          for (const layout of [{ shape: [1, length] as const }, { cuSeqlens: Int32Array.of(0, length) }]) {
            const alone = await onDevice(name, args, ofRows(row, row + 1, layout));
            // Advantages may be whitened over the batch, but returns are not.
            assertSameArray(alone.returns, returns.slice(row * length, (row + 1) * length), 'returns');
          }
      });
});

describe(`objectives on ${DEVICE}`, () => {
  // Computes an objective from rewards: on the CPU, on the device from host memory, and on the device from an uploaded
  // batch. Asserts that the results agree.
  async function threeWays(config: ObjectiveConfig, batch: Batch): Promise<void> {
    const objective = ALGORITHM_TYPE.get('grpo').objective(config);
    const options = { grad: true, seed: 7 };
    const cpu = objective.computeSync(batch, options);
    using resident = await upload(batch, DEVICE);
    const like = ({ loss, metrics, grad, gradEntropy }: ObjectiveResult) => {
      assertComputed(
        { loss, metrics, grad: grad! },
        { loss: cpu.loss, metrics: cpu.metrics, grad: cpu.grad! },
      );
      assertArray(gradEntropy!, cpu.gradEntropy!, 'gradEntropy');
    };
    like(await objective.compute(batch, { ...options, device: DEVICE }));
    like(await objective.compute(resident, options));
    like(objective.computeSync(resident, options));
    const counts = objective.countSync(batch, { seed: 7 });
    assert.deepEqual(await objective.count(resident, { seed: 7 }), counts);
    assert.deepEqual(objective.countSync(resident, { seed: 7 }), counts);
  }

  const spec: RewardSpec = {
    seed: 11,
    rows: 24,
    columns: 37,
    values: 'moderate',
    mask: 'random',
    packed: false,
    groups: 'some',
    rewards: 'normal',
    perToken: true,
  };
  const configs: [string, ObjectiveConfig][] = [
    ...ADVANTAGE_FN.names().map((name): [string, ObjectiveConfig] => [name, { advantage_fn: name }]),
    ['grpo that drops', { advantage_fn_args: { std_threshold: 0.9 } }],
    ['grpo that copies', { advantage_fn_args: { std_threshold: 0.9, duplicate_experiences: true } }],
    [
      'grpo that drops, with a loss that looks under the mask',
      {
        advantage_fn_args: { std_threshold: 0.9 },
        policy_loss_fn_args: { enable_sequence_masking: true, delta_sequence_masking: 0.01 },
      },
    ],
    ['grpo that drops, of sequences', { advantage_fn_args: { std_threshold: 0.9 }, policy_loss_fn: 'gspo' }],
  ];
  for (const [title, config] of configs)
    for (const packed of [false, true])
      it(`${title} from rewards, ${packed ? 'packed' : 'padded'}`, () =>
        threeWays(
          { entropy_loss_fn_args: { entropy_coef: 0.01 }, ...config },
          layOut(makeRewarded({ ...spec, packed })),
        ));
});

describe(`parts of a batch on ${DEVICE}`, () => {
  it('add up to the whole', async () => {
    const objective = ALGORITHM_TYPE.get('grpo').objective({ entropy_loss_fn_args: { entropy_coef: 0.01 } });
    const batch: Batch = {
      shape: [4, 3],
      logprob: Float32Array.from({ length: 12 }, (_, i) => -1 - Math.sin(i)),
      oldLogprob: Float32Array.from({ length: 12 }, (_, i) => -1 - Math.sin(i + 0.1)),
      refLogprob: Float32Array.from({ length: 12 }, (_, i) => -1 - Math.sin(i + 0.2)),
      entropy: Float32Array.from({ length: 12 }, (_, i) => 1 + Math.cos(i)),
      actionMask: Uint8Array.from([1, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1]),
      advantages: Float32Array.from({ length: 12 }, (_, i) => Math.cos(3 * i)),
    };
    const rows = (first: number, last: number): Batch =>
      Object.fromEntries(
        Object.entries(batch).map(([key, value]) => [
          key,
          key === 'shape'
            ? [last - first, 3]
            : (value as Float32Array | Uint8Array).subarray(3 * first, 3 * last),
        ]),
      );
    const whole = objective.computeSync(batch, { grad: true });
    const parts: DeviceBatch[] = [await upload(rows(0, 1), DEVICE), await upload(rows(1, 4), DEVICE)];
    const normalizer = sumCounts(await Promise.all(parts.map((part) => objective.count(part))));
    assert.deepEqual(normalizer, objective.countSync(batch));
    const results = [];
    for (const part of parts) results.push(await objective.compute(part, { grad: true, normalizer }));
    for (const part of parts) part.dispose();
    assertNumber(
      results.reduce((sum, { loss }) => sum + loss, 0),
      whole.loss,
      'loss',
    );
    for (const key of ['grad', 'gradEntropy'] as const)
      assertArray(
        results.flatMap((result) => Array.from(result[key]!)),
        whole[key]!,
        key,
      );
  });
});

describe(`advantages on ${DEVICE} refuse`, () => {
  const batch = {
    shape: [2, 2] as const,
    logprob: new Float32Array(4),
    oldLogprob: new Float32Array(4),
    refLogprob: new Float32Array(4),
    actionMask: new Uint8Array(4).fill(1),
    rewards: [1, Number.NaN],
    groupIds: [1, 1],
  };

  it('rewards that are not finite', async () => {
    const fn = ADVANTAGE_FN.create('grpo');
    const code = 'ERR_INVALID_INPUT';
    await assert.rejects(fn.compute(batch, { device: DEVICE }), { code, message: /rewards\[1\].*NaN/ });
    using resident = await upload(batch, DEVICE);
    await assert.rejects(fn.compute(resident), { code, message: /rewards.*row 1/ });
    assert.throws(() => fn.computeSync(resident), { code });
    const objective = ALGORITHM_TYPE.get('grpo').objective({ advantage_fn_args: { std_threshold: 0.1 } });
    await assert.rejects(objective.compute(resident, { grad: true }), { code, message: /rewards.*row 1/ });
    assert.throws(() => objective.countSync(resident), { code });
  });

  it('named rewards of an uploaded batch', async () => {
    const fn = ADVANTAGE_FN.create('verl/gdpo', { gdpo_reward_keys: ['rewards'] });
    using resident = await upload({ ...batch, rewards: [1, 2] }, DEVICE);
    await assert.rejects(fn.compute(resident), { code: 'ERR_MISSING_INPUT', message: /rewards.*device/ });
  });

  it('inputs that were not uploaded, a disposed batch, a KL penalty', async () => {
    const { groupIds: _, ...without } = batch;
    const resident = await upload(without, DEVICE);
    const fn = ADVANTAGE_FN.create('grpo');
    await assert.rejects(fn.compute(resident), { code: 'ERR_MISSING_INPUT', message: /groupIds/ });
    const objective = ALGORITHM_TYPE.get('rloo').objective({ kl_penalty_fn: 'k2' });
    await assert.rejects(objective.compute(resident), { code: 'ERR_INVALID_INPUT', message: /KL penalty/ });
    resident.dispose();
    await assert.rejects(fn.compute(resident), { code: 'ERR_INVALID_INPUT', message: /disposed/ });
  });
});
