/**
 * Micro-batches: a batch cut into parts, each computed with the counts of the whole, adds up to the whole: losses,
 * metrics and gradients, of every function under every aggregation, wherever the cuts are. And counts, against a loop.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  type Batch,
  type Counts,
  ENTROPY_LOSS_FN,
  KL_FN,
  LossError,
  type LossErrorCode,
  type Normalizer,
  POLICY_LOSS_FN,
  sumCounts,
} from '../lib/index.js';
import { groupsOf, type RewardedBatch, unmaskedPositions } from './reference/advantage.js';
import { rowPositions } from './reference/batch.js';
import type { Args } from './reference/index.js';
import { takeRows } from './reference/objective.js';
import {
  AGGREGATIONS,
  ARGUMENTS,
  type BatchSpec,
  everyFunction,
  fitting,
  layOut,
  makeBatch,
  makeRewarded,
  type RewardSpec,
} from './support/draw.js';
import { generator } from './support/random.js';
import type { Family } from './support/subject.js';
import { assertSameArray } from './support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
/** What float32 terms leave, whatever the order they are summed in. */
const RELATIVE = 1e-6;
/** The metrics that are no sums. */
const NO_SUMS = ['kl_coef', 'mu'];
/** Every gradient that a function may have. */
const GRADIENTS = ['grad', 'gradEntropy'] as const;

interface Computed {
  loss: number;
  metrics: Record<string, number>;
  grad?: Float32Array;
  gradEntropy?: Float32Array;
}
/** What all function objects have in common, and objectives with them. */
interface Countable {
  sync(batch: Batch, normalizer?: Normalizer): Computed;
  async(batch: Batch, normalizer?: Normalizer): Promise<Computed>;
  countSync(batch: Batch): Counts;
  count(batch: Batch): Promise<Counts>;
}

function countable(family: Family, name: string, args: Args): Countable {
  const { loss_agg_mode, ...own } = args;
  const lossAggMode = loss_agg_mode as 'token-mean';
  const given = (normalizer: Normalizer | undefined) => ({
    grad: true,
    ...(normalizer ? { normalizer } : {}),
  });
  if (family === 'policy') {
    const fn = POLICY_LOSS_FN.create(name, args);
    return {
      sync: (batch, normalizer) => fn.computeSync(batch, given(normalizer)) as Computed,
      async: (batch, normalizer) => fn.compute(batch, given(normalizer)) as Promise<Computed>,
      countSync: (batch) => fn.countSync(batch),
      count: (batch) => fn.count(batch),
    };
  }
  if (family === 'kl') {
    const fn = KL_FN.create(name, own);
    return {
      sync: (batch, normalizer) =>
        fn.calculateKlLossSync(batch, { lossAggMode, ...given(normalizer) }) as Computed,
      async: (batch, normalizer) =>
        fn.calculateKlLoss(batch, { lossAggMode, ...given(normalizer) }) as Promise<Computed>,
      countSync: (batch) => fn.countSync(batch),
      count: (batch) => fn.count(batch),
    };
  }
  const fn = ENTROPY_LOSS_FN.create(name, own);
  return {
    sync: (batch, normalizer) => fn.computeSync(batch, { lossAggMode, ...given(normalizer) }) as Computed,
    async: (batch, normalizer) =>
      fn.compute(batch, { lossAggMode, ...given(normalizer) }) as Promise<Computed>,
    countSync: (batch) => fn.countSync(batch),
    count: (batch) => fn.count(batch),
  };
}

function objective(algorithm: string, config: Args): Countable {
  const made = ALGORITHM_TYPE.get(algorithm).objective(config);
  const given = (normalizer: Normalizer | undefined) => ({
    grad: true,
    ...(normalizer ? { normalizer } : {}),
  });
  return {
    sync: (batch, normalizer) => made.computeSync(batch, given(normalizer)) as Computed,
    async: (batch, normalizer) => made.compute(batch, given(normalizer)) as Promise<Computed>,
    countSync: (batch) => made.countSync(batch),
    count: (batch) => made.count(batch),
  };
}

/** Units of rows that stay together, dealt to 1 … as many parts as there are; none stays empty. */
function deal(units: readonly (readonly number[])[], seed: number): number[][] {
  const { integer } = generator(seed);
  const parts = Array.from({ length: integer(1, units.length) }, (): number[] => []);
  const shuffled = [...units];
  for (let i = shuffled.length - 1; i > 0; i--) {
    const j = integer(0, i);
    [shuffled[i], shuffled[j]] = [shuffled[j]!, shuffled[i]!];
  }
  shuffled.forEach((unit, i) => {
    parts[i < parts.length ? i : integer(0, parts.length - 1)]!.push(...unit);
  });
  return parts.map((rows) => rows.sort((a, b) => a - b));
}

