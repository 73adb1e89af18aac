/**
 * Advantages: against Trinity-RFT's own (golden cases), against the float64 reference on drawn batches, and what holds
 * of them beside their values: layouts, names, ids, threads, chance under a seed, and what is refused.
 */
import assert from 'node:assert/strict';
import { cpus } from 'node:os';
import fc from 'fast-check';
import {
  ADVANTAGE_FN,
  AdvantageFn,
  type AdvantageResult,
  ASYMREGroupAdvantage,
  type Batch,
  GRPOGroupedAdvantage,
  JSDAdvantage,
  LossError,
  type LossErrorCode,
  OnPolicyDistillAdvantage,
  OPMDGroupAdvantage,
  PPOAdvantageFn,
  RECGroupedAdvantage,
  REINFORCEGroupAdvantage,
  REINFORCEPLUSPLUSAdvantageFn,
  REMAXAdvantageFn,
  RLOOAdvantageFn,
  StepWiseGRPOAdvantageFn,
  setThreads,
} from '../lib/index.js';
import {
  groupsOf,
  type ReferenceAdvantages,
  type RewardedBatch,
  referenceAdvantages,
  runsOf,
  tokenRewards,
  unmaskedPositions,
} from './reference/advantage.js';
import type { Args } from './reference/index.js';
import {
  ADVANTAGE_ARGUMENTS,
  inHalf,
  layOut,
  makeRewarded,
  type RewardSpec,
  rewardSpec,
} from './support/draw.js';
import {
  type AdvantageCase,
  advantageCases,
  goldenBatch,
  referenceBatch,
  type Tensor,
} from './support/golden.js';
import { generator } from './support/random.js';
import { unpack } from './support/subject.js';
import { assertArray, assertNumber, assertSameArray, GROUP_RELATIVE } from './support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
const HOSTILE = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];

/** What the package says of each: its class, its default arguments, and the keys that it reads beside the mask. */
const FUNCTIONS = {
  ppo: [PPOAdvantageFn, { gamma: 1, lam: 1 }, ['token_level_rewards', 'values']],
  reinforceplusplus: [REINFORCEPLUSPLUSAdvantageFn, { gamma: 1 }, ['token_level_rewards']],
  remax: [REMAXAdvantageFn, {}, ['token_level_rewards', 'reward_baselines']],
  rloo: [RLOOAdvantageFn, {}, ['token_level_rewards', 'group_ids']],
  grpo: [
    GRPOGroupedAdvantage,
    {
      epsilon: 1e-6,
      std_threshold: null,
      duplicate_experiences: false,
      rank_penalty: null,
      std_cal_level: 'group',
    },
    ['rewards', 'group_ids'],
  ],
  step_wise_grpo: [
    StepWiseGRPOAdvantageFn,
    { epsilon: 1e-6, enable_step_norm: false, std_threshold: null, std_cal_level: 'group' },
    ['rewards', 'group_ids', 'run_ids'],
  ],
  reinforce: [REINFORCEGroupAdvantage, {}, ['rewards', 'group_ids']],
  opmd: [OPMDGroupAdvantage, { opmd_baseline: 'mean', tau: 1 }, ['rewards', 'group_ids']],
  asymre: [ASYMREGroupAdvantage, { baseline_shift: -0.1 }, ['rewards', 'group_ids']],
  rec: [RECGroupedAdvantage, { epsilon: 1e-6, std_normalize: false, drop: null }, ['rewards', 'group_ids']],
  on_policy_distill: [OnPolicyDistillAdvantage, { kl_coef: 1 }, ['old_logprob', 'teacher_logprob']],
  jsd: [
    JSDAdvantage,
    { lambda_coef: 0.5, kl_coef: 1, temperature: 1, chunk_size: null },
    ['old_logprob', 'teacher_logprob'],
  ],
} as const;
const NAMES = Object.keys(FUNCTIONS);

/** By what they are made of. */
const OF_TOKEN_REWARDS = ['ppo', 'reinforceplusplus', 'remax', 'rloo'];
const OF_ROW_REWARDS = ['grpo', 'step_wise_grpo', 'reinforce', 'opmd', 'asymre', 'rec'];
const OF_TWO_POLICIES = ['on_policy_distill', 'jsd'];
const OF_GROUPS = [...OF_ROW_REWARDS, 'rloo'];
/** Those whose returns are not their advantages. */
const WITH_RETURNS = ['ppo', 'reinforceplusplus', 'remax'];

const create = (name: string, args: Args = {}) => ADVANTAGE_FN.create(name, args);
const computed = (name: string, args: Args, batch: Batch) => create(name, args).computeSync(batch);

/** A packed result laid out as B×T again. */
function laidOut(batch: RewardedBatch, result: AdvantageResult): AdvantageResult {
  if (!batch.rowLengths) return result;
  return {
    ...result,
    advantages: unpack(batch, result.advantages),
    returns: unpack(batch, result.returns),
  };
}

function assertAdvantages(actual: AdvantageResult, expected: ReferenceAdvantages, relative?: number): void {
  assert.deepEqual(Object.keys(actual.metrics).sort(), Object.keys(expected.metrics).sort());
  for (const [name, value] of Object.entries(expected.metrics))
    assertNumber(actual.metrics[name], value, name, expected.magnitude[name], relative);
  // Of rewards and values around 1, what is below 1e-6 is what is left where float64 terms cancel.
  assertArray(actual.advantages, expected.advantages, 'advantages', relative, 1e-6);
  assertArray(actual.returns, expected.returns, 'returns', relative, 1e-6);
  assert.deepEqual(
    Array.from(actual.keptRows),
    expected.kept.map((is) => (is ? 1 : 0)),
  );
}

function assertSameAdvantages(actual: AdvantageResult, expected: AdvantageResult): void {
  assertSameArray(actual.advantages, expected.advantages, 'advantages');
  assertSameArray(actual.returns, expected.returns, 'returns');
  assert.deepStrictEqual(actual.keptRows, expected.keptRows);
  assert.deepStrictEqual(actual.copies, expected.copies);
  assert.deepStrictEqual(actual.metrics, expected.metrics);
}

function assertFinite(result: AdvantageResult): void {
  for (const [name, value] of Object.entries(result.metrics))
    assert.ok(Number.isFinite(value), `${name} is ${value}`);
  const strange = [...result.advantages, ...result.returns].findIndex((x) => !Number.isFinite(x));
  assert.equal(strange, -1, 'an advantage or return is not finite');
}

const spec: RewardSpec = {
  seed: 41,
  rows: 8,
  columns: 23,
  values: 'moderate',
  mask: 'random',
  packed: false,
  groups: 'some',
  rewards: 'normal',
  perToken: true,
};
/** The same without token-level rewards: rewards per row alone. */
const perRowSpec = { ...spec, perToken: false };

