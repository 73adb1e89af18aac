/**
 * Tests what native code offers for advantages of a part of a batch: the spreads of rows before they are whitened, their
 * sum, and rows that stand for several tokens. Covers every advantage function that whitens or weighs rows by tokens.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { NativeAdvantage, NativeAdvantageBatch, NativeAdvantageCall } from '../../../binding.js';
import { native } from '../../../lib/base/native.js';
import { takeLater, takeNow } from '../../../lib/base/steps.js';
import { SPREAD_LENGTH } from '../../../lib/losses/advantage-fn.js';
import { type RewardedBatch, rowsOf, unmaskedPositions } from '../../reference/advantage.js';
import { referenceAdvantages } from '../../reference/advantages.js';
import { create, NAMES, WITH_RETURNS } from '../../support/advantages.js';
import { layOut, makeRewarded, type RewardSpec, rewardSpec } from '../../support/draw.js';
import { assertNumber, assertSameArray } from '../../support/tolerance.js';

const WHITENING = NAMES.filter((name) => create(name).definition.whitens);
const ALONG_ROWS = WHITENING.filter((name) => WITH_RETURNS.includes(name));
/** The functions of one reward per row that read how many tokens each row has. */
const WEIGHING = [...WHITENING.filter((name) => !ALONG_ROWS.includes(name)), 'verl/opo'];

const LONG: RewardSpec = {
  seed: 31,
  rows: 6,
  columns: 17_000,
  rowLengths: [1, 31, 1023, 1025, 2100, 17_000],
  values: 'moderate',
  mask: 'random',
  packed: true,
  groups: 'some',
  rewards: 'normal',
  perToken: true,
};

/** Returns the rows [first, end) of a batch. */
function rowsOfBatch(batch: RewardedBatch, first: number, end: number): RewardedBatch {
  const { rows, columns } = batch;
  const part = Object.entries(batch).map(([key, value]) => {
    if (typeof value === 'number') return [key, value];
    const each = value.length === rows ? 1 : columns;
    return [key, value.slice(each * first, each * end)];
  });
  return { ...Object.fromEntries(part), rows: end - first };
}

/** Returns the sum of all spreads, as native code adds them. */
function total(spreads: Float64Array): Float64Array {
  const sum = new Float64Array(SPREAD_LENGTH);
  native.addSpreads(spreads, sum);
  return sum;
}

/** Compares spreads with the counts, means and squared deviations of numbers. */
function assertSpread(spread: Float64Array, numbers: readonly number[], what: string): void {
  const [count, mean, squares] = spread;
  const average = numbers.length > 0 ? numbers.reduce((sum, x) => sum + x, 0) / numbers.length : 0;
  const largest = Math.max(1, ...numbers.map(Math.abs));
  assert.equal(count, numbers.length, `${what}: count`);
  assertNumber(mean, average, `${what}: mean`, largest, 1e-9);
  const expected = numbers.reduce((sum, x) => sum + (x - average) ** 2, 0);
  assertNumber(squares, expected, `${what}: squares`, largest * largest * numbers.length, 1e-9);
}

async function assertParts(name: string, spec: RewardSpec, cuts: readonly number[]): Promise<void> {
  const batch = makeRewarded(spec);
  const fn = create(name);
  const spreads = takeNow(fn.spreadsOf(layOut(batch)));
  const { returns } = referenceAdvantages[name]!({}, batch);
  // The reference of the returns is not whitened, and GAE adds the values to them.
  const gae = fn.definition.inputs.includes('values');
  const unwhitened = (at: number) => returns[at]! - (gae ? batch.values![at]! : 0);
  const numbers = rowsOf(batch).map((b) => unmaskedPositions(batch, b).map(unwhitened));
  assert.equal(spreads.length, SPREAD_LENGTH * batch.rows);
  numbers.forEach((ofRow, b) => {
    assertSpread(spreads.subarray(SPREAD_LENGTH * b, SPREAD_LENGTH * (b + 1)), ofRow, `${name}: row ${b}`);
  });
  const spread = total(spreads);
  assertSpread(spread, numbers.flat(), `${name}: all rows`);

  const whole = fn.computeSync(layOut(batch)).advantages;
  const ends = [...new Set([0, ...cuts.map((cut) => cut % (batch.rows + 1)), batch.rows])].sort(
    (a, b) => a - b,
  );
  const parts: number[] = [];
  const ofParts: number[] = [];
  for (const [i, first] of ends.slice(0, -1).entries()) {
    const part = layOut(rowsOfBatch(batch, first, ends[i + 1]!));
    ofParts.push(...(await takeLater(fn.spreadsOf(part))));
    const { computed } = await takeLater(fn.computeFor(part, undefined, true, undefined, { spread }));
    parts.push(...computed.column);
  }
  assertSameArray(parts, whole, `${name}: advantages of parts`);
  assertSameArray(ofParts, spreads, `${name}: spreads of parts`);
}

