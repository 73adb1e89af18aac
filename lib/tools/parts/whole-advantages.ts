// Computes the advantages of rows that are read in parts, by one advantage method. They are equal to the advantages that
// all rows would get in one batch.

import { native } from '../../base/native.js';
import type { ComputedAdvantages } from '../../call/computed-advantages.js';
import type { Batch, Metrics } from '../../index.js';
import { SPREAD_LENGTH } from '../../losses/advantage-fn.js';
import type { RolloutPart } from '../rollouts/index.js';
import type { AdvantageMethod } from './advantage-method.js';
import { metricsOver, RowMetrics, type RowValues } from './row-metrics.js';
import type { GroupInputs, ShardCounts } from './shard-counts.js';

/** The advantages of all rows, part by part. */
export interface WholeAdvantages {
  /** How often each row counts (0 if it is dropped); undefined if every row counts once. */
  readonly repeats?: Uint32Array | undefined;
  /** Returns the advantages of a part. Must be called once for each part, with its first row's index among all rows. */
  of(part: RolloutPart): Promise<ComputedAdvantages>;
  /** The metrics over all rows. */
  readonly metrics?: Metrics;
  /** What other metrics are computed from: numbers of each row in the parts since begin(). */
  readonly rowValues?: RowValues;
  /** Begins a shard. */
  begin?(): void;
}

/**
 * Computes the advantages of all rows by a function over groups. The function needs only one reward and one group per
 * row, so it computes one batch in which each row has a single token that stands for all its tokens.
 */
export async function groupAdvantages(
  method: AdvantageMethod,
  { rows, unmasked, groups, runs }: ShardCounts,
  { rewards, areSums, meanOldLogprobs, penalty }: GroupInputs,
): Promise<WholeAdvantages> {
  // An advantage function that reads token rewards puts a row's only reward on the row's last unmasked token. A row
  // without unmasked tokens then has no reward, which a mask of 0 expresses here.
  const onLastToken = method.readsTokenRewards && !areSums;
  const batch: Batch = {
    shape: [rows, 1],
    actionMask: Uint8Array.from(unmasked, (n) => (n > 0 || !onLastToken ? 1 : 0)),
    rewards,
    groupIds: groups!.numbers,
  };
  if (runs) batch.runIds = runs.numbers;
  if (meanOldLogprobs) batch.oldLogprob = ranks(meanOldLogprobs);
  const { computed, metrics } = await method.computeRows(batch, Float64Array.from(unmasked));
  const { column, repeats } = computed;
  return {
    repeats,
    of: async ({ first, rows }) => ({
      column: column.subarray(first, first + rows),
      perRow: true,
      repeats: repeats?.subarray(first, first + rows),
    }),
    metrics: { ...metrics, ...metricsOver(penalty) },
  };
}

/**
 * Computes advantages that depend on nothing but the row itself, part by part.
 * @param spreads the spreads of all rows, if the advantages are then whitened over all rows; see ShardCounts.
 */
export function rowAdvantages(method: AdvantageMethod, spreads?: Float64Array): WholeAdvantages {
  const spread = spreads && new Float64Array(SPREAD_LENGTH);
  if (spreads) native.addSpreads(spreads, spread!);
  let all = new RowMetrics();
  return {
    begin() {
      all = new RowMetrics();
    },
    async of(part) {
      const { computed, metrics } = await method.compute(part.batch, spread);
      all.add(metrics, part, method.metricsOfRow);
      return computed;
    },
    get rowValues() {
      return all.values;
    },
  };
}

/** Computes the advantages of the only part, which has all rows. */
export function onlyAdvantages(method: AdvantageMethod): WholeAdvantages {
  let all: Metrics = {};
  return {
    async of({ batch }) {
      const { computed, metrics } = await method.compute(batch);
      all = metrics;
      return computed;
    },
    get metrics() {
      return all;
    },
  };
}

/**
 * Returns each value's rank among the distinct values. The ranks have the same order as the values. They replace the
 * values where only the order matters, because float32 holds ranks exactly but would round the values.
 */
function ranks(values: Float64Array): Float32Array {
  const sorted = Float64Array.from(new Set(values)).sort();
  const rank = new Map<number, number>();
  sorted.forEach((value, i) => {
    rank.set(value, i);
  });
  return Float32Array.from(values, (value) => rank.get(value)!);
}
