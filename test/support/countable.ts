/**
 * Gives one interface to all functions that can compute a batch in parts. Such a function counts each part, and the
 * call for a part takes the sum of all counts as its normalizer.
 */
import {
  ALGORITHM_TYPE,
  type Batch,
  type Counts,
  type DeviceBatch,
  ENTROPY_LOSS_FN,
  type GradientRequest,
  type HalfColumn,
  KL_FN,
  LOSS_FN,
  type Metrics,
  type Normalizer,
  type PolicyLossFn,
  type RewardLossFn,
  type ValueLossFn,
} from '../../lib/index.js';
import type { Args } from '../reference/index.js';

export type Family = 'policy' | 'kl' | 'entropy' | 'value' | 'reward';

export interface Computed {
  loss: number;
  metrics: Record<string, number>;
  grad?: Float32Array;
  gradEntropy?: Float32Array;
  gradLogZ?: Float32Array;
  gradValues?: Float32Array;
  gradRewards?: Float32Array;
  halfGradValues?: HalfColumn;
  halfGrad?: HalfColumn;
  halfGradEntropy?: HalfColumn;
  part?: Float64Array;
  /** The options for the next call, of a loss that has a state. */
  state?: Record<string, number>;
}
/** Options of a call, in addition to its normalizer. By default, the gradients are computed. */
export interface Wanted {
  grad?: GradientRequest;
  /** Only policy losses and objectives have this gradient and the next one. */
  gradEntropy?: GradientRequest;
  gradLogZ?: boolean;
  part?: boolean;
  /** Options of asynchronous calls. */
  device?: string;
  signal?: AbortSignal;
  stream?: bigint;
}
/** The calls that policy losses, KL functions, entropy losses and objectives have in common. */
export interface Countable {
  sync(batch: Batch | DeviceBatch, normalizer?: Normalizer, wanted?: Wanted): Computed;
  async(batch: Batch | DeviceBatch, normalizer?: Normalizer, wanted?: Wanted): Promise<Computed>;
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

/** Gives the gradient of a loss of values the key of the others. */
function withGrad({ gradValues, halfGradValues, ...result }: Computed): Computed {
  if (gradValues) return { ...result, grad: gradValues };
  return halfGradValues ? { ...result, halfGrad: halfGradValues } : result;
}

export function countableLoss(
  fn: PolicyLossFn<Partial<Metrics>> | ValueLossFn<Partial<Metrics>> | RewardLossFn<Partial<Metrics>>,
): Countable {
  return {
    sync: (batch, normalizer, wanted) =>
      withGrad(fn.computeSync(batch, given(normalizer, wanted)) as Computed),
    async: async (batch, normalizer, wanted) =>
      withGrad((await fn.compute(batch, given(normalizer, wanted))) as Computed),
    countSync: (batch) => fn.countSync(batch),
    merge: (parts, normalizer) => fn.merge(parts, normalizer) as Computed,
    count: (batch) => fn.count(batch),
    readsWholeBatch: fn.readsWholeBatch,
  };
}

export function countable(family: Family, name: string, args: Args): Countable {
  const { loss_agg_mode, ...own } = args;
  const lossAggMode = loss_agg_mode as 'token-mean';
  if (family !== 'kl' && family !== 'entropy')
    return countableLoss(LOSS_FN.create(name, args) as Parameters<typeof countableLoss>[0]);
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
