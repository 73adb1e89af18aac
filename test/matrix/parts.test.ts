/**
 * Tests that the parts of a batch (its micro-batches) add up to the whole. If each part is computed with the counts of
 * the whole batch, the losses, metrics and gradients of the parts must sum to the whole batch's. This must hold for
 * every function, every aggregation and any division into parts.
 */

import assert from 'node:assert/strict';
import fc from 'fast-check';
import { LOSS_AGG_MODES } from '../../lib/base/options.js';
import { ADVANTAGE_FN, type Batch, sumCounts } from '../../lib/index.js';
import { groupsOf, type RewardedBatch } from '../reference/advantage.js';
import { rowPositions } from '../reference/batch.js';
import type { Args } from '../reference/index.js';
import { takeRows } from '../reference/objective.js';
import { type Countable, countable, objective } from '../support/countable.js';
import { layOut, makeBatch, makeRewarded, type RewardSpec, three } from '../support/draw.js';
import { ARGUMENTS, fitting, readsPairs } from '../support/draw-arguments.js';
import { everyFunction, everyRow, oneOfEach, specs } from '../support/functions.js';
import { EVERY_POLICY } from '../support/objective.js';
import { generator } from '../support/random.js';
import { LOSS_FAMILIES } from '../support/subject.js';
import { assertSameArray } from '../support/tolerance.js';
import { SUM_RELATIVE } from './forms.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
/** Metrics that do not add up, because every part has the same value. */
const NOT_SUMS = ['kl_coef', 'mu'];
/** Arguments that are counts of the whole batch. They replace those of the normalizer. */
const GIVEN_COUNTS = [
  ...['batch_num_tokens', 'global_batch_size', 'global_n_tokens', 'num_items_in_batch'],
  ...['global_valid_seqs', 'global_valid_toks'],
];
/** Losses that are sums over tokens by default, without a divisor. */
const SUMS = ['tinker/cross_entropy', 'prime/ce'];
/** The names of all gradients that a function may return. That of rewards has one value per row. */
const GRADIENTS = ['grad', 'gradEntropy', 'gradRewards'] as const;

/**
 * Distributes units at random over parts. A unit is a list of rows that must stay together. There is at least one part,
 * there are at most as many parts as units, and no part is empty.
 */
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

/** Returns the rows that must stay together in a batch: the pairs for a loss over pairs, and otherwise single rows. */
function unitsOf(name: string, batch: RewardedBatch): number[][] {
  const size = readsPairs(name) ? 2 : 1;
  return Array.from({ length: batch.rows / size }, (_, i) =>
    Array.from({ length: size }, (_, k) => size * i + k),
  );
}

/**
 * Copies the gradient of a part into `whole`, which has a place for each token of the padded batch, or for each row.
 * `rows` are the rows of the part.
 */
function place(
  batch: RewardedBatch,
  rows: readonly number[],
  part: Float32Array,
  whole: Float64Array,
  perRow: boolean,
): void {
  let at = 0;
  for (const b of rows)
    for (const position of perRow ? [b] : rowPositions(batch, b)) whole[position] = part[at++]!;
  assert.equal(at, part.length, 'length of a part of the gradient');
}

/**
 * A batch and its parts. `parts` lists the rows of each part. `laid` and `laidParts` are the batches for the library.
 */
interface Cut {
  batch: RewardedBatch;
  parts: number[][];
  laid: Batch;
  laidParts: Batch[];
}

function cut(batch: RewardedBatch, parts: number[][]): Cut {
  const laidParts = parts.map((rows) => layOut(takeRows(batch, rows)));
  return { batch, parts, laid: layOut(batch), laidParts };
}

/**
 * Asserts that a function's results for the parts add up to its result for the whole batch. Metrics that `unsummed`
 * names are not compared.
 */
