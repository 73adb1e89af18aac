/** Tests that advantages depend neither on the form of the input nor on the values of masked tokens. */
import assert from 'node:assert/strict';
import type { Batch } from '../../../lib/index.js';
import { tokenRewards } from '../../reference/advantage.js';
import {
  assertSameAdvantages,
  computed,
  NAMES,
  OF_GROUPS,
  OF_ROW_REWARDS,
  OF_TOKEN_REWARDS,
  OF_TWO_POLICIES,
  REWARDED_TOKENS,
} from '../../support/advantages.js';
import { layOut, makeRewarded } from '../../support/draw.js';

describe('advantages of the same input in different forms', () => {
  const batch = makeRewarded(REWARDED_TOKENS);
  const laid = layOut(batch);

  it('rewards per row equal token-level rewards on the last unmasked token', () => {
    for (const mask of ['random', 'prefix', 'emptyrows', 'ones'] as const)
      for (const packed of [false, true]) {
        const given = makeRewarded({ ...REWARDED_TOKENS, perToken: false, mask, packed });
        const placed = { ...given, tokenLevelRewards: tokenRewards(given) };
        const { rewards: _, ...tokenLevel } = layOut(placed);
        for (const name of OF_TOKEN_REWARDS)
          assertSameAdvantages(computed(name, {}, layOut(given)), computed(name, {}, tokenLevel as Batch));
      }
  });

  it('token-level rewards take precedence over rewards per row', () => {
    const { rewards: _, ...tokenLevel } = laid;
    for (const name of OF_TOKEN_REWARDS)
      assertSameAdvantages(computed(name, {}, laid), computed(name, {}, tokenLevel as Batch));
  });

  it('ids may be an Int32Array, numbers or strings', () => {
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

  it('rewards may be a Float64Array, a Float32Array or numbers', () => {
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

  it('masks may be bytes, booleans or numbers', () => {
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
});

/** Functions that read no groups and give masked tokens the advantage 0. */
const WITHOUT_GROUPS = ['reinforceplusplus', 'verl/reinforce_plus_plus'];

describe('advantages under the mask', () => {
  it('group and distillation advantages are exactly 0', () => {
    const batch = makeRewarded(REWARDED_TOKENS);
    for (const name of [...OF_GROUPS, ...OF_TWO_POLICIES, ...WITHOUT_GROUPS]) {
      const { advantages } = computed(name, {}, layOut(batch));
      advantages.forEach((a, i) => {
        if (!batch.actionMask[i]) assert.equal(a + 0, 0, `${name}: advantages[${i}]`);
      });
    }
  });
});