describe('advantage functions', () => {
  it('are these, under these names, with these defaults', () => {
    assert.deepEqual([...ADVANTAGE_FN.names()].sort(), [...NAMES].sort());
    assert.deepEqual(Object.keys(referenceAdvantages).sort(), [...NAMES].sort());
    assert.deepEqual(Object.keys(ADVANTAGE_ARGUMENTS).sort(), [...NAMES].sort());
    for (const [name, [cls, defaults]] of Object.entries(FUNCTIONS)) {
      assert.equal(ADVANTAGE_FN.get(name), cls);
      assert.deepEqual(cls.defaultArgs(), defaults, name);
      assert.ok(create(name) instanceof AdvantageFn);
      assert.ok(create(name) instanceof cls);
      assert.equal(create(name).backend, 'verl');
    }
  });

  it('tell the keys that they read, in the naming of the backend', () => {
    const beside = (fn: AdvantageFn, mask: string) => [...fn.selectKeys].filter((key) => key !== mask).sort();
    for (const [name, [, , keys]] of Object.entries(FUNCTIONS)) {
      assert.deepEqual(
        beside(ADVANTAGE_FN.create(name, {}, { backend: 'tinker' }), 'action_mask'),
        [...keys].sort(),
      );
      const verls = keys.map((key) => (key === 'old_logprob' ? 'old_log_probs' : key));
      assert.deepEqual(beside(create(name), 'response_mask'), verls.sort());
    }
    assert.deepEqual(beside(create('grpo', { rank_penalty: 0.5 }), 'response_mask'), [
      'group_ids',
      'old_log_probs',
      'rewards',
    ]);
  });

  it('take options in camelCase, and complete the defaults by what is given', () => {
    const batch = layOut(makeRewarded(spec));
    const args = { std_threshold: 0.9, std_cal_level: 'batch', epsilon: 0.01 };
    assertSameAdvantages(
      new GRPOGroupedAdvantage({ stdThreshold: 0.9, stdCalLevel: 'batch', epsilon: 0.01 }).computeSync(batch),
      computed('grpo', args, batch),
    );
    for (const name of NAMES) {
      const [cls, defaults] = FUNCTIONS[name as keyof typeof FUNCTIONS];
      const plain = new (cls as new () => AdvantageFn)().computeSync(batch);
      assertSameAdvantages(plain, computed(name, {}, batch));
      assertSameAdvantages(plain, computed(name, defaults, batch));
    }
  });
});

describe('golden advantages', () => {
  const expectedOf = ({ fn, expected }: AdvantageCase) => ({
    advantages: Float64Array.from(expected.advantages.data),
    returns: Float64Array.from(expected.returns.data),
    kept: expected.kept_rows.map(Boolean),
    metrics: expected.metrics,
    magnitude: {},
    relative: OF_ROW_REWARDS.includes(fn) ? GROUP_RELATIVE : undefined,
  });
  /** The very rows, end to end. Each keeps all of its columns, as some functions read under the mask. */
  const packed = (inputs: Record<string, Tensor>) => {
    const { shape, ...columns } = goldenBatch(inputs);
    const [rows, length] = shape as [number, number];
    return { ...columns, cuSeqlens: Int32Array.from({ length: rows + 1 }, (_, b) => b * length) };
  };
  const renamed = (batch: Batch, rename: (key: string) => string) =>
    Object.fromEntries(Object.entries(batch).map(([key, value]) => [rename(key), value])) as Batch;
  const camelCase = (key: string) => key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  const VERL: Record<string, string> = { action_mask: 'response_mask', old_logprob: 'old_log_probs' };

  it('are what the reference gives', () => {
    for (const golden of advantageCases) {
      const { relative, ...expected } = expectedOf(golden);
      const { advantages, returns, kept, metrics } = referenceAdvantages[golden.fn]!(
        golden.args,
        referenceBatch(golden.inputs),
      );
      assertArray(advantages, expected.advantages, golden.id, relative);
      assertArray(returns, expected.returns, golden.id, relative);
      assert.deepEqual(kept, expected.kept, golden.id);
      assert.deepEqual(Object.keys(metrics).sort(), Object.keys(expected.metrics).sort());
      for (const [name, value] of Object.entries(expected.metrics))
        assertNumber(metrics[name], value, name, 0, relative);
    }
  });

  for (const golden of advantageCases) {
    const { id, fn: name, args, inputs } = golden;
    it(id, async () => {
      const { relative, ...expected } = expectedOf(golden);
      const fn = create(name, args);
      const batch = goldenBatch(inputs);
      const result = fn.computeSync(batch);
      assertAdvantages(result, expected, relative);
      assert.equal(result.returns === result.advantages, !WITH_RETURNS.includes(name));
      assert.equal(result.copies, undefined);
      assertSameAdvantages(await fn.compute(batch), result);
      for (const same of [
        packed(inputs),
        renamed(batch, camelCase),
        renamed(batch, (key) => VERL[key] ?? key),
      ])
        assertSameAdvantages(fn.computeSync(same), result);
      assertSameAdvantages(ADVANTAGE_FN.create(name, args, { backend: 'tinker' }).computeSync(batch), result);
    });
  }
});

describe('cross-validation: advantages', () => {
  let large: { batch: RewardedBatch; laid: Batch }[];
  before(() => {
    large = [
      { packed: true, rows: 3, rowLengths: [17, 100_000, 250], columns: 100_000 },
      { packed: false, rows: 1, columns: 100_000 },
      { packed: false, rows: 20_000, columns: 5 },
    ].map((shape) => {
      const batch = makeRewarded({ ...spec, ...shape });
      return { batch, laid: layOut(batch) };
    });
  });

  for (const [name, args] of Object.entries(ADVANTAGE_ARGUMENTS)) {
    const reference = referenceAdvantages[name]!;

    it(`${name}: drawn batches`, () => {
      fc.assert(
        fc.property(args, rewardSpec, (drawnArgs, drawnSpec) => {
          const batch = makeRewarded(drawnSpec);
          const result = computed(name, drawnArgs, layOut(batch));
          assertAdvantages(laidOut(batch, result), reference(drawnArgs, batch));
        }),
        { numRuns: 150, seed: SEED },
      );
    });

    it(`${name}: columns of 16 bits`, () => {
      fc.assert(
        fc.property(
          args,
          rewardSpec,
          fc.constantFrom('float16', 'bfloat16'),
          (drawnArgs, drawnSpec, dtype) => {
            const { rounded, laid } = inHalf(makeRewarded(drawnSpec), dtype);
            const result = computed(name, drawnArgs, laid);
            assertAdvantages(laidOut(rounded, result), reference(drawnArgs, rounded));
          },
        ),
        { numRuns: 25, seed: SEED },
      );
    });

    it(`${name}: a row of 100,000 tokens, by itself and packed among short ones, and 20,000 rows`, async () => {
      const [drawnArgs] = fc.sample(args, { seed: SEED, numRuns: 1 }) as [Args];
      const fn = create(name, drawnArgs);
      for (const { batch, laid } of large) {
        const result = fn.computeSync(laid);
        assertAdvantages(laidOut(batch, result), reference(drawnArgs, batch));
        assertSameAdvantages(await fn.compute(laid), result);
      }
    });
  }

  it('the function on no argument is the one on its defaults', () => {
    const batch = makeRewarded(spec);
    for (const name of NAMES)
      assertAdvantages(computed(name, {}, layOut(batch)), referenceAdvantages[name]!({}, batch));
  });
});