function addsUp(
  fn: Countable,
  { batch, parts, laid, laidParts }: Cut,
  unsummed: readonly string[] = [],
): void {
  if (fn.readsWholeBatch) return;
  const whole = fn.sync(laid);
  const normalizer = sumCounts(laidParts.map((part) => fn.countSync(part)));
  assert.deepEqual(normalizer, fn.countSync(laid));
  const computed = laidParts.map((part) => fn.sync(part, normalizer));
  // Results of parts lack the metrics of the batch.
  const additive = fn.sync(laid, normalizer).metrics;

  const close = (values: number[], expected: number, what: string) => {
    const sum = values.reduce((a, b) => a + b, 0);
    const bound =
      SUM_RELATIVE *
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
    if (unsummed.includes(name) || !(name in additive)) continue;
    if (NOT_SUMS.includes(name)) for (const part of computed) assert.equal(part.metrics[name], value, name);
    // Some metrics concern only experts' rows, and others only the rest. A part without such rows may lack these
    // metrics, which count as 0.
    else
      close(
        computed.map((part) => part.metrics[name] ?? 0),
        value,
        name,
      );
  }
  for (const part of computed)
    for (const name of Object.keys(part.metrics))
      assert.ok(name in whole.metrics, `${name} is a metric of the whole batch`);

  for (const key of GRADIENTS) {
    const grad = whole[key];
    if (!grad) {
      for (const part of computed) assert.equal(part[key], undefined);
      continue;
    }
    const perRow = key === 'gradRewards';
    const [expected, sum] = [0, 0].map(() => new Float64Array(batch.rows * batch.columns)) as [
      Float64Array,
      Float64Array,
    ];
    place(batch, everyRow(batch), grad, expected, perRow);
    parts.forEach((rows, i) => {
      place(batch, rows, computed[i]![key]!, sum, perRow);
    });
    const largest = expected.reduce((most, g) => Math.max(most, Math.abs(g)), 0);
    sum.forEach((g, i) => {
      if (!(Math.abs(g - expected[i]!) <= SUM_RELATIVE * largest))
        assert.fail(`${key}[${i}] is ${g}, not ${expected[i]} (largest ${largest})`);
    });
  }
}

describe('micro-batches add up to the whole', () => {
  for (const family of LOSS_FAMILIES)
    for (const [name, args] of Object.entries(ARGUMENTS[family]))
      it(`${family} ${name}: random batches, arguments and parts`, () => {
        // Without `pairwise`, dpo has a single margin for the whole batch, which cannot be split into parts.
        const divisible = args.map((drawn) => (name === 'dpo' ? { ...drawn, pairwise: true } : drawn));
        fc.assert(
          fc.property(divisible, three(specs), fc.nat(), (drawnArgs, drawn, seed) => {
            const fn = countable(family, name, drawnArgs);
            for (const spec of drawn) {
              const batch = makeBatch(fitting(name, drawnArgs, spec));
              addsUp(fn, cut(batch, deal(unitsOf(name, batch), seed)));
            }
          }),
          { numRuns: 12, seed: SEED },
        );
      });

  it('every function with every aggregation, in parts of one row or pair', () => {
    for (const { family, name, args } of everyFunction(2)) {
      const divisible = name === 'dpo' ? { ...args, pairwise: true } : args;
      for (const packed of [false, true]) {
        const spec = { seed: 77, rows: 8, columns: 33, values: 'moderate', mask: 'random', packed } as const;
        const batch = makeBatch(spec);
        addsUp(countable(family, name, divisible), cut(batch, unitsOf(name, batch)));
      }
    }
  });

  for (const name of ['mix', 'mix_chord'])
    it(`${name}: one part of experts' rows and one of others, with dynamic and static batch sizes`, () => {
      const kind = (batch: RewardedBatch, expert: boolean) =>
        everyRow(batch).filter((b) => Boolean(batch.expertMask![b]) === expert);
      for (const use_dynamic_bsz of [true, false])
        for (const sft_loss_agg_mode of LOSS_AGG_MODES)
          for (const grpo_loss_agg_mode of LOSS_AGG_MODES) {
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
            const spec = { seed: 7, rows: 9, columns: 14, values: 'moderate', mask: 'random' } as const;
            const batch = makeBatch({ ...spec, packed: use_dynamic_bsz });
            const parts = [kind(batch, true), kind(batch, false)];
            assert.ok(parts.every((rows) => rows.length > 0));
            addsUp(countable('policy', name, args), cut(batch, parts));
          }
    });

  it('long and short rows in different parts', () => {
    const rowLengths = [3, 20_000, 17, 9000, 1, 64];
    const spec = { seed: 9, rows: 6, columns: 20_000, values: 'moderate', mask: 'random' } as const;
    const batch = makeBatch({ ...spec, packed: true, rowLengths });
    const pairs = cut(batch, deal(unitsOf('dpo', batch), 4));
    const rows = cut(batch, deal(unitsOf('ppo', batch), 4));
    for (const { family, name, args } of oneOfEach())
      if (name === 'dpo') addsUp(countable(family, name, { ...args, pairwise: true }), pairs);
      else addsUp(countable(family, name, args), readsPairs(name) ? pairs : rows);
  });

  it('compute equals computeSync, and a whole batch may be the only part', async () => {
    const spec = {
      seed: 10,
      rows: 6,
      columns: 30,
      values: 'moderate',
      mask: 'random',
      packed: true,
    } as const;
    // The part below lacks the longest row of the whole batch, so the two have different numbers of columns.
    const batch = makeBatch({ ...spec, rowLengths: [30, 5, 12, 7, 9, 21] });
    const laid = layOut(batch);
    for (const { family, name, args } of everyFunction(1)) {
      // With static batch sizes, the counts of the whole batch may have no effect on mixed losses. The last assertion
      // expects an effect, so the batch sizes are dynamic.
      const dynamic = 'use_dynamic_bsz' in args ? { ...args, use_dynamic_bsz: true } : args;
      const fn = countable(family, name, name === 'dpo' ? { ...args, pairwise: true } : dynamic);
      if (fn.readsWholeBatch) continue;
      addsUp(fn, cut(batch, [everyRow(batch)]));
      const part = layOut(takeRows(batch, [2, 3]));
      const normalizer = fn.countSync(laid);
      const [now, later] = [fn.sync(part, normalizer), await fn.async(part, normalizer)];
      assert.deepStrictEqual(
        { loss: later.loss, metrics: later.metrics },
        { loss: now.loss, metrics: now.metrics },
      );
      assertSameArray((later.grad ?? later.gradRewards)!, (now.grad ?? now.gradRewards)!, 'grad');
      const isSum = args.loss_agg_mode === 'token-sum' || SUMS.includes(name);
      if (!isSum && !GIVEN_COUNTS.some((count) => (args[count] ?? null) !== null))
        assert.notEqual(now.loss, fn.sync(part).loss || 1, `${name}: the normalizer changes the loss`);
    }
  });

  it('a normalizer without `columns` uses those of the part', () => {
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

    // A part of a padded batch has as many columns as the whole batch, so the count `columns` makes no difference.
    const padded = makeBatch({ ...spec, packed: false });
    const { columns: _, ...counts } = fn.countSync(layOut(padded));
    const first = layOut(takeRows(padded, [0, 1]));
    assert.equal(fn.sync(first, counts).loss, fn.sync(first, { ...counts, columns: 25 }).loss);
  });
});

