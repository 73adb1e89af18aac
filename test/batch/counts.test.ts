/**
 * Tests count(), sumCounts() and the errors of normalizers. With counts of rows and tokens, the results of
 * micro-batches can be combined.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { type Batch, type Counts, type Normalizer, sumCounts } from '../../lib/index.js';
import { type RewardedBatch, unmaskedPositions } from '../reference/advantage.js';
import { rowPositions } from '../reference/batch.js';
import type { Args } from '../reference/index.js';
import { takeRows } from '../reference/objective.js';
import { type Countable, countable, objective } from '../support/countable.js';
import { layOut, makeBatch } from '../support/draw.js';
import { fitting } from '../support/draw-arguments.js';
import { everyRow, oneOfEach, specs } from '../support/functions.js';
import { isLossError } from '../support/loss-error.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

describe('counts', () => {
  function countsOf(batch: RewardedBatch, countsExperts: boolean): Counts {
    const counts: Counts = { tokens: 0, rows: 0, columns: 0 };
    const expert = { tokens: 0, rows: 0 };
    for (const b of everyRow(batch)) {
      const tokens = unmaskedPositions(batch, b).length;
      counts.tokens += tokens;
      counts.rows += 1;
      counts.columns = Math.max(counts.columns, [...rowPositions(batch, b)].length);
      if (!batch.expertMask![b]) continue;
      expert.tokens += tokens;
      expert.rows += 1;
    }
    return countsExperts ? { ...counts, expert } : counts;
  }
  const COUNT_EXPERTS = ['policy mix', 'policy mix_chord', 'entropy mix'];
  // Losses of rewards read no tokens, so they count only rows.
  for (const { family, name, args } of oneOfEach().filter((each) => each.family !== 'reward'))
    it(`${family} ${name}: agree with a loop over the rows`, () =>
      fc.assert(
        fc.asyncProperty(specs, async (spec) => {
          const batch = makeBatch(fitting(name, args, spec));
          const expected = countsOf(batch, COUNT_EXPERTS.includes(`${family} ${name}`));
          const fn = countable(family, name, args);
          assert.deepEqual(fn.countSync(layOut(batch)), expected);
          assert.deepEqual(await fn.count(layOut(batch)), expected);
        }),
        { numRuns: 25, seed: SEED },
      ));

  it('objectives count experts if their policy or entropy loss does', async () => {
    const batch = makeBatch({
      seed: 1,
      rows: 7,
      columns: 9,
      values: 'moderate',
      mask: 'random',
      packed: false,
    });
    for (const [algorithm, config, withExperts] of [
      ['grpo', {}, false],
      ['mix', {}, true],
      ['mix_chord', {}, true],
      ['grpo', { entropy_loss_fn: 'mix' }, true],
      ['mix', { policy_loss_fn: 'ppo', entropy_loss_fn: 'default' }, false],
    ] as [string, Args, boolean][]) {
      const fn = objective(algorithm, config);
      assert.deepEqual(fn.countSync(layOut(batch)), countsOf(batch, withExperts));
      assert.deepEqual(await fn.count(layOut(batch)), countsOf(batch, withExperts));
    }
  });

  it('masks of every type, under every name', async () => {
    const batch = makeBatch({
      seed: 2,
      rows: 5,
      columns: 31,
      values: 'moderate',
      mask: 'random',
      packed: false,
    });
    const mask = Array.from(batch.actionMask, Boolean);
    const nested = everyRow(batch).map((b) => mask.slice(31 * b, 31 * (b + 1)));
    const expert = Array.from(batch.expertMask!, Boolean);
    const { actionMask: _a, expertMask: _e, ...rest } = layOut(batch);
    for (const actionMask of [
      Uint8Array.from(mask, Number),
      Uint8Array.from(mask, (m) => (m ? 200 : 0)),
      mask,
      mask.map(Number),
      nested,
      nested.map((row) => row.map(Number)),
    ])
      for (const expertMask of [expert, expert.map(Number), Uint8Array.from(expert, (m) => (m ? 255 : 0))])
        for (const given of [
          { actionMask, expertMask },
          { action_mask: actionMask, expert_mask: expertMask },
          { response_mask: actionMask, expertMask },
        ]) {
          const laid = { ...rest, ...given } as Batch;
          for (const [family, name] of [
            ['policy', 'mix'],
            ['policy', 'ppo'],
            ['kl', 'k3'],
            ['entropy', 'mix'],
          ] as const) {
            const fn = countable(family, name, {});
            const expected = countsOf(batch, name === 'mix');
            assert.deepEqual(fn.countSync(laid), expected);
            assert.deepEqual(await fn.count(laid), expected);
          }
        }
  });

  it('many tokens', async () => {
    for (const shape of [
      { packed: false, rows: 5, columns: 20_000 },
      { packed: true, rows: 4, columns: 70_000, rowLengths: [1, 70_000, 7, 30_000] },
    ]) {
      const batch = makeBatch({ seed: 4, values: 'moderate', mask: 'random', ...shape });
      const fn = countable('policy', 'mix', {});
      assert.deepEqual(fn.countSync(layOut(batch)), countsOf(batch, true));
      assert.deepEqual(await fn.count(layOut(batch)), countsOf(batch, true));
    }
  });

  it('empty batches', () => {
    const empty = { shape: [0, 5] as const, actionMask: new Uint8Array(0), logprob: new Float32Array(0) };
    const counts = countable('policy', 'sft', {}).countSync(empty);
    assert.deepEqual({ tokens: counts.tokens, rows: counts.rows }, { tokens: 0, rows: 0 });
    assert.deepEqual(sumCounts([]), { tokens: 0, rows: 0, columns: 0 });
  });

  it('sumCounts refuses more parts than a batch can have', () => {
    const part = { tokens: 1, rows: 1, columns: 1 };
    const claims = new Proxy([part], {
      get: (of, key) => (key === 'length' ? 2 ** 53 - 1 : Reflect.get(of, key)),
    });
    function* endless() {
      for (;;) yield part;
    }
    for (const parts of [claims, endless()])
      assert.throws(
        () => sumCounts(parts),
        isLossError('ERR_INVALID_INPUT', /at most 1048576 parts, got more/),
      );
  });

  it('sumCounts adds tokens, rows and experts of any iterable, and keeps the largest columns', () => {
    const parts: Counts[] = [
      { tokens: 5, rows: 2, columns: 7, expert: { tokens: 1, rows: 1 } },
      { tokens: 8, rows: 3, columns: 4, expert: { tokens: 8, rows: 3 } },
      { tokens: 0, rows: 1, columns: 11, expert: { tokens: 0, rows: 0 } },
    ];
    const before = structuredClone(parts);
    const expected = { tokens: 13, rows: 6, columns: 11, expert: { tokens: 9, rows: 4 } };
    assert.deepEqual(sumCounts(parts), expected);
    assert.deepEqual(sumCounts(new Set(parts)), expected);
    assert.deepEqual(sumCounts(parts), expected, 'a second time');
    assert.deepEqual(parts, before);
    assert.deepEqual(sumCounts(parts.map(({ expert: _, ...part }) => part)), {
      tokens: 13,
      rows: 6,
      columns: 11,
    });
  });
});

describe('errors of normalizers', () => {
  const batch = makeBatch({
    seed: 5,
    rows: 4,
    columns: 8,
    values: 'moderate',
    mask: 'random',
    packed: false,
  });
  const laid = layOut(batch);
  async function refuses(fn: Countable, normalizer: unknown, ...says: RegExp[]): Promise<void> {
    const given = normalizer as Normalizer;
    assert.throws(() => fn.sync(laid, given), isLossError('ERR_INVALID_OPTION', /normalizer/, ...says));
    const promise = fn.async(laid, given);
    await assert.rejects(promise, isLossError('ERR_INVALID_OPTION', /normalizer/, ...says));
  }
  const functions: [string, () => Countable][] = [
    ['a policy loss', () => countable('policy', 'ppo', {})],
    ['a KL loss', () => countable('kl', 'k2', {})],
    ['an entropy loss', () => countable('entropy', 'default', {})],
    ['an objective', () => objective('grpo', {})],
  ];

  for (const [what, make] of functions)
    it(`${what}: counts of wrong types, negative and missing counts`, async () => {
      const fn = make();
      for (const wrong of [7, 'all', true, [], {}]) await refuses(fn, wrong);
      for (const count of [-1, 2.5, 1e308, Number.NaN, Number.POSITIVE_INFINITY, '12', null]) {
        await refuses(fn, { tokens: count, rows: 4 }, /tokens/);
        await refuses(fn, { tokens: 32, rows: count }, /rows/);
        if (count !== null) await refuses(fn, { tokens: 32, rows: 4, columns: count }, /columns/);
      }
    });

  for (const [what, make] of [
    ['policy mix', () => countable('policy', 'mix', {})],
    ['policy mix_chord', () => countable('policy', 'mix_chord', {})],
    ['entropy mix', () => countable('entropy', 'mix', {})],
    ['the objective of mix', () => objective('mix', {})],
  ] as const)
    it(`${what}: missing and wrong counts of experts`, async () => {
      const fn = make();
      const { expert: _, ...without } = fn.countSync(laid);
      await refuses(fn, without, /expert/);
      for (const count of [-1, Number.NaN, '1']) {
        await refuses(fn, { ...without, expert: { tokens: count, rows: 1 } }, /expert/, /tokens/);
        await refuses(fn, { ...without, expert: { tokens: 1, rows: count } }, /expert/, /rows/);
      }
      await refuses(fn, { ...without, expert: 3 }, /expert/);
    });

  for (const [what, make] of functions)
    it(`${what}: counts less than those of the part, or that contradict each other`, async () => {
      const fn = make();
      const own = fn.countSync(laid);
      for (const key of ['tokens', 'rows', 'columns'] as const)
        for (const count of [0, own[key] - 1])
          await refuses(fn, { ...own, [key]: count }, /expected at (least|most) \d+/);
      await refuses(fn, { tokens: 0, rows: 0, columns: 0 }, /at least/);
      await refuses(fn, { tokens: 33, rows: 4, columns: 8 }, /tokens.*at most 32/);
      const larger = { tokens: own.tokens + 1, rows: own.rows + 1, columns: own.columns + 1 };
      for (const accepted of [own, larger, { tokens: own.tokens, rows: own.rows }])
        assert.ok(Number.isFinite((await fn.async(laid, accepted)).loss));
    });

  for (const [what, make] of functions)
    it(`${what}: the own counts of a batch without rows or unmasked tokens`, async () => {
      const fn = make();
      const masked = { ...laid, actionMask: new Uint8Array(32) };
      const empty = Object.fromEntries(
        Object.entries(laid).map(([key, value]) => [
          key,
          key === 'shape' ? [0, 8] : (value as Float32Array).slice(0, 0),
        ]),
      ) as Batch;
      for (const batch of [masked, empty]) {
        const own = fn.countSync(batch);
        assert.equal(own.tokens, 0);
        assert.equal(Math.abs((await fn.async(batch, own)).loss), 0);
        assert.equal(Math.abs(fn.sync(batch, own).loss), 0);
      }
    });

  it('fewer rows of experts or of the policy than the part has', async () => {
    const fn = countable('policy', 'mix', {});
    const own = fn.countSync(laid);
    const { tokens, rows } = own.expert!;
    for (const [key, count] of Object.entries({ tokens, rows })) {
      await refuses(fn, { ...own, expert: { ...own.expert, [key]: count - 1 } }, /expert.*at least/);
      await refuses(
        fn,
        { ...own, expert: { ...own.expert, [key]: count + 1 } },
        new RegExp(`${key}.*at least`),
      );
    }
  });

  it('counts of a batch from which the advantage function drops rows', async () => {
    const fn = objective('grpo', { advantage_fn_args: { std_threshold: 1e-6 } });
    const { advantages: _, ...rest } = laid;
    const rewarded = { ...rest, rewards: [1, 1, 0, 1], groupIds: [0, 0, 1, 1] } as Batch;
    const own = fn.countSync(rewarded);
    assert.equal(own.rows, 2);
    assert.ok(Number.isFinite(fn.sync(rewarded, own).loss));
    assert.throws(
      () => fn.sync(rewarded, { ...own, rows: 1, columns: 100 }),
      isLossError('ERR_INVALID_OPTION', /rows.*2/),
    );
  });

  it('dpo without pairs accepts no parts', async () => {
    const fn = countable('policy', 'dpo', { pairwise: false });
    await refuses(fn, fn.countSync(laid), /pairwise|pairs/);
    const config = { policy_loss_fn_args: { pairwise: false } };
    await refuses(objective('dpo', config), fn.countSync(laid), /pairwise|pairs/);
  });

  it('dpo with pairs accepts no part that ends within a pair', () => {
    const fn = countable('policy', 'dpo', {});
    const part = layOut(takeRows(batch, [0, 1, 2]));
    assert.throws(() => fn.sync(part, fn.countSync(laid)), isLossError('ERR_SHAPE_MISMATCH', /even|pair/));
  });
});