/** Rows one by one; dpo's by pairs. */
function unitsOf(name: string, batch: RewardedBatch): number[][] {
  const size = name === 'dpo' ? 2 : 1;
  return Array.from({ length: batch.rows / size }, (_, i) =>
    Array.from({ length: size }, (_, k) => size * i + k),
  );
}

/** A part's gradient put where its rows are in the whole batch, B×T. */
function place(batch: RewardedBatch, rows: readonly number[], part: Float32Array, whole: Float64Array): void {
  let at = 0;
  for (const b of rows) for (const position of rowPositions(batch, b)) whole[position] = part[at++]!;
  assert.equal(at, part.length, 'length of a part of the gradient');
}

/** Every function once, under the first of its aggregations. */
function oneOfEach() {
  const all = everyFunction(1);
  return all.filter(
    (each, i) => all.findIndex(({ family, name }) => family === each.family && name === each.name) === i,
  );
}

const everyRow = (batch: RewardedBatch) => Array.from({ length: batch.rows }, (_, b) => b);

function addsUp(
  fn: Countable,
  batch: RewardedBatch,
  parts: number[][],
  unsummed: readonly string[] = [],
): void {
  const laid = layOut(batch);
  const whole = fn.sync(laid);
  const laidParts = parts.map((rows) => layOut(takeRows(batch, rows)));
  const normalizer = sumCounts(laidParts.map((part) => fn.countSync(part)));
  assert.deepEqual(normalizer, fn.countSync(laid));
  const computed = laidParts.map((part) => fn.sync(part, normalizer));

  const close = (values: number[], expected: number, what: string) => {
    const sum = values.reduce((a, b) => a + b, 0);
    const bound =
      RELATIVE *
      Math.max(
        1,
        values.reduce((a, b) => a + Math.abs(b), 0),
      );
    assert.ok(
      Math.abs(sum - expected) <= bound,
      `${what}: ${values} sum to ${sum}, not to ${expected} ± ${bound.toExponential(2)}`,
    );
  };
  close(
    computed.map((part) => part.loss),
    whole.loss,
    'loss',
  );
  for (const [name, value] of Object.entries(whole.metrics)) {
    if (unsummed.includes(name)) continue;
    if (NO_SUMS.includes(name)) for (const part of computed) assert.equal(part.metrics[name], value, name);
    // A kind of rows that a part lacks adds nothing to it, and may have no metrics there.
    else
      close(
        computed.map((part) => part.metrics[name] ?? 0),
        value,
        name,
      );
  }
  for (const part of computed)
    for (const name of Object.keys(part.metrics))
      assert.ok(name in whole.metrics, `${name} is of a part alone`);

  for (const key of GRADIENTS) {
    const grad = whole[key];
    if (!grad) {
      for (const part of computed) assert.equal(part[key], undefined);
      continue;
    }
    const [expected, sum] = [0, 0].map(() => new Float64Array(batch.rows * batch.columns)) as [
      Float64Array,
      Float64Array,
    ];
    place(batch, everyRow(batch), grad, expected);
    parts.forEach((rows, i) => {
      place(batch, rows, computed[i]![key]!, sum);
    });
    const largest = expected.reduce((most, g) => Math.max(most, Math.abs(g)), 0);
    sum.forEach((g, i) => {
      if (!(Math.abs(g - expected[i]!) <= RELATIVE * largest))
        assert.fail(`${key}[${i}] is ${g}, not ${expected[i]} (largest ${largest})`);
    });
  }
}

// Values at which a loss's terms do not dwarf their sum: bounds are in terms of the sums.
const specs: fc.Arbitrary<BatchSpec> = fc.record({
  seed: fc.nat(),
  rows: fc.integer({ min: 1, max: 12 }),
  columns: fc.integer({ min: 1, max: 70 }),
  values: fc.constantFrom('moderate', 'onpolicy'),
  mask: fc.constantFrom('ones', 'prefix', 'random', 'emptyrows', 'zero'),
  packed: fc.boolean(),
});