describe('advantages of batches at the edge', () => {
  const SHAPES = [
    { shape: [0, 5] as const },
    { shape: [2, 0] as const },
    { shape: [0, 0] as const },
    { cuSeqlens: Int32Array.of(0) },
    { cuSeqlens: Int32Array.of(0, 0, 0) },
  ];
  for (const name of NAMES) {
    it(`${name}: no rows, no columns, no tokens`, async () => {
      for (const layout of SHAPES) {
        const rows = layout.shape ? layout.shape[0] : layout.cuSeqlens.length - 1;
        const column = new Float32Array(0);
        const batch = {
          ...layout,
          oldLogprob: column,
          teacherLogprob: column,
          tokenLevelRewards: column,
          values: column,
          actionMask: new Uint8Array(0),
          rewards: new Float64Array(rows).fill(1),
          rewardBaselines: new Float64Array(rows).fill(1),
          groupIds: new Int32Array(rows),
          runIds: new Int32Array(rows),
        };
        const fn = create(name);
        for (const result of [fn.computeSync(batch), await fn.compute(batch)]) {
          assertFinite(result);
          assert.equal(result.advantages.length, 0);
          assert.equal(result.returns.length, 0);
          assert.deepEqual(result.keptRows, new Uint8Array(rows).fill(1));
          if (rows === 0)
            for (const [key, value] of Object.entries(result.metrics)) assert.equal(value, 0, key);
        }
      }
    });

    it(`${name}: rows and batches with nothing unmasked`, () => {
      for (const mask of ['emptyrows', 'zero'] as const)
        for (const perToken of [true, false]) {
          const batch = makeRewarded({ ...spec, mask, perToken });
          const result = computed(name, {}, layOut(batch));
          assertFinite(result);
          assertAdvantages(result, referenceAdvantages[name]!({}, batch));
        }
    });
  }

  it('whitening: one unmasked token is at the mean, none leaves zeros', () => {
    const batch = {
      shape: [2, 3] as const,
      tokenLevelRewards: [0.1, 0.7, -0.3, 1.9, 0.2, 0.6],
      values: [0.3, -0.4, 0.9, 0.1, 0.8, -0.2],
    };
    for (const [name, args] of [
      ['ppo', { gamma: 0.97, lam: 0.93 }],
      ['reinforceplusplus', { gamma: 0.97 }],
    ] as const) {
      const one = computed(name, args, { ...batch, actionMask: [0, 0, 0, 0, 1, 0] });
      assert.equal(one.advantages[4]! + 0, 0, name);
      assertFinite(one);
      const none = computed(name, args, { ...batch, actionMask: [0, 0, 0, 0, 0, 0] });
      assert.deepEqual(
        Array.from(none.advantages, (a) => a + 0),
        [0, 0, 0, 0, 0, 0],
      );
      // Returns have nothing to do with the mask.
      assertSameArray(none.returns, one.returns, 'returns');
    }
  });

  it('whitening: unmasked tokens that are all alike are at the mean', () => {
    // 1/3 of a reward is no number of 24 bits, nor is its decay.
    const rows = 5;
    const rewards = new Array(rows).fill(1 / 3);
    const mask = Array.from({ length: rows }, () => [1, 0, 0]);
    const tokenLevelRewards = mask.map(() => [0, 0, 1 / 3]);
    const values = mask.map(() => [0.1, 0.2, 0.3]);
    for (const name of ['ppo', 'reinforceplusplus']) {
      const batch = { shape: [rows, 3] as const, actionMask: mask, rewards, tokenLevelRewards, values };
      const { advantages } = computed(name, { gamma: 0.9 }, batch);
      // Rounding of float64, 1e-16, over the 1e-4 that stands under the root: far below what float32 would leave.
      for (let b = 0; b < rows; b++)
        assert.ok(Math.abs(advantages[3 * b]!) < 1e-9, `${name}: ${advantages[3 * b]}`);
    }
  });

  it('groups: alone, all in one, all rewards equal', () => {
    const rewards = [0.25, 0.5, -1, 4];
    const of = (name: string, groupIds: number[], args: Args = {}, given = rewards) =>
      computed(name, args, {
        shape: [4, 1],
        actionMask: [1, 1, 1, 1],
        rewards: given,
        groupIds,
        runIds: [0, 0, 0, 0],
      });
    const alone = [1, 2, 3, 4];
    const values = (result: AdvantageResult) =>
      Array.from(result.advantages, (a) => Math.round(a * 1e4) / 1e4);
    for (const name of ['rloo', 'reinforce', 'opmd', 'asymre', 'rec'])
      assert.deepEqual(values(of(name, alone)), rewards, name);
    for (const name of ['grpo', 'step_wise_grpo']) {
      assert.deepEqual(values(of(name, alone)), rewards, name);
      const dropped = of(name, alone, { std_threshold: 0 });
      assert.deepEqual(values(dropped), [0, 0, 0, 0]);
      assert.deepEqual(Array.from(dropped.keptRows), [0, 0, 0, 0]);
      assert.equal(dropped.metrics.filtered_count, 4);
    }
    const one = [7, 7, 7, 7];
    assert.deepEqual(values(of('rloo', one)), [-0.9167, -0.5833, -2.5833, 4.0833]);
    assert.deepEqual(values(of('rec', one)), [-0.6875, -0.4375, -1.9375, 3.0625]);
  });

  // Rewards whose sum is not their multiple in float64: 0.1 + 0.1 + 0.1 > 3 · 0.1.
  it('equal rewards are not told apart by the rounding of their mean', () => {
    const batch = {
      shape: [3, 1] as const,
      actionMask: [1, 1, 1],
      rewards: [0.1, 0.1, 0.1],
      groupIds: [0, 0, 0],
      runIds: [0, 1, 2],
    };
    for (const name of ['grpo', 'step_wise_grpo']) {
      const { keptRows, metrics } = computed(name, { std_threshold: 0 }, batch);
      assert.deepEqual(Array.from(keptRows), [0, 0, 0], `${name}: a deviation of 0 is not above 0`);
      assert.equal(metrics['group_advantages/reward_std/max'], 0);
    }
    const { metrics } = computed('rec', { drop: 'balance' }, batch);
    assert.equal(metrics['group_advantages/drop_balance/max'], 0, 'no reward is below their mean');
  });

  it('opmd: the soft baseline does not overflow', () => {
    const batch = {
      shape: [2, 1] as const,
      actionMask: [1, 1],
      rewards: [5000, -5000],
      groupIds: [0, 0],
    };
    const { advantages } = computed('opmd', { opmd_baseline: 'logavgexp', tau: 0.5 }, batch);
    assertArray(advantages, [0.5 * Math.LN2, 0.5 * Math.LN2 - 10_000], 'advantages');
    assert.ok(Math.abs(advantages[0]! - 0.5 * Math.LN2) < 1e-6);
  });

  it('step_wise_grpo: a run is one of its group, and its reward the last one', () => {
    // Two groups that both have runs 0 and 1, interleaved.
    const batch: RewardedBatch = {
      rows: 7,
      columns: 1,
      actionMask: new Array(7).fill(1),
      rewards: [9, 1, 9, 2, 9, 5, 3],
      groupIds: [0, 0, 1, 0, 1, 1, 0],
      runIds: [0, 1, 0, 0, 0, 1, 0],
    };
    assert.deepEqual(runsOf(batch), [
      [[0, 3, 6], [1]],
      [[2, 4], [5]],
    ]);
    // The last rewards: 3 and 1 in group 0, 9 and 5 in group 1.
    const half = Math.SQRT1_2;
    const { advantages } = computed('step_wise_grpo', { enable_step_norm: true }, layOut(batch));
    assertArray(advantages, [half / 3, -half, half / 2, half / 3, half / 2, -half, half / 3], 'advantages');
  });

  it('grpo: equally likely answers are ranked as they stand', () => {
    const batch = {
      shape: [3, 2] as const,
      actionMask: [1, 1, 1, 1, 1, 1],
      oldLogprob: [-1, -2, -2, -1, -1.5, -1.5],
      rewards: [1, 1, 1],
      groupIds: [0, 0, 0],
    };
    // Ranks 0, 1, 2 leave 1, 1 − 0.3, 1 − 0.6.
    const { metrics } = computed('grpo', { rank_penalty: 0.9 }, batch);
    assertNumber(metrics['group_advantages/reward_mean/mean'], 0.7, 'mean');
    assertNumber(metrics['group_advantages/reward_std/mean'], 0.3, 'std');
    const scores = [1, 0.5, -2];
    const penalised = computed('grpo', { rank_penalty: 0.9 }, { ...batch, rewards: scores });
    const shaped = [1, 0.5 * 0.7, -2 * 0.4];
    const mean = shaped.reduce((a, b) => a + b) / 3;
    const std = Math.sqrt(shaped.reduce((a, b) => a + (b - mean) ** 2, 0) / 2);
    assertArray(
      penalised.advantages,
      scores.flatMap((score) => [(score - mean) / (std + 1e-6), (score - mean) / (std + 1e-6)]),
      'advantages',
    );
    // Of whatever length: the first of two is ranked first, and only the second is penalised.
    for (const actionMask of [
      [1, 0, 0, 1, 1, 1],
      [1, 1, 1, 1, 0, 0],
    ]) {
      const lengths = { shape: [2, 3] as const, actionMask, oldLogprob: [-1, -1, -1, -1, -1, -1] };
      const two = { ...lengths, rewards: [1, 2], groupIds: [0, 0] };
      assertNumber(
        computed('grpo', { rank_penalty: 0.5 }, two).metrics['group_advantages/reward_mean/mean'],
        (1 + 2 * 0.75) / 2,
        'mean',
      );
    }
  });
});

