/**
 * Tests the registry of advantage functions, and their results. The results must agree with Trinity-RFT's in the golden
 * cases, and with the float64 reference's.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { ADVANTAGE_FN, AdvantageFn, type Batch, GRPOGroupedAdvantage } from '../lib/index.js';
import type { RewardedBatch } from './reference/advantage.js';
import { referenceAdvantages } from './reference/advantages.js';
import type { Args } from './reference/index.js';
import {
  assertAdvantages,
  assertSameAdvantages,
  computed,
  create,
  FUNCTIONS,
  laidOut,
  NAMES,
  OF_ROW_REWARDS,
  REWARDED_TOKENS,
  WITH_RETURNS,
} from './support/advantages.js';
import { camelCase, renamed } from './support/batch-keys.js';
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
import { assertArray, assertNumber, GROUP_RELATIVE } from './support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

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

describe('golden advantages', () => {
  const expectedOf = ({ fn, expected }: AdvantageCase) => ({
    advantages: Float64Array.from(expected.advantages.data),
    returns: Float64Array.from(expected.returns.data),
    kept: expected.kept_rows.map(Boolean),
    metrics: expected.metrics,
    magnitude: {},
    relative: OF_ROW_REWARDS.includes(fn) ? GROUP_RELATIVE : undefined,
  });
  /**
   * Converts a padded batch to a packed one. Rows keep their masked tokens, because some functions read masked values.
   */
  const packed = (inputs: Record<string, Tensor>) => {
    const { shape, ...columns } = goldenBatch(inputs);
    const [rows, length] = shape as [number, number];
    return { ...columns, cuSeqlens: Int32Array.from({ length: rows + 1 }, (_, b) => b * length) };
  };
  const VERL: Record<string, string> = { action_mask: 'response_mask', old_logprob: 'old_log_probs' };

  it('agree with the reference', () => {
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
      // Long runs of unmasked tokens, runs with a single masked token in them, and long masked ends.
      { packed: false, rows: 8, columns: 5000, mask: 'prefix', pierced: 1500 },
    ].map(({ pierced, ...shape }) => {
      const batch = makeRewarded({ ...REWARDED_TOKENS, ...(shape as Partial<RewardSpec>) });
      const actionMask = Array.from(batch.actionMask);
      if (pierced) for (let i = pierced; i < actionMask.length; i += 2 * batch.columns) actionMask[i] = 0;
      return { batch: { ...batch, actionMask }, laid: layOut({ ...batch, actionMask }) };
    });
  });

  for (const [name, args] of Object.entries(ADVANTAGE_ARGUMENTS)) {
    const reference = referenceAdvantages[name]!;

    it(`${name}: random batches`, () => {
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

    it(`${name}: a row of 100,000 tokens, alone and packed with short rows, 20,000 rows, and long runs`, async () => {
      const [drawnArgs] = fc.sample(args, { seed: SEED, numRuns: 1 }) as [Args];
      const fn = create(name, drawnArgs);
      for (const { batch, laid } of large) {
        const result = fn.computeSync(laid);
        assertAdvantages(laidOut(batch, result), reference(drawnArgs, batch));
        assertSameAdvantages(await fn.compute(laid), result);
      }
    });
  }

  it("functions without arguments have the reference's defaults", () => {
    const batch = makeRewarded(REWARDED_TOKENS);
    for (const name of NAMES)
      assertAdvantages(computed(name, {}, layOut(batch)), referenceAdvantages[name]!({}, batch));
  });
});