describe('advantages of parts', () => {
  for (const name of ALONG_ROWS)
    it(`${name}: the spreads are those of the reference, and whiten parts as the whole`, async () => {
      await assertParts(name, LONG, [1, 2, 5]);
      await assertParts(name, { ...LONG, perToken: false }, [3]);
      const cuts = fc.array(fc.nat(40), { maxLength: 4 });
      await fc.assert(
        fc.asyncProperty(rewardSpec, cuts, (spec, cuts) => assertParts(name, spec, cuts)),
        { numRuns: 60 },
      );
    });

  for (const name of WEIGHING)
    it(`${name}: a row with one token can stand for several tokens`, () =>
      fc.assert(
        fc.asyncProperty(rewardSpec, async (spec) => {
          const batch = makeRewarded({ ...spec, packed: false, perToken: false });
          const fn = create(name);
          const whole = fn.computeSync(layOut(batch)).advantages;
          const counts = rowsOf(batch).map((b) => unmaskedPositions(batch, b).length);
          const ofRows = {
            shape: [batch.rows, 1] as const,
            actionMask: counts.map((n) => Number(n > 0)),
            rewards: Array.from(batch.rewards!),
            groupIds: Array.from(batch.groupIds!),
          };
          const rowTokens = Float64Array.from(counts);
          const { computed } = await takeLater(
            fn.computeFor(ofRows, undefined, false, undefined, { rowTokens }),
          );
          for (const b of rowsOf(batch))
            for (const at of unmaskedPositions(batch, b))
              assert.equal(whole[at], computed.column[b], `row ${b}`);
        }),
        { numRuns: 60 },
      ));
});

describe('native calls for parts', () => {
  const rows = 3;
  const gae = native.createAdvantage({ name: 'ppo', options: { gamma: 1, lam: 1 } });
  const remax = native.createAdvantage({ name: 'remax', options: {} });
  const groups = native.createAdvantage({ name: 'verl/reinforce_plus_plus_baseline', options: {} });
  const batch = (over: object = {}): NativeAdvantageBatch => ({
    rows,
    rowLength: 2,
    offsets: undefined,
    data: [undefined, undefined, undefined, Float32Array.of(1, 2, 3, 4, 5, 6)],
    dtypes: [0, 0, 0, 0],
    mask: new Uint8Array(6).fill(1),
    expert: undefined,
    rewards: Float64Array.of(1, 2, 3),
    baselines: new Float64Array(rows),
    groups: new Int32Array(rows),
    runs: undefined,
    ...over,
  });
  const call = (
    fn: NativeAdvantage,
    batch: NativeAdvantageBatch,
    over: object = {},
  ): NativeAdvantageCall => ({
    fn,
    batch,
    advantages: new Float32Array(6),
    returns: undefined,
    scores: undefined,
    repeats: undefined,
    values: new Float64Array(0),
    notFiniteRow: new Float64Array(1),
    seed: 0,
    ...over,
  });
  const spreads = () => new Float64Array(SPREAD_LENGTH * rows);

  it('refuse arrays of another type or length', () => {
    for (const wrong of [new Float64Array(8), new Float32Array(9), [0, 0], null, 'spread', {}]) {
      for (const over of [{ spread: wrong }, { rowTokens: wrong }])
        assert.throws(() => native.advantages(call(gae, batch(over))), TypeError);
      assert.throws(() => native.advantages(call(gae, batch(), { spreads: wrong })), TypeError);
      assert.throws(() => native.addSpreads(spreads(), wrong as never), TypeError);
      const unread = wrong instanceof Float64Array ? wrong.subarray(1, 5) : wrong;
      assert.throws(() => native.addSpreads(unread as never, new Float64Array(SPREAD_LENGTH)));
    }
    for (const missing of [undefined, new Float64Array(0)])
      assert.throws(() => native.addSpreads(spreads(), missing as never), TypeError);
  });

  it('refuse calls that have neither advantages nor what can replace them', () => {
    const without = { advantages: undefined };
    assert.throws(() => native.advantages(call(gae, batch(), without)), TypeError);
    const wanted = { ...without, spreads: spreads() };
    assert.throws(() => native.advantages(call(groups, batch(), wanted)), TypeError);
    const scores = { ...without, scores: new Float32Array(rows) };
    assert.throws(() => native.advantages(call(gae, batch(), scores)), TypeError);
  });

  it('refuse devices', () => {
    for (const [given, wanted] of [
      [{ spread: new Float64Array(SPREAD_LENGTH) }, {}],
      [{ rowTokens: new Float64Array(rows) }, {}],
      [{}, { spreads: spreads() }],
    ])
      assert.throws(() => native.advantages(call(gae, batch(given), { ...wanted, device: 0 })), TypeError);
  });

  it('leave spreads alone that no function fills', () => {
    const ofRemax = spreads();
    const wanted = { advantages: undefined, spreads: ofRemax };
    assert.equal(native.advantages(call(remax, batch(), wanted)), 0);
    assert.equal(native.advantages(call(remax, batch(), { spreads: ofRemax })), 0);
    const given = { spread: total(spreads()) };
    assert.equal(native.advantages(call(gae, batch(given), wanted)), 0);
    assert.deepEqual(ofRemax, spreads());
  });

  it('compute with any numbers, and add nothing for no rows', () => {
    const odd = [NaN, Infinity, -Infinity, -1, 0, 1e308, 5e-324];
    for (const x of odd)
      for (const y of odd) {
        const spread = total(Float64Array.of(x, y, x, y, x, y));
        assert.equal(native.advantages(call(gae, batch({ spread }))), 0);
        const rowTokens = Float64Array.of(x, y, 1);
        assert.equal(native.advantages(call(groups, batch({ rowTokens }))), 0);
        assert.equal(native.advantages(call(gae, batch(), { spreads: spreads().fill(x) })), 0);
      }
    assert.deepEqual(total(new Float64Array(0)), new Float64Array(SPREAD_LENGTH));
  });

  it('say which row is not finite', () => {
    const rewards = Float64Array.of(1, NaN, 1);
    const wanted = call(gae, batch({ rewards }), { advantages: undefined, spreads: spreads() });
    assert.equal(native.advantages(wanted), 1);
    assert.equal(wanted.notFiniteRow[0], 1);
    const spread = new Float64Array(SPREAD_LENGTH);
    const whitened = call(gae, batch({ rewards, spread }));
    assert.equal(native.advantages(whitened), 1);
    assert.equal(whitened.notFiniteRow[0], 1);
  });
});