describe('advantages whatever the input is written as', () => {
  const batch = makeRewarded(spec);
  const laid = layOut(batch);

  it('rewards per row stand on the last unmasked token', () => {
    for (const mask of ['random', 'prefix', 'emptyrows', 'ones'] as const)
      for (const packed of [false, true]) {
        const given = makeRewarded({ ...perRowSpec, mask, packed });
        const placed = { ...given, tokenLevelRewards: tokenRewards(given) };
        const { rewards: _, ...tokenLevel } = layOut(placed);
        for (const name of OF_TOKEN_REWARDS)
          assertSameAdvantages(computed(name, {}, layOut(given)), computed(name, {}, tokenLevel as Batch));
      }
  });

  it('token-level rewards are taken before rewards per row', () => {
    const { rewards: _, ...tokenLevel } = laid;
    for (const name of OF_TOKEN_REWARDS)
      assertSameAdvantages(computed(name, {}, laid), computed(name, {}, tokenLevel as Batch));
  });

  it('ids: Int32Array, numbers and strings agree', () => {
    const ids = Array.from(batch.groupIds!, Number);
    const runs = Array.from(batch.runIds!, Number);
    const spellings: ((id: number) => number | string)[] = [
      (id) => id,
      (id) => -id - 1,
      (id) => id * 715_827_882 - 2 ** 31,
      (id) => id * 2 ** 33 + 5,
      (id) => `task ${id}`,
      (id) => ['', '0', 'constructor', '__proto__', 'é', 'z'][id]!,
    ];
    for (const name of OF_GROUPS) {
      const given = { ...laid, groupIds: Int32Array.from(ids), runIds: Int32Array.from(runs) };
      const expected = computed(name, {}, given);
      for (const spell of spellings)
        for (const spellRun of spellings) {
          const spelt = { ...laid, groupIds: ids.map(spell), runIds: runs.map(spellRun) };
          assertSameAdvantages(computed(name, {}, spelt), expected);
        }
    }
  });

  it('rewards: Float64Array, Float32Array and numbers agree', () => {
    const baselines = Array.from(batch.rewardBaselines!);
    const rewards = Array.from(batch.rewards!);
    for (const name of [...OF_ROW_REWARDS, ...OF_TOKEN_REWARDS]) {
      const { tokenLevelRewards: _, ...perRow } = laid;
      const expected = computed(name, {}, perRow as Batch);
      for (const as of [
        (x: number[]) => Float32Array.from(x),
        (x: number[]) => Float64Array.from(x),
        (x: number[]) => x,
      ])
        assertSameAdvantages(
          computed(name, {}, { ...perRow, rewards: as(rewards), rewardBaselines: as(baselines) } as Batch),
          expected,
        );
    }
  });

  it('masks: bytes, booleans and numbers agree', () => {
    const mask = Array.from(batch.actionMask, Boolean);
    const masks = [
      mask,
      mask.map(Number),
      Uint8Array.from(mask, (m) => (m ? 255 : 0)),
      Array.from({ length: batch.rows }, (_, b) => mask.slice(b * batch.columns, (b + 1) * batch.columns)),
    ];
    for (const name of NAMES)
      for (const actionMask of masks)
        assertSameAdvantages(computed(name, {}, { ...laid, actionMask } as Batch), computed(name, {}, laid));
  });

  it('compute gives what computeSync gives, and leaves the batch as it was', async () => {
    for (const packed of [false, true]) {
      const given = layOut(makeRewarded({ ...spec, packed }));
      const before = structuredClone(given);
      for (const name of NAMES) {
        const fn = create(name);
        assertSameAdvantages(await fn.compute(given), fn.computeSync(given));
      }
      assert.deepStrictEqual(given, before);
    }
  });

  it('padded or packed, the same rows give the same', () => {
    for (const name of NAMES) {
      const { shape, ...columns } = laid;
      const cuSeqlens = Int32Array.from({ length: batch.rows + 1 }, (_, b) => b * batch.columns);
      assertSameAdvantages(computed(name, {}, { ...columns, cuSeqlens } as Batch), computed(name, {}, laid));
    }
  });
});

