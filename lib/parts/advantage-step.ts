// The advantage step of a subject: how it computes advantages for rows that have none. Above lib/algorithm, only this
// file and subject.ts use the package-internal members of losses, advantage functions and objectives.
import type { MadeAdvantages } from '../algorithm/objective.js';
import type { ComputedAdvantages } from '../core/evaluator.js';
import { ADVANTAGE_FN, type AdvantageFn, type Batch, type Metrics, type Objective } from '../index.js';

/** The rows that one row's advantages depend on: itself, the rows of its group, or all rows. */
export type AdvantageScope = 'row' | 'group' | 'all';

/** How a subject computes advantages for rows that have none. */
export interface AdvantageStep {
  /** The advantage function's registry name. */
  readonly name: string;
  /** An identifier. Two steps with equal keys compute the same advantages for the same rows. */
  readonly key: string;
  readonly scope: AdvantageScope;
  /** Whether the function reads a reward per token, if the batch has them. */
  readonly readsTokenRewards: boolean;
  readonly readsOldLogprob: boolean;
  /** Whether the KL penalty in the rewards adapts its coefficient from batch to batch. */
  readonly adaptsPenalty: boolean;
  /** Returns whether this batch needs advantages; otherwise it has its own, or cannot have any. */
  appliesTo(batch: Batch): boolean;
  /** Computes the advantages of a batch that is not part of a larger one, with its KL penalty. */
  compute(batch: Batch): Promise<MadeAdvantages>;
  /** Subtracts the KL penalty, if there is one, from a batch's rewards. */
  penalise(batch: Batch): Promise<{ batch: Batch; metrics: Metrics }>;
  /** Computes one advantage per row from rewards that already include the penalty. For scope 'group'. */
  computeRows(batch: Batch): Promise<MadeAdvantages>;
}

/** Returns the step that computes GRPO's advantages from rewards and groups, for a policy loss without an algorithm. */
export function grpoStep(): AdvantageStep {
  const fn = ADVANTAGE_FN.create('grpo');
  return {
    ...stepOf(fn, 'grpo', {}),
    key: 'grpo',
    adaptsPenalty: false,
    appliesTo: ({ advantages, rewards, groupIds }) =>
      advantages === undefined && rewards !== undefined && groupIds !== undefined,
    compute: (batch) => fn.computeFor(batch, undefined, true),
    penalise: async (batch) => ({ batch, metrics: {} }),
  };
}

/**
 * Returns the step of an objective with an advantage function.
 * @param name the advantage function's registry name.
 * @param penalty the KL penalty's registry name; undefined if the rewards have no penalty.
 * @param seed the seed of random draws; by default the function's own.
 */
export function objectiveStep(
  objective: Objective & { advantageFn: AdvantageFn },
  name: string,
  penalty: string | undefined,
  seed: number | undefined,
): AdvantageStep {
  const { advantageFn: fn, klPenaltyFn } = objective;
  const seeded = seed === undefined ? {} : { seed };
  return {
    ...stepOf(fn, name, seeded),
    key: JSON.stringify([fn.definition, seed, penalty && [penalty, klPenaltyFn.klCoef]]),
    adaptsPenalty: klPenaltyFn.adaptive,
    appliesTo: ({ advantages }) => advantages === undefined,
    compute: async (batch) => (await objective.advantagesOf(batch, seeded))!,
    penalise: (batch) => objective.penalised(batch),
  };
}

function stepOf(fn: AdvantageFn, name: string, seeded: { seed?: number }) {
  const { inputs, perRow, whitens } = fn.definition;
  return {
    name,
    scope: whitens ? 'all' : perRow ? 'group' : 'row',
    readsTokenRewards: inputs.includes('token_level_rewards'),
    readsOldLogprob: inputs.includes('old_logprob'),
    computeRows: (batch: Batch) => fn.computeFor(batch, seeded, false),
  } satisfies Partial<AdvantageStep>;
}

/** Returns computed advantages as one value per token of a packed batch. A value per row is 0 under the mask. */
export function perToken(batch: Batch, { column, perRow }: ComputedAdvantages): Float32Array {
  if (!perRow) return column;
  const offsets = batch.cuSeqlens as Int32Array;
  const mask = batch.actionMask as Uint8Array;
  const tokens = new Float32Array(mask.length);
  for (let row = 0; row < column.length; row++)
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) if (mask[t] !== 0) tokens[t] = column[row]!;
  return tokens;
}