describe('micro-batches add up to the whole', () => {
  for (const family of ['policy', 'kl', 'entropy'] as const)
    for (const [name, args] of Object.entries(ARGUMENTS[family]))
      it(`${family} ${name}: drawn batches, arguments and cuts`, () => {
        // Without pairs dpo is one margin of the whole batch.
        const divisible = args.map((drawn) => (name === 'dpo' ? { ...drawn, pairwise: true } : drawn));
        fc.assert(
          fc.property(divisible, specs, fc.nat(), (drawnArgs, spec, cut) => {
            const batch = makeBatch(fitting(name, drawnArgs, spec));
            addsUp(countable(family, name, drawnArgs), batch, deal(unitsOf(name, batch), cut));
          }),
          { numRuns: 120, seed: SEED },
        );
      });

  it('every function under every aggregation, row by row', () => {
    for (const { family, name, args } of everyFunction(2)) {
      const divisible = name === 'dpo' ? { ...args, pairwise: true } : args;
      for (const packed of [false, true]) {
        const spec = { seed: 77, rows: 8, columns: 33, values: 'moderate', mask: 'random', packed } as const;
        const batch = makeBatch(spec);
        addsUp(countable(family, name, divisible), batch, unitsOf(name, batch));
      }
    }
  });

  for (const name of ['mix', 'mix_chord'])
    it(`${name}: parts of one kind of rows, with dynamic and static batch sizes`, () => {
      const kind = (batch: RewardedBatch, expert: boolean) =>
        everyRow(batch).filter((b) => Boolean(batch.expertMask![b]) === expert);
      for (const use_dynamic_bsz of [true, false])
        for (const sft_loss_agg_mode of AGGREGATIONS)
          for (const grpo_loss_agg_mode of AGGREGATIONS) {
            const args = {
              clip_range: 0.2,
              use_dynamic_bsz,
              sft_loss_agg_mode,
              grpo_loss_agg_mode,
              ppo_mini_batch_size: 8,
              ppo_micro_batch_size_per_gpu: 2,
              train_batch_size_usual: 6,
              train_batch_size_expert: 2,
            };
            const spec = { seed: 8, rows: 9, columns: 14, values: 'moderate', mask: 'random' } as const;
            const batch = makeBatch({ ...spec, packed: use_dynamic_bsz });
            const parts = [kind(batch, true), kind(batch, false)];
            assert.ok(parts.every((rows) => rows.length > 0));
            addsUp(countable('policy', name, args), batch, parts);
          }
    });

  it('long rows, cut from short ones', () => {
    const rowLengths = [3, 20_000, 17, 9000, 1, 64];
    const spec = { seed: 9, rows: 6, columns: 20_000, values: 'moderate', mask: 'random' } as const;
    const batch = makeBatch({ ...spec, packed: true, rowLengths });
    for (const { family, name, args } of oneOfEach()) {
      const divisible = name === 'dpo' ? { ...args, pairwise: true } : args;
      addsUp(countable(family, name, divisible), batch, deal(unitsOf(name, batch), 4));
    }
  });

  it('compute gives what computeSync gives, and a whole is its own part', async () => {
    const spec = {
      seed: 10,
      rows: 6,
      columns: 30,
      values: 'moderate',
      mask: 'random',
      packed: true,
    } as const;
    // The part below does not have the longest row, so that its T is not the whole's.
    const batch = makeBatch({ ...spec, rowLengths: [30, 5, 12, 7, 9, 21] });
    const laid = layOut(batch);
    for (const { family, name, args } of everyFunction(1)) {
      const divisible = name === 'dpo' ? { ...args, pairwise: true } : args;
      const fn = countable(family, name, divisible);
      addsUp(fn, batch, [everyRow(batch)]);
      const part = layOut(takeRows(batch, [2, 3]));
      const normalizer = fn.countSync(laid);
      const [now, later] = [fn.sync(part, normalizer), await fn.async(part, normalizer)];
      assert.deepStrictEqual(
        { loss: later.loss, metrics: later.metrics },
        { loss: now.loss, metrics: now.metrics },
      );
      assertSameArray(later.grad!, now.grad!, 'grad');
      assert.notEqual(now.loss, fn.sync(part).loss || 1, `${name}: the normalizer makes no difference`);
    }
  });

  it('without columns a part has its own', () => {
    const args = { loss_agg_mode: 'seq-mean-token-sum-norm' };
    const fn = countable('policy', 'sft', args);
    const rowLengths = [4, 9, 25, 7];
    const spec = { seed: 3, rows: 4, columns: 25, values: 'moderate', mask: 'ones' } as const;
    const packed = makeBatch({ ...spec, packed: true, rowLengths });
    const [whole, part] = [layOut(packed), layOut(takeRows(packed, [0, 1]))];
    const { columns, ...normalizer } = fn.countSync(whole);
    assert.equal(columns, 25);
    const own = fn.sync(part, normalizer).loss;
    const shared = fn.sync(part, { ...normalizer, columns }).loss;
    assert.ok(Math.abs(own * 9 - shared * 25) < 1e-5 && Math.abs(shared) > 0.1);

    // Padded rows all have the whole's.
    const padded = makeBatch({ ...spec, packed: false });
    const { columns: _, ...counts } = fn.countSync(layOut(padded));
    const first = layOut(takeRows(padded, [0, 1]));
    assert.equal(fn.sync(first, counts).loss, fn.sync(first, { ...counts, columns: 25 }).loss);
  });
});