describe('advantages under the mask', () => {
  const poisoned = (batch: RewardedBatch, keys: (keyof RewardedBatch)[], value: number): RewardedBatch => ({
    ...batch,
    ...Object.fromEntries(
      keys.map((key) => [
        key,
        Array.from(batch[key] as ArrayLike<number>, (x, i) => (batch.actionMask[i] ? x : value)),
      ]),
    ),
  });
  const unread: [string, Args, (keyof RewardedBatch)[]][] = [
    ['remax', {}, ['tokenLevelRewards']],
    ['on_policy_distill', {}, ['oldLogprob', 'teacherLogprob']],
    ['jsd', {}, ['oldLogprob', 'teacherLogprob']],
    ['jsd', { lambda_coef: 0 }, ['oldLogprob', 'teacherLogprob']],
    ['grpo', { rank_penalty: 0.7 }, ['oldLogprob']],
  ];
  for (const [name, args, keys] of unread)
    for (const packed of [false, true])
      it(`${name} ${JSON.stringify(args)}, ${packed ? 'packed' : 'padded'}: nothing of ${keys} is read`, () => {
        const batch = makeRewarded({ ...spec, packed });
        const expected = computed(name, args, layOut(batch));
        for (const value of [...HOSTILE, 1e30, -1e30])
          assertSameAdvantages(computed(name, args, layOut(poisoned(batch, keys, value))), expected);
        assertFinite(expected);
      });

  it('group and distillation advantages are exactly 0 there', () => {
    const batch = makeRewarded(spec);
    for (const name of [...OF_GROUPS, ...OF_TWO_POLICIES, 'reinforceplusplus']) {
      const { advantages } = computed(name, {}, layOut(batch));
      advantages.forEach((a, i) => {
        if (!batch.actionMask[i]) assert.equal(a + 0, 0, `${name}: advantages[${i}]`);
      });
    }
  });
});

describe('advantages of many groups', () => {
  /** `sizeOf` each group; its rows do not stand together. */
  function manyGroups(
    groups: number,
    sizeOf: (random: ReturnType<typeof generator>) => number,
  ): RewardedBatch {
    const random = generator(SEED);
    const rows = Array.from({ length: groups }, (_, id) => new Array<number>(sizeOf(random)).fill(id)).flat();
    for (let i = rows.length - 1; i > 0; i--) {
      const j = random.integer(0, i);
      [rows[i], rows[j]] = [rows[j]!, rows[i]!];
    }
    return {
      rows: rows.length,
      columns: 1,
      actionMask: rows.map(() => 1),
      oldLogprob: rows.map(() => Math.fround(-random.uniform())),
      rewards: rows.map(() => Math.fround(random.normal())),
      groupIds: rows,
      runIds: rows.map(() => random.integer(0, 3)),
    };
  }

  let many: RewardedBatch;
  let two: RewardedBatch;
  before(() => {
    many = manyGroups(100_000, ({ integer }) => integer(1, 4));
    two = manyGroups(2, () => 100_000);
  });

  const cases: [string, Args][] = [
    ['rloo', {}],
    ['grpo', { std_threshold: 0.5, rank_penalty: 0.3 }],
    ['grpo', { std_cal_level: 'batch' }],
    ['step_wise_grpo', { std_threshold: 0.5, enable_step_norm: true }],
    ['reinforce', {}],
    ['opmd', { opmd_baseline: 'logavgexp' }],
    ['asymre', {}],
    ['rec', { std_normalize: true }],
  ];
  for (const [name, args] of cases)
    it(`${name} ${JSON.stringify(args)}: 100,000 groups of random sizes, as numbers and as strings`, () => {
      const laid = layOut(many);
      const result = computed(name, args, laid);
      assertAdvantages(result, referenceAdvantages[name]!(args, many));
      const groupIds = Array.from(many.groupIds!, (id) => `prompt-${id}`);
      assertSameAdvantages(computed(name, args, { ...laid, groupIds }), result);
    });

  for (const [name, args] of cases.filter(([each]) => each !== 'rloo'))
    it(`${name} ${JSON.stringify(args)}: 200,000 rows in two groups`, () => {
      assertAdvantages(computed(name, args, layOut(two)), referenceAdvantages[name]!(args, two));
    });

  it('chance, too, over 100,000 groups', () => {
    const batch = layOut(many);
    assertFinite(computed('rec', { drop: 'balance' }, batch));
    const { copies, keptRows } = computed('grpo', { std_threshold: 0.5, duplicate_experiences: true }, batch);
    assert.equal(copies!.length, keptRows.length);
  });
});

describe('advantages on any number of threads', () => {
  let batches: Batch[];
  before(() => {
    batches = [
      { rows: 12, columns: 9000, packed: false },
      { rows: 3000, columns: 21, packed: true },
      { rows: 4, columns: 60_000, rowLengths: [60_000, 2, 30_000, 900], packed: true },
    ].map((shape) => layOut(makeRewarded({ ...spec, ...shape })));
  });
  after(() => setThreads(cpus().length));
  const cases: [string, Args][] = [
    ...NAMES.map((name): [string, Args] => [name, {}]),
    ['grpo', { std_threshold: 0.9, duplicate_experiences: true, rank_penalty: 0.2 }],
    ['rec', { drop: 'balance', std_normalize: true }],
  ];
  for (const [name, args] of cases)
    it(`${name} ${JSON.stringify(args)}`, async () => {
      for (const batch of batches) {
        const fn = create(name, args);
        setThreads(1);
        const once = fn.computeSync(batch);
        for (const threads of [1, 2, 5]) {
          setThreads(threads);
          assertSameAdvantages(fn.computeSync(batch), once);
          assertSameAdvantages(await fn.compute(batch), once);
        }
      }
    });
});

