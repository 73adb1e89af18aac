/**
 * Gives one interface to all functions that can compute a batch in parts. Such a function counts each part, and the
 * call for a part takes the sum of all counts as its normalizer.
 */
import fc from 'fast-check';
import {
  ALGORITHM_TYPE,
  type Batch,
  type Counts,
  ENTROPY_LOSS_FN,
  type GradientRequest,
  type HalfColumn,
  KL_FN,
  type Metrics,
  type Normalizer,
  POLICY_LOSS_FN,
  type PolicyLossFn,
} from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import type { Args } from '../reference/index.js';
import { type BatchSpec, everyFunction } from './draw.js';
import type { Family } from './subject.js';

export interface Computed {
  loss: number;
  metrics: Record<string, number>;
  grad?: Float32Array;
  gradEntropy?: Float32Array;
  halfGrad?: HalfColumn;
  halfGradEntropy?: HalfColumn;
  part?: Float64Array;
}
/** Options of a call, in addition to its normalizer. By default, the gradients are computed. */
export interface Wanted {
  grad?: GradientRequest;
  part?: boolean;
}
/** The calls that policy losses, KL functions, entropy losses and objectives have in common. */
export interface Countable {
  sync(batch: Batch, normalizer?: Normalizer, wanted?: Wanted): Computed;
  async(batch: Batch, normalizer?: Normalizer, wanted?: Wanted): Promise<Computed>;
  merge(parts: Float64Array[], normalizer: Normalizer): Computed;
  countSync(batch: Batch): Counts;
  count(batch: Batch): Promise<Counts>;
  /** Whether the batch cannot be computed in parts. */
  readsWholeBatch?: boolean;
}

const given = (normalizer: Normalizer | undefined, wanted: Wanted | undefined) => ({
  grad: true,
  ...wanted,
  ...(normalizer ? { normalizer } : {}),
});

export function countableLoss(fn: PolicyLossFn<Partial<Metrics>>): Countable {
  return {
    sync: (batch, normalizer, wanted) => fn.computeSync(batch, given(normalizer, wanted)) as Computed,
    async: (batch, normalizer, wanted) => fn.compute(batch, given(normalizer, wanted)) as Promise<Computed>,
    countSync: (batch) => fn.countSync(batch),
    merge: (parts, normalizer) => fn.merge(parts, normalizer) as Computed,
    count: (batch) => fn.count(batch),
    readsWholeBatch: fn.readsWholeBatch,
  };
}

export function countable(family: Family, name: string, args: Args): Countable {
  const { loss_agg_mode, ...own } = args;
  const lossAggMode = loss_agg_mode as 'token-mean';
  if (family === 'policy') {
    return countableLoss(POLICY_LOSS_FN.create(name, args));
  }
  if (family === 'kl') {
    const fn = KL_FN.create(name, own);
    return {
      sync: (batch, normalizer, wanted) =>
        fn.calculateKlLossSync(batch, { lossAggMode, ...given(normalizer, wanted) }) as Computed,
      async: (batch, normalizer, wanted) =>
        fn.calculateKlLoss(batch, { lossAggMode, ...given(normalizer, wanted) }) as Promise<Computed>,
      countSync: (batch) => fn.countSync(batch),
      merge: (parts, normalizer) => fn.mergeKlLoss(parts, normalizer) as Computed,
      count: (batch) => fn.count(batch),
    };
  }
  const fn = ENTROPY_LOSS_FN.create(name, own);
  return {
    sync: (batch, normalizer, wanted) =>
      fn.computeSync(batch, { lossAggMode, ...given(normalizer, wanted) }) as Computed,
    async: (batch, normalizer, wanted) =>
      fn.compute(batch, { lossAggMode, ...given(normalizer, wanted) }) as Promise<Computed>,
    merge: (parts, normalizer) => fn.merge(parts, normalizer) as Computed,
    countSync: (batch) => fn.countSync(batch),
    count: (batch) => fn.count(batch),
  };
}

export function objective(algorithm: string, config: Args): Countable {
  const made = ALGORITHM_TYPE.get(algorithm).objective(config);
  return {
    sync: (batch, normalizer, wanted) => made.computeSync(batch, given(normalizer, wanted)) as Computed,
    async: (batch, normalizer, wanted) => made.compute(batch, given(normalizer, wanted)) as Promise<Computed>,
    merge: (parts, normalizer) => made.merge(parts, normalizer) as Computed,
    countSync: (batch) => made.countSync(batch),
    count: (batch) => made.count(batch),
    readsWholeBatch: made.policyLossFn.readsWholeBatch,
  };
}

/** Returns every function once, with the first aggregation that everyFunction() lists for it. */
export function oneOfEach() {
  const all = everyFunction(1);
  return all.filter(
    (each, i) => all.findIndex(({ family, name }) => family === each.family && name === each.name) === i,
  );
}

export const everyRow = (batch: RewardedBatch) => Array.from({ length: batch.rows }, (_, b) => b);

/**
 * Generates descriptions of batches whose sums are not much smaller than their terms. The tests' bounds are relative to
 * the sums, so rounding errors of terms that cancel could exceed them.
 */
export const specs: fc.Arbitrary<BatchSpec> = fc.record({
  seed: fc.nat(),
  rows: fc.integer({ min: 1, max: 12 }),
  columns: fc.integer({ min: 1, max: 70 }),
  values: fc.constantFrom('moderate', 'onpolicy'),
  mask: fc.constantFrom('ones', 'prefix', 'random', 'emptyrows', 'zero'),
  packed: fc.boolean(),
});
