// What comes before an evaluation: a policy loss or algorithm (a subject) computes advantages for rows that have none.
// Of the code that builds on lib/algorithm, only this file and subject.ts use the package-internal members of losses,
// advantage functions and objectives.
import { KlPenalty } from '../../algorithm/kl-penalty.js';
import type { MadeAdvantages } from '../../algorithm/objective-advantages.js';
import { type Steps, takeLater, takeNow } from '../../base/steps.js';
import type { ComputedAdvantages } from '../../call/computed-advantages.js';
import {
  ADVANTAGE_FN,
  type AdvantageFn,
  type Batch,
  KeyMapper,
  KL_FN,
  type Metrics,
  type Objective,
} from '../../index.js';

/**
 * The rows on which a row's advantages depend, before they are whitened: only the row itself, the rows of its group, or
 * all rows.
 */
export type AdvantageScope = 'row' | 'group' | 'all';

/** How a subject (a policy loss or algorithm to evaluate) computes advantages for rows that have none. */
export interface AdvantageMethod {
  /** The advantage function's registry name. */
  readonly name: string;
  /** Identifies the computation: two methods with equal keys compute the same advantages for the same rows. */
  readonly key: string;
  readonly scope: AdvantageScope;
  /** Whether the advantages are whitened over the tokens of all rows. */
  readonly whitens: boolean;
  /** Whether the advantage function reads one reward per token if the batch has them. */
  readonly readsTokenRewards: boolean;
  readonly readsOldLogprob: boolean;
  /**
   * Returns whether advantages should be computed for this batch: it has none, and for a policy loss without an
   * algorithm, it has rewards and groups.
   */
  appliesTo(batch: Batch): boolean;
  /**
   * Subtracts the KL penalty, if there is one, from the rewards and computes the advantages. The batch must contain all
   * rows on which these depend.
   * @param spread the sum of the spreads of all rows, if the advantages are whitened and the batch does not have all
   * rows. Only for methods with the scope 'row'.
   */
  compute(batch: Batch, spread?: Float64Array): Promise<MadeAdvantages>;
  /**
   * Subtracts the KL penalty, if there is one, from the rewards and returns the spread of the advantages of each row
   * before they are whitened; see NativeSpread in binding.d.ts. Only for methods that whiten and have the scope 'row'.
   */
  spreadsOf(batch: Batch): Promise<Float64Array>;
  /** Returns the metrics of compute() for a batch of one row. */
  metricsOfRow(row: Batch): Metrics;
  /** Returns the batch with the KL penalty, if there is one, subtracted from its rewards. */
  penalise(batch: Batch): Promise<{ batch: Batch; metrics: Metrics }>;
  /** Returns the metrics of penalise() for a batch of one row. */
  penaltyOfRow(row: Batch): Metrics;
  /**
   * Computes one advantage per row. The KL penalty must already be subtracted from the rewards. Only for methods with the
   * scope 'group'.
   * @param rowTokens how many unmasked tokens each row of the batch stands for.
   */
  computeRows(batch: Batch, rowTokens: Float64Array): Promise<MadeAdvantages>;
}

/**
 * Returns the method for a policy loss that is evaluated without an algorithm. It computes GRPO's advantages from rewards
 * and groups.
 */
export function grpoMethod(): AdvantageMethod {
  const fn = ADVANTAGE_FN.create('grpo');
  return {
    ...stepOf(fn, 'grpo', {}),
    key: 'grpo',
    appliesTo: ({ advantages, rewards, groupIds }) =>
      advantages === undefined && rewards !== undefined && groupIds !== undefined,
    compute: (batch) => takeLater(fn.computeFor(batch, undefined, true)),
    spreadsOf: (batch) => takeLater(fn.spreadsOf(batch)),
    metricsOfRow: (row) => takeNow(fn.computeFor(row, undefined, true)).metrics,
    penalise: async (batch) => ({ batch, metrics: {} }),
    penaltyOfRow: () => ({}),
  };
}

/**
 * Returns the method for an algorithm's objective that has an advantage function.
 * @param name the advantage function's registry name.
 * @param penalty the registry name of the KL penalty; undefined if no penalty is subtracted from the rewards.
 * @param seed the seed for the advantage function's random draws; by default the function's own seed.
 */
export function objectiveMethod(
  objective: Objective & { advantageFn: AdvantageFn },
  name: string,
  penalty: string | undefined,
  seed: number | undefined,
): AdvantageMethod {
  const { advantageFn: fn, klPenaltyFn, lossFn, backend } = objective;
  const { klCoef } = klPenaltyFn;
  // All rows are one batch, and an adaptive coefficient changes only after the batch.
  const constant = klPenaltyFn.adaptive
    ? KL_FN.create(penalty!, { kl_coef: klCoef }, { backend })
    : klPenaltyFn;
  const klPenalty = new KlPenalty(constant, KeyMapper.get(backend));
  const seeded = seed === undefined ? {} : { seed };
  const perToken = lossFn.readsMaskedAdvantages;
  function* compute(given: Batch, spread?: Float64Array): Steps<MadeAdvantages> {
    const { batch, metrics } = yield* klPenalty.apply(given);
    const made = yield* fn.computeFor(batch, seeded, perToken, undefined, spread && { spread });
    return { ...made, metrics: { ...made.metrics, ...metrics } };
  }
  function* spreadsOf(given: Batch): Steps<Float64Array> {
    const { batch } = yield* klPenalty.apply(given);
    return yield* fn.spreadsOf(batch);
  }
  return {
    ...stepOf(fn, name, seeded),
    key: JSON.stringify([fn.definition, seed, penalty && [penalty, klCoef]]),
    appliesTo: ({ advantages }) => advantages === undefined,
    compute: (batch, spread) => takeLater(compute(batch, spread)),
    spreadsOf: (batch) => takeLater(spreadsOf(batch)),
    metricsOfRow: (row) => takeNow(compute(row)).metrics,
    penalise: (batch) => takeLater(klPenalty.apply(batch)),
    penaltyOfRow: (row) => takeNow(klPenalty.apply(row)).metrics,
  };
}

function stepOf(fn: AdvantageFn, name: string, seeded: { seed?: number }) {
  const { inputs, perRow, whitens, comparesTokens, named } = fn.definition;
  return {
    name,
    scope: comparesTokens || named ? 'all' : perRow ? 'group' : 'row',
    whitens: whitens === true,
    readsTokenRewards: inputs.includes('token_level_rewards'),
    readsOldLogprob: inputs.includes('old_logprob'),
    computeRows: (batch: Batch, rowTokens: Float64Array) =>
      takeLater(fn.computeFor(batch, seeded, false, undefined, { rowTokens })),
  } satisfies Partial<AdvantageMethod>;
}

/**
 * Returns computed advantages as one value per token of a packed batch. If they are one value per row, every unmasked
 * token of the row gets this value and every masked token gets 0.
 */
export function perToken(batch: Batch, { column, perRow }: ComputedAdvantages): Float32Array {
  if (!perRow) return column;
  const offsets = batch.cuSeqlens as Int32Array;
  const mask = batch.actionMask as Uint8Array;
  const tokens = new Float32Array(mask.length);
  for (let row = 0; row < column.length; row++)
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) if (mask[t] !== 0) tokens[t] = column[row]!;
  return tokens;
}