describe('chance under a seed', () => {
  // Rewards whose mean lies above most of them; every row has an unmasked token, so that its advantage is seen.
  function skewed(seed: number, rows: number, groups: number): RewardedBatch {
    const { uniform, normal, integer } = generator(seed);
    return {
      rows,
      columns: 2,
      actionMask: Array.from({ length: 2 * rows }, (_, i) => (i % 2 ? integer(0, 1) : 1)),
      rewards: Array.from({ length: rows }, () =>
        Math.fround(uniform() < 0.5 ? Math.exp(2 * normal()) : normal()),
      ),
      groupIds: Array.from({ length: rows }, () => integer(0, groups - 1)),
    };
  }
  const rewardsOf = (batch: RewardedBatch, rows: readonly number[]) => rows.map((b) => batch.rewards![b]!);
  const mean = (values: readonly number[]) => values.reduce((a, b) => a + b, 0) / values.length;

  describe("rec with drop='balance'", () => {
    const args = { drop: 'balance' };
    const zeroRows = (batch: RewardedBatch, { advantages }: AdvantageResult) =>
      new Set(Array.from({ length: batch.rows }, (_, b) => b).filter((b) => advantages[2 * b] === 0));

    it('drops the surplus of negatives from each group, and nothing else', () => {
      fc.assert(
        fc.property(
          fc.nat(),
          fc.integer({ min: 1, max: 60 }),
          fc.integer({ min: 1, max: 6 }),
          fc.boolean(),
          (seed, rows, groups, normalize) => {
            const batch = skewed(seed, rows, groups);
            const drawnArgs = { ...args, std_normalize: normalize };
            const result = create('rec', drawnArgs).computeSync(layOut(batch), { seed });
            const leftOut = zeroRows(batch, result);
            for (const ofGroup of groupsOf(batch)) {
              const average = mean(rewardsOf(batch, ofGroup));
              const negatives = ofGroup.filter((b) => batch.rewards![b]! < average);
              const dropped = ofGroup.filter((b) => leftOut.has(b));
              const surplus = ofGroup.length > 1 ? Math.max(0, 2 * negatives.length - ofGroup.length) : 0;
              // A row alone in its group has no mean to be below; one left alone has its reward for a score.
              assert.equal(dropped.length, surplus, `of ${rewardsOf(batch, ofGroup)}`);
              for (const b of dropped) assert.ok(negatives.includes(b));
            }
            assert.ok(result.keptRows.every((kept) => kept === 1));
            assertAdvantages(result, referenceAdvantages.rec!(drawnArgs, batch, leftOut));
          },
        ),
        { numRuns: 150, seed: SEED },
      );
    });

    it('the same seed drops the same, another drops others', async () => {
      const batch = skewed(SEED, 400, 12);
      const laid = layOut(batch);
      const fn = create('rec', args);
      const once = fn.computeSync(laid, { seed: 7 });
      assertSameAdvantages(fn.computeSync(laid, { seed: 7 }), once);
      assertSameAdvantages(await fn.compute(laid, { seed: 7 }), once);
      assertSameAdvantages(create('rec', { ...args, seed: 7 }).computeSync(laid), once);
      assertSameAdvantages(create('rec', { ...args, seed: 3 }).computeSync(laid, { seed: 7 }), once);
      assertSameAdvantages(fn.computeSync(laid), fn.computeSync(laid, { seed: 0 }));
      const other = fn.computeSync(laid, { seed: 8 });
      assert.notDeepEqual(zeroRows(batch, other), zeroRows(batch, once));
      assert.equal(zeroRows(batch, other).size, zeroRows(batch, once).size);
    });

    it('every negative may be dropped, each as often as any other, and groups are drawn apart', () => {
      // Two groups alike: one reward above the mean, five below; 4 of the 5 are dropped.
      const rewards = [100, 0, 1, 2, 3, 4];
      const batch = layOut({
        rows: 12,
        columns: 1,
        actionMask: new Array(12).fill(1),
        rewards: [...rewards, ...rewards],
        groupIds: [...rewards.map(() => 0), ...rewards.map(() => 1)],
      });
      const runs = 2000;
      const survived = new Array<number>(12).fill(0);
      let alike = 0;
      for (let seed = 0; seed < runs; seed++) {
        const { advantages } = create('rec', args).computeSync(batch, { seed });
        const left = Array.from(advantages.keys()).filter((b) => b % 6 && advantages[b] !== 0);
        assert.equal(left.length, 2);
        for (const b of left) survived[b]!++;
        if (left[1]! - left[0]! === 6) alike++;
      }
      // Binomial, p = 1/5: five standard deviations are 90.
      for (const b of [1, 2, 3, 4, 5, 7, 8, 9, 10, 11])
        assert.ok(Math.abs(survived[b]! - 400) < 90, `${survived}`);
      assert.ok(Math.abs(alike - 400) < 90, `${alike} of ${runs} dropped the same of both groups`);
    });
  });

  describe('grpo with duplicate_experiences', () => {
    const args = { std_threshold: 0.9, duplicate_experiences: true };

    it('copies whole kept groups, as many as were dropped', () => {
      let copied = 0;
      fc.assert(
        fc.property(
          fc.nat(),
          fc.integer({ min: 1, max: 60 }),
          fc.integer({ min: 1, max: 20 }),
          (seed, rows, groups) => {
            const batch = skewed(seed, rows, groups);
            const result = create('grpo', args).computeSync(layOut(batch), { seed });
            const plain = computed('grpo', { std_threshold: 0.9 }, layOut(batch));
            const { copies, ...rest } = result;
            assertSameAdvantages(rest, plain);
            assert.ok(copies instanceof Uint32Array);
            assert.equal(copies.length, rows);
            assertAdvantages(rest, referenceAdvantages.grpo!(args, batch));

            const all = groupsOf(batch);
            const kept = all.filter(([b]) => result.keptRows[b!]);
            let total = 0;
            for (const ofGroup of all) {
              const [first] = ofGroup;
              for (const b of ofGroup) {
                assert.equal(copies[b], copies[first!], 'rows of a group count alike');
                assert.equal(result.keptRows[b], copies[b] ? 1 : 0);
              }
              total += copies[first!]!;
            }
            assert.equal(total, kept.length ? all.length : 0, 'as many groups count as there were');
            if (kept.length && kept.length < all.length) copied++;
          },
        ),
        { numRuns: 150, seed: SEED },
      );
      assert.ok(copied > 20, 'drawn batches with nothing to copy');
    });

    it('without a threshold every row counts once, and without duplicates none is said to', () => {
      const batch = layOut(skewed(1, 30, 5));
      const { copies } = computed('grpo', { duplicate_experiences: true }, batch);
      assert.deepEqual(copies, new Uint32Array(30).fill(1));
      assert.equal(computed('grpo', { std_threshold: 0.9 }, batch).copies, undefined);
    });

    it('with no group left nothing counts', () => {
      const batch = layOut(skewed(1, 30, 5));
      const { copies, keptRows, advantages } = computed('grpo', { ...args, std_threshold: 1e9 }, batch);
      assert.deepEqual(copies, new Uint32Array(30));
      assert.deepEqual(keptRows, new Uint8Array(30));
      assert.ok(advantages.every((a) => a === 0));
    });

    it('the same seed copies the same, another copies others', async () => {
      const laid = layOut(skewed(SEED, 400, 120));
      const fn = create('grpo', args);
      const once = fn.computeSync(laid, { seed: 7 });
      assertSameAdvantages(fn.computeSync(laid, { seed: 7 }), once);
      assertSameAdvantages(await fn.compute(laid, { seed: 7 }), once);
      assertSameAdvantages(create('grpo', { ...args, seed: 7 }).computeSync(laid), once);
      assertSameAdvantages(create('grpo', { ...args, seed: 3 }).computeSync(laid, { seed: 7 }), once);
      assertSameAdvantages(fn.computeSync(laid), fn.computeSync(laid, { seed: 0 }));
      assert.notDeepEqual(fn.computeSync(laid, { seed: 8 }).copies, once.copies);
    });

    it('every kept group is drawn as often as any other, and may be drawn twice', () => {
      // Four groups of two: two are dropped, two draws are made from the other two.
      const batch = layOut({
        rows: 8,
        columns: 1,
        actionMask: new Array(8).fill(1),
        rewards: [0, 4, 1, 1, 0, 5, 2, 2],
        groupIds: [0, 0, 1, 1, 2, 2, 3, 3],
      });
      const seen = new Map<string, number>();
      const runs = 2000;
      for (let seed = 0; seed < runs; seed++) {
        const { copies } = create('grpo', args).computeSync(batch, { seed });
        const each = `${copies![0]}${copies![2]}${copies![4]}${copies![6]}`;
        seen.set(each, (seen.get(each) ?? 0) + 1);
      }
      assert.deepEqual([...seen.keys()].sort(), ['1030', '2020', '3010']);
      // Binomial, p = 1/4, 1/2, 1/4: five standard deviations are 97 and 112.
      assert.ok(
        Math.abs(seen.get('1030')! - 500) < 97 && Math.abs(seen.get('2020')! - 1000) < 112,
        `${[...seen]}`,
      );
    });
  });
});