describe('micro-batches of objectives add up to the whole', () => {
  const KLS = Object.keys(ARGUMENTS.kl);
  const ENTROPIES = Object.keys(ARGUMENTS.entropy);

  for (const [name, args] of Object.entries(ARGUMENTS.policy))
    it(`${name} with KL and entropy, advantages given`, () => {
      const divisible = args.map((drawn) => (name === 'dpo' ? { ...drawn, pairwise: true } : drawn));
      fc.assert(
        fc.property(
          divisible,
          specs,
          fc.constantFrom(...KLS),
          fc.constantFrom(...ENTROPIES),
          fc.constantFrom(...AGGREGATIONS),
          fc.nat(),
          (policy_loss_fn_args, spec, kl_loss_fn, entropy_loss_fn, loss_agg_mode, cut) => {
            const batch = makeBatch(fitting(name, policy_loss_fn_args, spec));
            const config = {
              policy_loss_fn: name,
              policy_loss_fn_args,
              kl_loss_fn,
              kl_loss_fn_args: { kl_coef: 0.3 },
              entropy_loss_fn,
              entropy_loss_fn_args: { entropy_coef: 0.2 },
              loss_agg_mode,
            };
            addsUp(objective('ppo', config), batch, deal(unitsOf(name, batch), cut));
          },
        ),
        { numRuns: 60, seed: SEED },
      );
    });

  /** Advantage functions that look at no more than a group, and leave nothing to chance. */
  const WITHIN_GROUPS: [string, Args][] = [
    ['grpo', {}],
    ['grpo', { std_threshold: 0.8, rank_penalty: 0.4 }],
    ['rloo', {}],
    ['step_wise_grpo', { std_threshold: 0.8, enable_step_norm: true }],
    ['opmd', {}],
    ['rec', { std_normalize: true }],
    ['on_policy_distill', {}],
    ['remax', {}],
  ];
  for (const [advantage_fn, advantage_fn_args] of WITHIN_GROUPS)
    it(`${advantage_fn} ${JSON.stringify(advantage_fn_args)}, advantages made of the parts, cut between groups`, () => {
      fc.assert(
        fc.property(
          specs,
          fc.constantFrom('ppo', 'gspo', 'mix', 'mix_chord', 'rec'),
          fc.constantFrom(...ENTROPIES),
          fc.constantFrom(...AGGREGATIONS),
          fc.nat(),
          (drawn, policy_loss_fn, entropy_loss_fn, loss_agg_mode, cut) => {
            const spec: RewardSpec = {
              ...drawn,
              groups: 'some',
              rewards: 'normal',
              perToken: drawn.seed % 2 === 0,
            };
            const { advantages: _, ...batch } = makeRewarded(spec);
            const config = {
              policy_loss_fn,
              policy_loss_fn_args: policy_loss_fn === 'ppo' ? { enable_sequence_masking: true } : {},
              advantage_fn,
              advantage_fn_args,
              kl_loss_fn_args: { kl_coef: 0.3 },
              entropy_loss_fn,
              entropy_loss_fn_args: { entropy_coef: 0.2 },
              loss_agg_mode,
            };
            const { metrics } = ADVANTAGE_FN.create(advantage_fn, advantage_fn_args).computeSync(
              layOut(batch),
            );
            // Metrics of groups are means over groups: of a part they are of its groups.
            addsUp(objective('grpo', config), batch, deal(groupsOf(batch), cut), Object.keys(metrics));
          },
        ),
        { numRuns: 60, seed: SEED },
      );
    });
});

