/** Tests the registry of advantage functions, their keys and their default arguments. The matrix tests their results. */
import assert from 'node:assert/strict';
import { ADVANTAGE_FN, AdvantageFn, GRPOGroupedAdvantage } from '../../../lib/index.js';
import { referenceAdvantages } from '../../reference/advantages.js';
import {
  assertAdvantages,
  assertSameAdvantages,
  computed,
  create,
  FUNCTIONS,
  NAMES,
  REWARDED_TOKENS,
  WITH_RETURNS,
} from '../../support/advantages.js';
import { layOut, makeRewarded } from '../../support/draw.js';
import { ADVANTAGE_ARGUMENTS } from '../../support/draw-arguments.js';
import { advantageCases, goldenBatch } from '../../support/golden.js';

describe('advantage functions', () => {
  it('are registered under their names, with their default arguments', () => {
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

  it('list the keys that they read, under the names of the backend', () => {
    const keysWithout = (fn: AdvantageFn, mask: string) =>
      [...fn.selectKeys].filter((key) => key !== mask).sort();
    for (const [name, [, , keys]] of Object.entries(FUNCTIONS)) {
      assert.deepEqual(
        keysWithout(ADVANTAGE_FN.create(name, {}, { backend: 'tinker' }), 'action_mask'),
        [...keys].sort(),
      );
      const verlKeys = keys.map((key) => (key === 'old_logprob' ? 'old_log_probs' : key));
      assert.deepEqual(keysWithout(create(name), 'response_mask'), verlKeys.sort());
    }
    assert.deepEqual(keysWithout(create('grpo', { rank_penalty: 0.5 }), 'response_mask'), [
      'group_ids',
      'old_log_probs',
      'rewards',
    ]);
  });

  it('accept options in camelCase, and take the others from the defaults', () => {
    const batch = layOut(makeRewarded(REWARDED_TOKENS));
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

describe('advantages', () => {
  it("of functions without arguments have the reference's defaults", () => {
    const batch = makeRewarded(REWARDED_TOKENS);
    for (const name of NAMES)
      assertAdvantages(computed(name, {}, layOut(batch)), referenceAdvantages[name]!({}, batch));
  });

  it('are the returns of functions without returns of their own, and come under the keys of any backend', () => {
    for (const { fn: name, args, inputs } of advantageCases) {
      const result = create(name, args).computeSync(goldenBatch(inputs));
      assert.equal(result.returns === result.advantages, !WITH_RETURNS.includes(name));
      assert.equal(result.copies, undefined);
      const other = ADVANTAGE_FN.create(name, args, { backend: 'tinker' });
      assertSameAdvantages(other.computeSync(goldenBatch(inputs)), result);
    }
  });

  it('do not change the batch', async () => {
    const given = layOut(makeRewarded(REWARDED_TOKENS));
    const before = structuredClone(given);
    for (const name of NAMES) {
      create(name).computeSync(given);
      await create(name).compute(given);
    }
    assert.deepStrictEqual(given, before);
  });
});