describe('advantages refused', () => {
  const batch = makeRewarded(spec);
  const laid = layOut(batch);
  const { tokenLevelRewards: _, ...perRow } = laid;

  const isLossError =
    (code: LossErrorCode, ...says: RegExp[]) =>
    (error: unknown) => {
      assert.ok(error instanceof LossError, `${error} is no LossError`);
      assert.equal(error.code, code, error.message);
      for (const pattern of says) assert.match(error.message, pattern);
      return true;
    };
  async function refuses(name: string, args: Args, given: object, code: LossErrorCode, ...says: RegExp[]) {
    const fn = create(name, args);
    assert.throws(() => fn.computeSync(given as Batch), isLossError(code, ...says));
    // Not inside an arrow function: the call itself must come back with a promise.
    const promise = fn.compute(given as Batch);
    await assert.rejects(promise, isLossError(code, ...says));
  }
  const without = (given: object, ...keys: string[]) =>
    Object.fromEntries(Object.entries(given).filter(([key]) => !keys.includes(key)));
  /** A key in any of its spellings. */
  const spelt = (key: string, after = '') =>
    new RegExp(
      `${key.replace('old_logprob', 'old_?log_?probs?').replace('action_mask', '(action|response)_mask').replaceAll('_', '_?')}${after}`,
      'i',
    );

  describe('numbers that are none, by key and index', () => {
    const withNumber = (given: object, key: string, index: number, value: number) => {
      const column = Float64Array.from((given as Record<string, ArrayLike<number>>)[key]!);
      column[index] = value;
      return {
        ...given,
        [key]: key === 'rewards' || key === 'rewardBaselines' ? column : Float32Array.from(column),
      };
    };
    for (const value of HOSTILE) {
      for (const name of [...OF_ROW_REWARDS, ...OF_TOKEN_REWARDS])
        it(`${name}: rewards with ${value}`, async () => {
          for (const index of [0, 5, batch.rows - 1])
            await refuses(
              name,
              {},
              withNumber(perRow, 'rewards', index, value),
              'ERR_INVALID_INPUT',
              spelt('rewards', `\\[${index}\\]`),
              new RegExp(String(value)),
            );
        });

      const unmasked = unmaskedPositions(batch, 3).at(-1)!;
      const hidden = Array.from(batch.actionMask).findIndex((m, i) => !m && i > 2 * batch.columns);
      for (const [name, key, index, what] of [
        ...OF_TOKEN_REWARDS.map((each) => [each, 'token_level_rewards', unmasked, ''] as const),
        ['ppo', 'values', unmasked, ''],
        ['ppo', 'token_level_rewards', hidden, ' under the mask'],
        ['ppo', 'values', hidden, ' under the mask'],
        ['reinforceplusplus', 'token_level_rewards', hidden, ' under the mask'],
        ['rloo', 'token_level_rewards', hidden, ' under the mask'],
        ['remax', 'reward_baselines', 3, ''],
      ] as const)
        it(`${name}: ${key}${what} with ${value}`, async () => {
          const camelCase = key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
          const says = [spelt(key, `\\[${index}\\]`), new RegExp(String(value))];
          await refuses(name, {}, withNumber(laid, camelCase, index, value), 'ERR_INVALID_INPUT', ...says);
        });
    }

    it('the first of several, in a packed batch too, whatever the threads', async () => {
      const long = makeRewarded({
        ...spec,
        rows: 6,
        columns: 30_000,
        rowLengths: [9, 30_000, 4, 12_000, 1, 20_000],
        packed: true,
      });
      const given = layOut(long);
      const column = given.tokenLevelRewards as Float32Array;
      const first = 9 + 25_000;
      for (const index of [first, 9 + 30_000 + 4 + 77, column.length - 1]) column[index] = Number.NaN;
      for (const name of ['ppo', 'reinforceplusplus', 'rloo'])
        await refuses(name, {}, given, 'ERR_INVALID_INPUT', spelt('token_level_rewards', `\\[${first}\\]`));
    });

    it('a row with no unmasked token has a reward to be read all the same', async () => {
      const given = { ...perRow, actionMask: new Uint8Array(batch.rows * batch.columns) };
      for (const name of OF_ROW_REWARDS)
        await refuses(
          name,
          {},
          withNumber(given, 'rewards', 2, Number.NaN),
          'ERR_INVALID_INPUT',
          /rewards\[2\]/,
        );
    });

    it('the batch works again once it is mended', () => {
      const fn = create('grpo');
      const expected = fn.computeSync(laid);
      assert.throws(() => fn.computeSync(withNumber(laid, 'rewards', 1, Number.NaN) as Batch));
      assertSameAdvantages(fn.computeSync(laid), expected);
    });
  });

  it('missing keys', async () => {
    const camelCase = (key: string) => key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
    for (const [name, [, , keys]] of Object.entries(FUNCTIONS))
      for (const key of ['action_mask', ...keys]) {
        const given = without(laid, camelCase(key), ...(key === 'token_level_rewards' ? ['rewards'] : []));
        await refuses(name, {}, given, 'ERR_MISSING_INPUT', spelt(key));
      }
    await refuses(
      'grpo',
      { rank_penalty: 0.5 },
      without(laid, 'oldLogprob'),
      'ERR_MISSING_INPUT',
      spelt('old_logprob'),
    );
    await refuses('grpo', {}, { ...laid, groupIds: null }, 'ERR_MISSING_INPUT', spelt('group_ids'));
    await refuses('grpo', {}, without(laid, 'shape'), 'ERR_MISSING_INPUT', /shape/);
  });

  it('columns of other lengths', async () => {
    const { rows, columns } = batch;
    const tokens = rows * columns;
    const wrong: [string, string, object, number, number][] = [
      ['grpo', 'group_ids', { groupIds: new Int32Array(rows - 1) }, rows, rows - 1],
      ['grpo', 'group_ids', { groupIds: new Array(rows + 1).fill('a') }, rows, rows + 1],
      ['rloo', 'group_ids', { groupIds: new Array(rows + 1).fill(4) }, rows, rows + 1],
      ['step_wise_grpo', 'run_ids', { runIds: new Int32Array(rows + 3) }, rows, rows + 3],
      ['grpo', 'rewards', { rewards: new Float64Array(rows + 1) }, rows, rows + 1],
      ['remax', 'reward_baselines', { rewardBaselines: [1] }, rows, 1],
      ['ppo', 'token_level_rewards', { tokenLevelRewards: new Float32Array(tokens - 1) }, tokens, tokens - 1],
      ['ppo', 'values', { values: new Float32Array(tokens + 1) }, tokens, tokens + 1],
      ['jsd', 'teacher_logprob', { teacherLogprob: new Float32Array(5) }, tokens, 5],
      ['jsd', 'action_mask', { actionMask: new Uint8Array(5) }, tokens, 5],
    ];
    for (const [name, key, change, expected, came] of wrong)
      await refuses(
        name,
        {},
        { ...laid, ...change },
        'ERR_SHAPE_MISMATCH',
        spelt(key),
        new RegExp(`\\b${expected}\\b`),
        new RegExp(`\\b${came}\\b`),
      );
  });

  it('columns of other types', async () => {
    const { rows } = batch;
    const wrong: [string, string, unknown][] = [
      ['grpo', 'groupIds', 'abcdefgh'],
      ['grpo', 'groupIds', new Array(rows).fill(null)],
      ['grpo', 'groupIds', { length: rows }],
      ['step_wise_grpo', 'runIds', new Array(rows).fill({})],
      ['grpo', 'rewards', new Array(rows).fill('1')],
      ['grpo', 'rewards', 5],
      ['remax', 'rewardBaselines', 'high'],
      ['ppo', 'values', 'high'],
      ['jsd', 'teacherLogprob', new Int32Array(rows * batch.columns)],
    ];
    for (const [name, key, value] of wrong)
      await refuses(
        name,
        {},
        { ...laid, [key]: value },
        'ERR_INVALID_INPUT',
        spelt(key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)),
      );
    await refuses('grpo', {}, 7 as unknown as object, 'ERR_INVALID_INPUT', /batch/i);
  });

  it('options', () => {
    const wrong: [string, string, unknown][] = [
      ['ppo', 'gamma', '1'],
      ['ppo', 'lam', Number.NaN],
      ['reinforceplusplus', 'gamma', Number.POSITIVE_INFINITY],
      ['grpo', 'epsilon', 'small'],
      ['grpo', 'epsilon', Number.NaN],
      ['grpo', 'std_threshold', true],
      ['grpo', 'duplicate_experiences', 'yes'],
      ['grpo', 'rank_penalty', 'high'],
      ['grpo', 'std_cal_level', 'task'],
      ['grpo', 'std_cal_level', 1],
      ['grpo', 'seed', 1.5],
      ['step_wise_grpo', 'enable_step_norm', 1],
      ['step_wise_grpo', 'std_cal_level', 'run'],
      ['opmd', 'opmd_baseline', 'median'],
      ['opmd', 'tau', 0],
      ['opmd', 'tau', Number.NaN],
      ['asymre', 'baseline_shift', '0.1'],
      ['rec', 'std_normalize', 0],
      ['rec', 'drop', 'all'],
      ['rec', 'drop', true],
      ['rec', 'seed', Number.NaN],
      ['on_policy_distill', 'kl_coef', '1'],
      ['jsd', 'lambda_coef', -0.1],
      ['jsd', 'lambda_coef', 1.1],
      ['jsd', 'temperature', 0],
      ['jsd', 'kl_coef', Number.NaN],
    ];
    for (const [name, key, value] of wrong)
      assert.throws(
        () => create(name, { [key]: value }),
        isLossError('ERR_INVALID_OPTION', spelt(key)),
        `${name} ${key}`,
      );
    for (const name of NAMES)
      assert.throws(
        () => create(name, { no_such_option: 1 }),
        isLossError('ERR_INVALID_OPTION', /no_?such_?option/i),
      );
    for (const seed of [1.5, Number.NaN, '7'])
      assert.throws(
        () => create('rec', { drop: 'balance' }).computeSync(laid, { seed: seed as number }),
        isLossError('ERR_INVALID_OPTION', /seed/),
      );
  });

  it('names', () => {
    assert.throws(
      () => ADVANTAGE_FN.create('grop'),
      isLossError(
        'ERR_UNKNOWN_NAME',
        /grop/,
        /(mean|near|clos)[^.]*\bgrpo\b/i,
        ...NAMES.map((name) => new RegExp(`\\b${name}\\b`)),
      ),
    );
    assert.throws(() => ADVANTAGE_FN.get('constructor'), isLossError('ERR_UNKNOWN_NAME'));
    assert.throws(
      () => ADVANTAGE_FN.create('grpo', {}, { backend: 'verll' }),
      isLossError('ERR_UNKNOWN_NAME', /verll/),
    );
  });

  it('calls that were given up', async () => {
    for (const name of NAMES)
      await assert.rejects(
        create(name).compute(laid, { signal: AbortSignal.abort() }),
        isLossError('ERR_ABORTED'),
      );
  });
});