describe('micro-batches of objectives add up to the whole', () => {
  const KLS = Object.keys(ARGUMENTS.kl);
  const ENTROPIES = Object.keys(ARGUMENTS.entropy);

  for (const name of EVERY_POLICY)
    it(`${name} with KL and entropy losses, and given advantages`, () => {
      const divisible = ARGUMENTS.policy[name]!.map((drawn) =>
        name === 'dpo' ? { ...drawn, pairwise: true } : drawn,
      );
      fc.assert(
        fc.property(
          divisible,
          three(specs),
          fc.constantFrom(...KLS),
          fc.constantFrom(...ENTROPIES),
          fc.constantFrom(...LOSS_AGG_MODES),
          fc.nat(),
          (policy_loss_fn_args, drawn, kl_loss_fn, entropy_loss_fn, loss_agg_mode, seed) => {
            const fn = objective('ppo', {
              policy_loss_fn: name,
              policy_loss_fn_args,
              kl_loss_fn,
              kl_loss_fn_args: { kl_coef: 0.3 },
              entropy_loss_fn,
              entropy_loss_fn_args: { entropy_coef: 0.2 },
              loss_agg_mode,
            });
            for (const spec of drawn) {
              const batch = makeBatch(fitting(name, policy_loss_fn_args, spec));
              addsUp(fn, cut(batch, deal(unitsOf(name, batch), seed)));
            }
          },
        ),
        { numRuns: 6, seed: SEED },
      );
    });

  /**
   * Advantage functions that make no random choices and consider one group at a time. So whole groups can be computed
   * in different parts.
   */
  const WITHIN_GROUPS: [string, Args][] = [
    ['grpo', {}],
    ['grpo', { std_threshold: 0.8, rank_penalty: 0.4 }],
    ['rloo', {}],
    ['step_wise_grpo', { std_threshold: 0.8, enable_step_norm: true }],
    ['opmd', {}],
    ['rec', { std_normalize: true }],
    ['on_policy_distill', {}],
    ['remax', {}],
    ['verl/grpo_vectorized', {}],
    ['verl/grpo_passk', {}],
    ['verl/rloo_vectorized', {}],
    ['verl/opo', {}],
    ['verl/optimal_token_baseline', {}],
    ['verl/tir_optimal_token_baseline', { handle_zero_tail: false }],
  ];
  for (const [advantage_fn, advantage_fn_args] of WITHIN_GROUPS)
    it(`${advantage_fn} ${JSON.stringify(advantage_fn_args)}, advantages computed in parts of whole groups`, () => {
      fc.assert(
        fc.property(
          specs,
          fc.constantFrom('ppo', 'gspo', 'mix', 'mix_chord', 'rec'),
          fc.constantFrom(...ENTROPIES),
          fc.constantFrom(...LOSS_AGG_MODES),
          fc.nat(),
          (drawn, policy_loss_fn, entropy_loss_fn, loss_agg_mode, seed) => {
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
            // Metrics of advantages are means over the groups of a part. They do not add up, so they are not compared.
            addsUp(objective('grpo', config), cut(batch, deal(groupsOf(batch), seed)), Object.keys(metrics));
          },
        ),
        { numRuns: 20, seed: SEED },
      );
    });
});
