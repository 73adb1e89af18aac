/**
 * Batches and arguments at random. A batch is drawn as a short description and filled from a seeded generator, so
 * that a failure shrinks to a small shape and can be made again from what fast-check prints.
 */
import fc from 'fast-check';
import type { Batch } from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import { rowPositions } from '../reference/batch.js';
import { type Args, type ReferenceBatch, standsOnEdge } from '../reference/index.js';
import { fromHalf, type Half, toHalf } from './half.js';
import { generator } from './random.js';
import { type Family, FLOAT_COLUMNS, packedBatch, paddedBatch, type Subject } from './subject.js';

export interface BatchSpec {
  seed: number;
  rows: number;
  columns: number;
  values: 'moderate' | 'onpolicy' | 'wide';
  mask: 'ones' | 'prefix' | 'random' | 'emptyrows' | 'zero';
  packed: boolean;
  /** A packed batch's rows; drawn where not given. */
  rowLengths?: number[];
}

export const batchSpec: fc.Arbitrary<BatchSpec> = fc.record({
  seed: fc.nat(),
  rows: fc.integer({ min: 1, max: 9 }),
  columns: fc.integer({ min: 1, max: 70 }),
  values: fc.constantFrom('moderate', 'onpolicy', 'wide'),
  mask: fc.constantFrom('ones', 'prefix', 'random', 'emptyrows', 'zero'),
  packed: fc.boolean(),
});

export function makeBatch(spec: BatchSpec): ReferenceBatch {
  const { uniform, normal, integer } = generator(spec.seed);
  const { rows } = spec;
  const rowLengths = spec.packed
    ? (spec.rowLengths ?? Array.from({ length: rows }, () => integer(1, spec.columns)))
    : undefined;
  const columns = rowLengths ? Math.max(...rowLengths) : spec.columns;
  const lengthOf = (b: number) => rowLengths?.[b] ?? columns;

  const logprob: number[] = [];
  const oldLogprob: number[] = [];
  const refLogprob: number[] = [];
  const advantages: number[] = [];
  const entropy: number[] = [];
  const actionMask: number[] = [];
  for (let b = 0; b < rows; b++) {
    const prefix = integer(0, lengthOf(b));
    const empty = uniform() < 0.5;
    for (let t = 0; t < columns; t++) {
      const lp = spec.values === 'wide' ? -25 * uniform() : -1.5 * Math.abs(normal());
      logprob.push(lp);
      if (spec.values === 'moderate') {
        oldLogprob.push(lp + 0.2 * normal());
        refLogprob.push(lp + 0.3 * normal());
      } else if (spec.values === 'wide') {
        oldLogprob.push(-25 * uniform());
        refLogprob.push(-25 * uniform());
      } else {
        oldLogprob.push(lp);
        refLogprob.push(lp);
      }
      advantages.push(uniform() < 0.05 ? 0 : normal());
      entropy.push(2 * uniform());
      const unmasked = {
        ones: true,
        prefix: t < prefix,
        random: uniform() < 0.6,
        emptyrows: !empty,
        zero: false,
      }[spec.mask];
      actionMask.push(unmasked && t < lengthOf(b) ? 1 : 0);
    }
  }
  // The engine reads float32, so the reference is given what float32 can hold.
  const round = (column: number[]) => column.map(Math.fround);
  const kinds = uniform();
  return {
    rows,
    columns,
    ...(rowLengths ? { rowLengths } : {}),
    logprob: round(logprob),
    oldLogprob: round(oldLogprob),
    refLogprob: round(refLogprob),
    advantages: round(advantages),
    entropy: round(entropy),
    actionMask,
    // One batch in ten of the policy's own rows alone, one in ten of an expert's.
    expertMask: Array.from({ length: rows }, () => (kinds < 0.1 ? 0 : kinds > 0.9 ? 1 : integer(0, 1))),
    step: Array.from({ length: rows }, () => 60),
  };
}

export interface RewardSpec extends BatchSpec {
  groups: 'one' | 'each' | 'some';
  rewards: 'normal' | 'binary' | 'equal' | 'large';
  /** Token-level rewards; else each row's reward stands on its last unmasked token. */
  perToken: boolean;
}

