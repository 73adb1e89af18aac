/** Tests what only verl's advantage functions have: named rewards, optional columns, and results where verl fails. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { Batch } from '../../../lib/index.js';
import type { RewardedBatch } from '../../reference/advantage.js';
import { referenceAdvantages } from '../../reference/advantages.js';
import type { Args } from '../../reference/index.js';
import {
  assertAdvantages,
  assertFinite,
  assertSameAdvantages,
  computed,
  create,
  laidOut,
  REWARDED_TOKENS,
} from '../../support/advantages.js';
import { without } from '../../support/batch-keys.js';
import { layOut, makeRewarded, rewardSpec } from '../../support/draw.js';
import { ADVANTAGE_ARGUMENTS } from '../../support/draw-arguments.js';
import { isLossError } from '../../support/loss-error.js';
import { assertArray } from '../../support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

const agrees = (name: string, args: Args, batch: RewardedBatch, given: Batch = layOut(batch)) =>
  assertAdvantages(laidOut(batch, computed(name, args, given)), referenceAdvantages[name]!(args, batch));

describe("verl/gdpo's named rewards", () => {
  const keys = ['rewards', 'reward_baselines'];
  const named = { gdpo_reward_keys: keys };
  const batch = makeRewarded(REWARDED_TOKENS);
  const laid = layOut(batch);

  it('agree with the reference on drawn batches', () => {
    fc.assert(
      fc.property(
        ADVANTAGE_ARGUMENTS['verl/gdpo']!,
        fc.constantFrom(null, [1, 0.25], [-2, 3]),
        rewardSpec,
        (args, weights, spec) =>
          agrees('verl/gdpo', { ...args, ...named, gdpo_reward_weights: weights }, makeRewarded(spec)),
      ),
      { numRuns: 100, seed: SEED },
    );
  });

  it('are read instead of token-level rewards, under keys of either case', () => {
    const result = computed('verl/gdpo', named, laid);
    assertSameAdvantages(computed('verl/gdpo', named, without(laid, 'tokenLevelRewards')), result);
    assertSameAdvantages(
      computed('verl/gdpo', { gdpo_reward_keys: ['rewards', 'rewardBaselines'] }, laid),
      result,
    );
    assert.deepEqual([...create('verl/gdpo', named).selectKeys].sort(), [
      'group_ids',
      'response_mask',
      'reward_baselines',
      'rewards',
    ]);
  });

  it('weigh 1 by default, and one weight alone has no effect but its sign', () => {
    assertSameAdvantages(
      computed('verl/gdpo', named, laid),
      computed('verl/gdpo', { ...named, gdpo_reward_weights: [1, 1] }, laid),
    );
    const one = { gdpo_reward_keys: ['rewards'] };
    assertArray(
      computed('verl/gdpo', { ...one, gdpo_reward_weights: [-4] }, laid).advantages,
      computed('verl/gdpo', one, laid).advantages.map((a) => -a),
      'advantages',
    );
  });

  it('must be given, finite and one per row', () => {
    const refuses = (given: object, code: Parameters<typeof isLossError>[0], says: RegExp) =>
      assert.throws(() => create('verl/gdpo', named).computeSync(given as Batch), isLossError(code, says));
    refuses(without(laid, 'rewardBaselines'), 'ERR_MISSING_INPUT', /reward_?baselines/i);
    refuses({ ...laid, rewards: [1] }, 'ERR_SHAPE_MISMATCH', /rewards/);
    const rewards = Array.from(batch.rewards!);
    rewards[5] = Number.NaN;
    refuses({ ...laid, rewards }, 'ERR_INVALID_INPUT', /rewards\[5\].*NaN/);
    assert.throws(
      () => create('verl/gdpo', { ...named, gdpo_reward_weights: [1] }),
      isLossError('ERR_INVALID_OPTION', /gdpo_?reward_?weights/i),
    );
  });
});

describe("verl's token baselines", () => {
  for (const name of ['verl/optimal_token_baseline', 'verl/tir_optimal_token_baseline']) {
    it(`${name}: agrees with the reference without importance weights`, () => {
      fc.assert(
        fc.property(ADVANTAGE_ARGUMENTS[name]!, rewardSpec, (args, spec) => {
          const { rolloutIsWeights: _, ...batch } = makeRewarded(spec);
          agrees(name, args, batch);
        }),
        { numRuns: 50, seed: SEED },
      );
    });

    it(`${name}: importance weights of 1 change nothing`, () => {
      const laid = layOut(makeRewarded(REWARDED_TOKENS));
      const ones = (laid.oldLogprob as Float32Array).map(() => 1);
      assertSameAdvantages(
        computed(name, {}, { ...laid, rolloutIsWeights: ones }),
        computed(name, {}, without(laid, 'rolloutIsWeights')),
      );
    });
  }

  it('compare equal columns or equal numbers of unmasked tokens', () => {
    // The energies of all tokens are 1, so a token's weight is the number of unmasked tokens up to it.
    const batch = {
      shape: [2, 3] as const,
      actionMask: [1, 1, 1, 1, 0, 1],
      tokenLevelRewards: [1, 2, 3, 4, 9, 8],
      oldLogprob: new Float32Array(6).fill(Number.NEGATIVE_INFINITY),
      sumPiSquared: new Float32Array(6),
      groupIds: [0, 0],
    };
    const of = (name: string, args: Args = {}) => computed(name, { epsilon: 1e-30, ...args }, batch);
    const columns = of('verl/optimal_token_baseline', { handle_zero_tail: false });
    // Rewards to go: 6, 5, 3 and 12, (8), 8. The baselines are 9, 5 and (3·3 + 2·8) / 5 = 5.
    assertArray(columns.advantages, [-3, 0, -2, 3, 0, 3], 'advantages');
    assertArray(columns.returns, [6, 5, 3, 12, 8, 8], 'returns');
    assertArray(of('verl/optimal_token_baseline').advantages, [-3, 0, 3, 3, 0, 3], 'zero tail');
    const packed = of('verl/tir_optimal_token_baseline');
    assertArray(packed.advantages, [-3, 5 - 6.5, 3, 3, 0, 8 - 6.5], 'unmasked tokens');
  });
});

describe("verl's advantages where verl fails", () => {
  const batch = {
    shape: [2, 2] as const,
    tokenLevelRewards: [1, 2, 3, 4],
    values: [0.5, 0.25, 0.125, 1],
    groupIds: [0, 1],
  };

  it('are 0 in a group of one row that Pass@k compares', () => {
    const { advantages } = computed('verl/grpo_passk', {}, { ...batch, actionMask: [1, 1, 1, 1] });
    assert.deepEqual(Array.from(advantages), [0, 0, 0, 0]);
  });

  it('are 0 for the only unmasked token of a batch, and for batches without any', () => {
    for (const name of [
      'verl/gae',
      'verl/reinforce_plus_plus',
      'verl/reinforce_plus_plus_baseline',
      'verl/gdpo',
    ]) {
      const one = computed(name, {}, { ...batch, actionMask: [0, 1, 0, 0] });
      assertFinite(one);
      assert.ok(Math.abs(one.advantages[1]!) < 1e-3, name);
      const none = computed(name, {}, { ...batch, actionMask: [0, 0, 0, 0] });
      assert.ok(
        none.advantages.every((a) => a === 0),
        name,
      );
    }
  });
});
