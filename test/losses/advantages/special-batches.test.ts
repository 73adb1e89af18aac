/**
 * Tests advantages of batches with special shapes and values: empty ones, fully masked ones, single rows, equal
 * rewards.
 */
import assert from 'node:assert/strict';
import type { AdvantageResult } from '../../../lib/index.js';
import { type RewardedBatch, runsOf } from '../../reference/advantage.js';
import type { Args } from '../../reference/index.js';
import { assertFinite, computed } from '../../support/advantages.js';
import { layOut } from '../../support/draw.js';
import { assertArray, assertNumber, assertSameArray } from '../../support/tolerance.js';

describe('advantages of special batches', () => {
  it('a fully masked row counts in the groups of functions of row rewards, but not in those of rloo', () => {
    const shape = [2, 2] as const;
    const masks = { shape, actionMask: [1, 1, 0, 0], groupIds: [0, 0] };
    // The rewards are equal, so a group that counts both has only advantages of 0.
    for (const name of ['grpo', 'opmd', 'rec'])
      assert.equal(computed(name, {}, { ...masks, rewards: [1, 1] }).advantages[0], 0, name);
    // The reward of a row is the reward of its last unmasked token. The second row has no such token.
    assert.equal(computed('rloo', {}, { ...masks, rewards: [1, 1] }).advantages[0], 1);
    // Rewards per token count even if the tokens are masked.
    assert.equal(computed('rloo', {}, { ...masks, tokenLevelRewards: [0, 1, 0, 1] }).advantages[0], 0);
  });

  it('whitening: a single unmasked token has advantage 0, and a fully masked batch has only zeros', () => {
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
      // The mask has no effect on returns, so both batches must have the same ones.
      assertSameArray(none.returns, one.returns, 'returns');
    }
  });

  it('whitening: equal unmasked tokens have advantage 0', () => {
    // Neither 1/3 nor its discounted values are exact in float32.
    const rows = 5;
    const rewards = new Array(rows).fill(1 / 3);
    const mask = Array.from({ length: rows }, () => [1, 0, 0]);
    const tokenLevelRewards = mask.map(() => [0, 0, 1 / 3]);
    const values = mask.map(() => [0.1, 0.2, 0.3]);
    for (const name of ['ppo', 'reinforceplusplus']) {
      const batch = { shape: [rows, 3] as const, actionMask: mask, rewards, tokenLevelRewards, values };
      const { advantages } = computed(name, { gamma: 0.9 }, batch);
      // Whitening divides rounding errors by sqrt(1e-8). The bound 1e-9 allows for errors of float64, which are about
      // 1e-16, but not for errors of float32.
      for (let b = 0; b < rows; b++)
        assert.ok(Math.abs(advantages[3 * b]!) < 1e-9, `${name}: ${advantages[3 * b]}`);
    }
  });

  it('groups of one row, and one group of all rows', () => {
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

  // In float64, (0.1 + 0.1 + 0.1) / 3 is greater than 0.1. So a mean that is computed in this way differs from the
  // rewards.
  it('equal rewards have deviation 0 in spite of rounding', () => {
    const batch = {
      shape: [3, 1] as const,
      actionMask: [1, 1, 1],
      rewards: [0.1, 0.1, 0.1],
      groupIds: [0, 0, 0],
      runIds: [0, 1, 2],
    };
    for (const name of ['grpo', 'step_wise_grpo']) {
      const { keptRows, metrics } = computed(name, { std_threshold: 0 }, batch);
      assert.deepEqual(
        Array.from(keptRows),
        [0, 0, 0],
        `${name}: a deviation of 0 does not exceed a threshold of 0`,
      );
      assert.equal(metrics['group_advantages/reward_std/max'], 0);
    }
    const { metrics } = computed('rec', { drop: 'balance' }, batch);
    assert.equal(metrics['group_advantages/drop_balance/max'], 0, 'no reward is below the mean');
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

  it('step_wise_grpo: a run belongs to one group, and its reward is that of its last row', () => {
    // The rows of the two groups are mixed, and each group has a run 0 and a run 1.
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
    // The last rewards of runs 0 and 1 are 3 and 1 in group 0, and 9 and 5 in group 1.
    const half = Math.SQRT1_2;
    const { advantages } = computed('step_wise_grpo', { enable_step_norm: true }, layOut(batch));
    assertArray(advantages, [half / 3, -half, half / 2, half / 3, half / 2, -half, half / 3], 'advantages');
  });

  it('grpo: equally likely answers are ranked in the order of their rows', () => {
    const batch = {
      shape: [3, 2] as const,
      actionMask: [1, 1, 1, 1, 1, 1],
      oldLogprob: [-1, -2, -2, -1, -1.5, -1.5],
      rewards: [1, 1, 1],
      groupIds: [0, 0, 0],
    };
    // The penalty multiplies the rewards of ranks 0, 1 and 2 by 1, 1 − 0.3 and 1 − 0.6.
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
    // Row lengths do not affect the ranks. Whichever of the two rows is longer, only the second is penalised.
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
