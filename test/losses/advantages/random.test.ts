/**
 * Tests the random choices of advantage functions: which rows they drop or repeat, and that a seed determines the
 * choice.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { AdvantageResult } from '../../../lib/index.js';
import { groupsOf, type RewardedBatch } from '../../reference/advantage.js';
import { referenceAdvantages } from '../../reference/advantages.js';
import { assertAdvantages, assertSameAdvantages, computed, create } from '../../support/advantages.js';
import { layOut } from '../../support/draw.js';
import { generator } from '../../support/random.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

describe('random choices of advantage functions', () => {
  // Draws a batch in which most rewards lie below the mean. The first token of every row is unmasked, so its advantage
  // shows whether the row was dropped.
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

    it('drops only the surplus of rows below the mean in each group', () => {
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
              // A group of one row drops nothing, so its surplus is 0.
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

    it('the same seed drops the same rows, another seed other rows', async () => {
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

    it('every row below the mean is equally likely to be dropped, independently in each group', () => {
      // The two groups have the same rewards: one above the mean, and five below it. Of these five rows, four are
      // dropped.
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
      // Each of these rows should survive in 1/5 of the 2000 runs, which is 400. The bound 90 is five standard
      // deviations of this binomial distribution.
      for (const b of [1, 2, 3, 4, 5, 7, 8, 9, 10, 11])
        assert.ok(Math.abs(survived[b]! - 400) < 90, `${survived}`);
      assert.ok(Math.abs(alike - 400) < 90, `${alike} of ${runs} runs dropped the same rows of both groups`);
    });
  });

  describe('grpo with duplicate_experiences', () => {
    const args = { std_threshold: 0.9, duplicate_experiences: true };

    it('repeats whole remaining groups, as many as were dropped', () => {
      let repeated = 0;
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
                assert.equal(copies[b], copies[first!], 'rows of a group count equally often');
                assert.equal(result.keptRows[b], copies[b] ? 1 : 0);
              }
              total += copies[first!]!;
            }
            assert.equal(total, kept.length ? all.length : 0, 'the number of groups stays the same');
            if (kept.length && kept.length < all.length) repeated++;
          },
        ),
        { numRuns: 150, seed: SEED },
      );
      assert.ok(repeated > 20, 'most random batches have no group to repeat');
    });

    it('without a threshold every row counts once, and without duplicates the result has no `copies`', () => {
      const batch = layOut(skewed(1, 30, 5));
      const { copies } = computed('grpo', { duplicate_experiences: true }, batch);
      assert.deepEqual(copies, new Uint32Array(30).fill(1));
      assert.equal(computed('grpo', { std_threshold: 0.9 }, batch).copies, undefined);
    });

    it('counts no row if all groups are dropped', () => {
      const batch = layOut(skewed(1, 30, 5));
      const { copies, keptRows, advantages } = computed('grpo', { ...args, std_threshold: 1e9 }, batch);
      assert.deepEqual(copies, new Uint32Array(30));
      assert.deepEqual(keptRows, new Uint8Array(30));
      assert.ok(advantages.every((a) => a === 0));
    });

    it('the same seed repeats the same groups, another seed other groups', async () => {
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

    it('every remaining group is equally likely to be repeated, and may be repeated twice', () => {
      // Two of these four groups are dropped. In their place, two draws choose among the other two groups.
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
      // These results should occur in 1/4 and 1/2 of the 2000 runs, which is 500 and 1000. The bounds 97 and 112 are
      // five standard deviations of these binomial distributions.
      assert.ok(
        Math.abs(seen.get('1030')! - 500) < 97 && Math.abs(seen.get('2020')! - 1000) < 112,
        `${[...seen]}`,
      );
    });
  });
});