export const rewardSpec: fc.Arbitrary<RewardSpec> = fc
  .tuple(
    batchSpec,
    fc.record({
      groups: fc.constantFrom('one', 'each', 'some', 'some'),
      rewards: fc.constantFrom('normal', 'binary', 'equal', 'large'),
      perToken: fc.boolean(),
    }),
  )
  .map(([spec, more]) => ({ ...spec, ...more }));

/** A batch that advantages can be made of, by any function; it still has advantages of its own. */
export function makeRewarded(spec: RewardSpec): RewardedBatch {
  const batch = makeBatch(spec);
  const { uniform, normal, integer } = generator(spec.seed + 0x5eed);
  const same = normal();
  const reward = {
    normal,
    binary: () => integer(0, 1),
    equal: () => same,
    large: () => 10_000 + 100 * normal(),
  }[spec.rewards];
  const perRow = (value: (b: number) => number) => Array.from({ length: spec.rows }, (_, b) => value(b));
  const perToken = (value: () => number) =>
    Array.from({ length: spec.rows * batch.columns }, () => Math.fround(value()));
  const group = { one: () => 0, each: (b: number) => b, some: () => integer(0, Math.floor(spec.rows / 3)) };
  return {
    ...batch,
    rewards: perRow(() => Math.fround(reward())),
    groupIds: perRow(group[spec.groups]),
    runIds: perRow(() => integer(0, 2)),
    rewardBaselines: perRow(() => Math.fround(normal())),
    ...(spec.perToken ? { tokenLevelRewards: perToken(() => (uniform() < 0.5 ? 0 : reward())) } : {}),
    values: perToken(normal),
    teacherLogprob: Array.from(batch.oldLogprob!, (old) =>
      Math.fround(spec.values === 'wide' ? -25 * uniform() : old + 0.5 * normal()),
    ),
  };
}

const TOKEN_COLUMNS = ['tokenLevelRewards', 'values', 'teacherLogprob'] as const;
const ROW_COLUMNS = ['rewards', 'rewardBaselines'] as const;
const ID_COLUMNS = ['groupIds', 'runIds'] as const;

/** Everything that the batch has as the library takes it, packed where its rows have lengths of their own. */
export function layOut(batch: RewardedBatch): Batch & Record<string, unknown> {
  const laid = batch.rowLengths ? packedBatch(batch) : paddedBatch(batch);
  const places = Array.from({ length: batch.rows }, (_, b) => [...rowPositions(batch, b)]).flat();
  for (const name of TOKEN_COLUMNS) {
    const column = batch[name];
    if (column) laid[name] = Float32Array.from(places, (at) => column[at]!);
  }
  for (const name of ROW_COLUMNS) if (batch[name]) laid[name] = Float64Array.from(batch[name]);
  for (const name of ID_COLUMNS) if (batch[name]) laid[name] = Array.from(batch[name]);
  return laid;
}

/** The batch as 16-bit columns hold it, and laid out in such columns. */
export function inHalf(
  batch: RewardedBatch,
  dtype: Half,
): { rounded: RewardedBatch; laid: Batch & Record<string, unknown> } {
  const rounded = { ...batch };
  const names = [...FLOAT_COLUMNS, ...TOKEN_COLUMNS].filter((name) => batch[name]);
  for (const name of names) {
    rounded[name] = Array.from(batch[name]!, (x) => fromHalf(toHalf(x, dtype), dtype));
  }
  const laid = layOut(rounded);
  for (const name of names) {
    laid[name] = { data: Uint16Array.from(laid[name] as Float32Array, (x) => toHalf(x, dtype)), dtype };
  }
  return { rounded, laid };
}

/** The batch of the first seed from here on that leaves no token on a threshold of the subject's formula. */
export function makeBatchOffEdges(spec: BatchSpec, subject: Subject): ReferenceBatch {
  for (let seed = spec.seed; seed < spec.seed + 1000; seed++) {
    const batch = cachedBatch({ ...spec, seed });
    if (!standsOnEdge(subject.formula, subject.args, batch)) return batch;
  }
  throw new Error('every seed leaves a token on a threshold');
}