describe('counts', () => {
  function countsOf(batch: RewardedBatch, tellsExperts: boolean): Counts {
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
    return tellsExperts ? { ...counts, expert } : counts;
  }
  const TELL_EXPERTS = ['policy mix', 'policy mix_chord', 'entropy mix'];
  for (const { family, name, args } of oneOfEach())
    it(`${family} ${name}: those of a loop`, () =>
      fc.assert(
        fc.asyncProperty(specs, async (spec) => {
          const batch = makeBatch(fitting(name, args, spec));
          const expected = countsOf(batch, TELL_EXPERTS.includes(`${family} ${name}`));
          const fn = countable(family, name, args);
          assert.deepEqual(fn.countSync(layOut(batch)), expected);
          assert.deepEqual(await fn.count(layOut(batch)), expected);
        }),
        { numRuns: 25, seed: SEED },
      ));

  it('objectives tell experts where their policy or entropy loss does', async () => {
    const batch = makeBatch({
      seed: 1,
      rows: 7,
      columns: 9,
      values: 'moderate',
      mask: 'random',
      packed: false,
    });
    for (const [algorithm, config, tells] of [
      ['grpo', {}, false],
      ['mix', {}, true],
      ['mix_chord', {}, true],
      ['grpo', { entropy_loss_fn: 'mix' }, true],
      ['mix', { policy_loss_fn: 'ppo', entropy_loss_fn: 'default' }, false],
    ] as [string, Args, boolean][]) {
      const fn = objective(algorithm, config);
      assert.deepEqual(fn.countSync(layOut(batch)), countsOf(batch, tells));
      assert.deepEqual(await fn.count(layOut(batch)), countsOf(batch, tells));
    }
  });

  it('masks in any type, under any name', async () => {
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
      { packed: false, rows: 5, columns: 60_000 },
      { packed: true, rows: 4, columns: 200_000, rowLengths: [1, 200_000, 7, 30_000] },
    ]) {
      const batch = makeBatch({ seed: 4, values: 'moderate', mask: 'random', ...shape });
      const fn = countable('policy', 'mix', {});
      assert.deepEqual(fn.countSync(layOut(batch)), countsOf(batch, true));
      assert.deepEqual(await fn.count(layOut(batch)), countsOf(batch, true));
    }
  });

  it('of nothing', () => {
    const empty = { shape: [0, 5] as const, actionMask: new Uint8Array(0), logprob: new Float32Array(0) };
    const counts = countable('policy', 'sft', {}).countSync(empty);
    assert.deepEqual({ tokens: counts.tokens, rows: counts.rows }, { tokens: 0, rows: 0 });
    assert.deepEqual(sumCounts([]), { tokens: 0, rows: 0, columns: 0 });
  });

  it('sumCounts adds tokens, rows and experts, and takes the largest columns, of any iterable', () => {
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

describe('normalizers refused', () => {
  const batch = makeBatch({
    seed: 5,
    rows: 4,
    columns: 8,
    values: 'moderate',
    mask: 'random',
    packed: false,
  });
  const laid = layOut(batch);
  const isLossError =
    (code: LossErrorCode, ...says: RegExp[]) =>
    (error: unknown) => {
      assert.ok(error instanceof LossError, `${error} is no LossError`);
      assert.equal(error.code, code, error.message);
      for (const pattern of says) assert.match(error.message, pattern);
      return true;
    };
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
    it(`${what}: counts of other types, negative ones, none at all`, async () => {
      const fn = make();
      for (const wrong of [7, 'all', true, [], {}]) await refuses(fn, wrong);
      for (const count of [-1, Number.NaN, Number.POSITIVE_INFINITY, '12', null]) {
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
    it(`${what}: without the experts' counts, or with wrong ones`, async () => {
      const fn = make();
      const { expert: _, ...without } = fn.countSync(laid);
      await refuses(fn, without, /expert/);
      for (const count of [-1, Number.NaN, '1']) {
        await refuses(fn, { ...without, expert: { tokens: count, rows: 1 } }, /expert/, /tokens/);
        await refuses(fn, { ...without, expert: { tokens: 1, rows: count } }, /expert/, /rows/);
      }
      await refuses(fn, { ...without, expert: 3 }, /expert/);
    });

  it('dpo without pairs has no parts', async () => {
    const fn = countable('policy', 'dpo', { pairwise: false });
    await refuses(fn, fn.countSync(laid), /pairwise|pairs/);
    const config = { policy_loss_fn_args: { pairwise: false } };
    await refuses(objective('dpo', config), fn.countSync(laid), /pairwise|pairs/);
  });

  it('dpo with pairs has none that end within a pair', () => {
    const fn = countable('policy', 'dpo', {});
    const part = layOut(takeRows(batch, [0, 1, 2]));
    assert.throws(() => fn.sync(part, fn.countSync(laid)), isLossError('ERR_SHAPE_MISMATCH', /even|pair/));
  });
});