// Long batches take longer to draw than to compute, and most functions are tested on the same ones.
const batches = new Map<string, ReferenceBatch>();

function cachedBatch(spec: BatchSpec): ReferenceBatch {
  const key = JSON.stringify(spec);
  const batch = batches.get(key) ?? makeBatch(spec);
  batches.set(key, batch);
  return batch;
}

export const AGGREGATIONS = [
  'token-mean',
  'seq-mean-token-sum',
  'seq-mean-token-mean',
  'seq-mean-token-sum-norm',
] as const;

/** In steps: fc.double would dwell on numbers like 5e-324, which no gradient in float32 can be scaled by. */
const between = (min: number, max: number) =>
  fc.integer({ min: 0, max: 10_000 }).map((k) => min + ((max - min) * k) / 10_000);
const aggregation = fc.constantFrom(...AGGREGATIONS);
const loss_agg_mode = aggregation;
/** Both bounds by name: create() completes arguments by default_args, where they may stand already. */
const clipRange = { clip_range_low: between(0.05, 0.6), clip_range_high: between(0.05, 0.6) };
const mixture = {
  ...clipRange,
  use_dynamic_bsz: fc.boolean(),
  ppo_mini_batch_size: fc.integer({ min: 4, max: 32 }),
  ppo_micro_batch_size_per_gpu: fc.integer({ min: 1, max: 4 }),
  ngpus_trainer: fc.integer({ min: 1, max: 4 }),
  train_batch_size_usual: fc.integer({ min: 4, max: 24 }),
  train_batch_size_expert: fc.integer({ min: 4, max: 24 }),
  loss_agg_mode,
  sft_loss_agg_mode: aggregation,
  grpo_loss_agg_mode: aggregation,
};
const kl = fc.record({ kl_coef: between(0.001, 2), loss_agg_mode });
const entropy = fc.record({ entropy_coef: between(0, 1), loss_agg_mode });

/** Arguments in their valid ranges, by family and registry name. */
export const ARGUMENTS: Record<Family, Record<string, fc.Arbitrary<Args>>> = {
  policy: {
    ppo: fc.record({
      ...clipRange,
      clip_ratio_c: between(1.1, 5),
      enable_sequence_masking: fc.boolean(),
      delta_sequence_masking: between(-0.1, 0.2),
      fallback_to_policy_gradient: fc.boolean(),
      loss_agg_mode,
    }),
    gspo: fc.record({
      clip_range_low: between(0.0003, 0.3),
      clip_range_high: between(0.0004, 0.3),
      loss_agg_mode,
    }),
    cispo: fc.record({
      clip_range_low: between(0.1, 1),
      clip_range_high: between(0.1, 0.6),
      enable_mask_clip: fc.boolean(),
      mask_clip_range_low: between(0.1, 1),
      mask_clip_range_high: between(0.1, 0.6),
      loss_agg_mode,
    }),
    topr: fc.record({ advantage_threshold: between(-0.5, 0.5), loss_agg_mode }),
    sapo: fc.record({
      tau_pos: between(0.3, 1.5),
      tau_neg: between(1.5, 3),
      differentiate_gate: fc.boolean(),
      loss_agg_mode,
    }),
    sppo: fc.record({ epsilon: between(0.05, 0.6), loss_agg_mode }),
    rec: fc
      .record({
        epsilon_low: between(0.05, 0.5),
        epsilon_high: between(0.05, 0.5),
        epsilon_low_prime: between(0.1, 1),
        epsilon_high_prime: between(0.1, 2),
        clip_mode: fc.constantFrom('none', 'one-side', 'gspo-one-side', 'two-side', 'ring'),
        weight: fc.constantFrom('none', 'importance_sampling', 'gspo_importance_sampling', 'advantage'),
        regularizer: fc.constantFrom('none', 'k2', 'forward-kl'),
        regularizer_coef: between(0, 0.5),
        temp: between(0.5, 2),
      })
      .map((args) =>
        // The row's ratio is a weight only where it is what decides: anything else is an error.
        args.weight === 'gspo_importance_sampling' ? { ...args, clip_mode: 'gspo-one-side' } : args,
      ),
    importance_sampling: fc.record({ loss_agg_mode }),
    opmd: fc.record({ tau: between(0, 3), loss_agg_mode }),
    sft: fc.record({ loss_agg_mode }),
    sft_is: fc.record({ loss_agg_mode }),
    sft_phi: fc.record({ cutoff_prob: fc.oneof(fc.constant(1), between(0.2, 0.9)), loss_agg_mode }),
    dpo: fc.record({ beta: between(0.02, 0.5), label_smoothing: between(0, 0.4), pairwise: fc.boolean() }),
    mix: fc.record({ mu: between(0, 1), ...mixture }),
    mix_chord: fc.record({
      mu_warmup_steps: fc.integer({ min: 0, max: 120 }),
      mu_decay_steps: fc.integer({ min: 0, max: 120 }),
      mu_peak: between(0, 1),
      mu_valley: between(0, 1),
      enable_phi_function: fc.boolean(),
      ...mixture,
    }),
  },
  kl: { none: kl, k1: kl, k2: kl, k3: kl, low_var_kl: kl, abs: kl, corrected_k3: kl },
  entropy: { default: entropy, mix: entropy, none: entropy },
};

const stdThreshold = fc.oneof(fc.constantFrom(null, 0), between(0, 1.2));
const stdLevel = fc.constantFrom('group', 'batch');

/** Arguments of advantage functions by registry name, but for those that leave something to chance. */
export const ADVANTAGE_ARGUMENTS: Record<string, fc.Arbitrary<Args>> = {
  ppo: fc.record({ gamma: between(0.9, 1), lam: between(0, 1) }),
  reinforceplusplus: fc.record({ gamma: between(0.9, 1) }),
  remax: fc.constant({}),
  rloo: fc.constant({}),
  grpo: fc.record({
    epsilon: between(1e-6, 0.1),
    std_threshold: stdThreshold,
    rank_penalty: fc.oneof(fc.constant(null), between(0, 0.9)),
    std_cal_level: stdLevel,
  }),
  step_wise_grpo: fc.record({
    epsilon: between(1e-6, 0.1),
    enable_step_norm: fc.boolean(),
    std_threshold: stdThreshold,
    std_cal_level: stdLevel,
  }),
  reinforce: fc.constant({}),
  opmd: fc.record({ opmd_baseline: fc.constantFrom('mean', 'logavgexp'), tau: between(0.05, 3) }),
  asymre: fc.record({ baseline_shift: between(-1, 1) }),
  rec: fc.record({ epsilon: between(1e-6, 0.1), std_normalize: fc.boolean(), drop: fc.constant(null) }),
  on_policy_distill: fc.record({ kl_coef: between(0.01, 2) }),
  jsd: fc.record({
    lambda_coef: fc.oneof(fc.constantFrom(0, 1), between(0.01, 0.99)),
    kl_coef: between(0.01, 2),
    temperature: between(0.3, 3),
    chunk_size: fc.constantFrom(null, 1, 512),
  }),
};

/** A batch that fits a function: dpo takes pairs of rows. */
export function fitting(name: string, args: Args, spec: BatchSpec): BatchSpec {
  if (name !== 'dpo' || args.pairwise === false) return spec;
  const rowLengths = spec.rowLengths?.slice(0, spec.rows - (spec.rows % 2));
  return {
    ...spec,
    rows: spec.rows + (rowLengths ? -(spec.rows % 2) : spec.rows % 2),
    ...(rowLengths ? { rowLengths } : {}),
  };
}

/** Every function, each with a few of its arguments, under every aggregation that it takes. */
export function everyFunction(samples = 3): { family: Family; name: string; args: Args; title: string }[] {
  return (['policy', 'kl', 'entropy'] as const).flatMap((family) =>
    Object.entries(ARGUMENTS[family]).flatMap(([name, arbitrary]) =>
      fc.sample(arbitrary, { seed: 5, numRuns: samples }).flatMap((args, i) => {
        const modes = 'loss_agg_mode' in args ? AGGREGATIONS : [undefined];
        return modes.map((mode) => ({
          family,
          name,
          args: mode ? { ...args, loss_agg_mode: mode } : args,
          title: [family, name, ...(mode ? [mode] : []), `#${i}`].join(' '),
        }));
      }),
    ),
  );
}
