// Subjects: the policy losses and algorithms that evaluateFiles() evaluates. Advantages are computed apart from the
// loss, because those of one part of the rows may depend on the rows of all parts.

import { toCamelCase } from '../../base/options.js';
import type { ColumnName } from '../../batch/columns.js';
import type { ComputedAdvantages } from '../../call/computed-advantages.js';
import {
  ADVANTAGE_FN,
  type AdvantageFn,
  type Batch,
  DummyKLFn,
  ENTROPY_LOSS_FN,
  KeyMapper,
  KL_FN,
  type Metrics,
  type Normalizer,
  type Objective,
  POLICY_LOSS_FN,
  type PolicyLossFn,
  type Registry,
  type Result,
} from '../../index.js';
import { columnOfKey, type RolloutColumn } from '../rollouts/index.js';
import { type AdvantageMethod, grpoMethod, objectiveMethod, perToken } from './advantage-method.js';

/** A policy loss or an algorithm that evaluateFiles() evaluates. */
export interface Subject {
  /** The registry name of the policy loss or algorithm. */
  readonly name: string;
  /** The columns that the subject can read in addition to logprobs and action_mask. */
  readonly columns: readonly RolloutColumn[];
  /** The functions of an algorithm; undefined if the subject is a policy loss. */
  readonly functions?: AlgorithmFunctions;
  readonly policyLossFn: PolicyLossFn<Partial<Metrics>>;
  /** Whether the policy loss depends on advantages and on the ratio of the current policy to the old one, and no more. */
  readonly readsRatio: boolean;
  readonly readsAdvantages: boolean;
  /** Whether experts' rows and the policy's own rows must be counted separately. */
  readonly readsExperts: boolean;
  /** Whether the policy loss compares pairs of rows. The two rows of a pair must stay in the same part. */
  readonly pairs: boolean;
  /** The method that computes advantages for rows that have none; undefined if the subject has no such method. */
  readonly advantages?: AdvantageMethod;
  /** Returns the reason why rows with this batch's columns cannot be computed in parts; undefined if they can. */
  obstacle(batch: Batch): string | undefined;
  /** Why the subject cannot compute advantages, if that is not usual for it, as a text for the error message. */
  readonly advantageObstacle?: string;
  /** Returns what a file may contain instead of a missing column, as texts for the error message. */
  substitutes(column: RolloutColumn): readonly string[];
  /**
   * Computes the loss, its metrics and its gradient for a batch. If `options` has a normalizer, the batch is one part
   * of all rows.
   * @param advantages the advantages that were computed for the batch's rows; undefined if the batch contains
   * advantages or the subject does not read any.
   */
  compute(
    batch: Batch,
    advantages: ComputedAdvantages | undefined,
    options: SubjectOptions,
  ): Promise<SubjectResult>;
  /** Computes the loss and the metrics over all rows from the property `part` of each part's result. */
  merge(parts: readonly Float64Array[], normalizer: Normalizer): Result<Partial<Metrics>>;
}

/** Options of {@link Subject.compute}. */
export interface SubjectOptions {
  /** The array that receives the gradient ∂loss/∂logprob, one value per token. */
  grad: Float32Array;
  /** The device on which to compute; 'cpu' by default. */
  device?: string;
  /** The counts over all rows, if the batch is only one part of them. */
  normalizer?: Normalizer;
  /** Whether the result must have the sums that merge() needs. */
  part?: boolean;
}

/** The result of {@link Subject.compute}. */
export type SubjectResult = Result<Partial<Metrics>> & { gradEntropy?: Float32Array };

/** Returns ∂loss/∂entropy, or undefined if the loss does not depend on entropies. */
export function entropyGradientOf(
  { policyLossFn }: Subject,
  { metrics, gradEntropy }: SubjectResult,
): Float32Array | undefined {
  return metrics.entropy_loss !== undefined || policyLossFn.dependsOnEntropy ? gradEntropy : undefined;
}

/** The registry names of an algorithm's functions, and the coefficients of its KL loss and its entropy loss. */
export interface AlgorithmFunctions {
  policyLossFn: string;
  advantageFn?: string;
  klLossFn: string;
  klCoef: number;
  /** Absent if the algorithm does not subtract a KL penalty from the rewards. */
  klPenaltyFn?: string;
  entropyLossFn: string;
  entropyCoef: number;
}

/**
 * Returns a subject that evaluates a policy loss. If the loss reads advantages and the rows only have rewards and
 * groups, the subject computes GRPO's advantages from these.
 * @param name the registry name of the loss.
 * @param args the options of the loss, with their names in snake_case or camelCase.
 * @throws LossError `ERR_UNKNOWN_NAME` for an unknown loss or backend, `ERR_INVALID_OPTION` for an invalid option.
 */
export function lossSubject(name: string, args: Readonly<Record<string, unknown>> = {}): Subject {
  return policyLossSubject(name, POLICY_LOSS_FN.create(name, args));
}

/**
 * Returns a subject that evaluates a policy loss, as {@link lossSubject} does.
 * @param name the name of the loss in messages and results.
 */
export function policyLossSubject(name: string, fn: Subject['policyLossFn']): Subject {
  const columns = columnsOf(fn.backend, keysOfLoss(fn));
  const method = columns.includes('advantages') ? grpoMethod() : undefined;
  return {
    ...subjectOf(name, fn, fn.reads.expertMask, method),
    columns: method ? [...columns, 'reward', 'task_id'] : columns,
    substitutes: (column) =>
      column === 'advantages' ? ["both reward and task_id to compute it by GRPO's rule"] : [],
    compute: (batch, advantages, options) =>
      fn.compute(advantages ? { ...batch, advantages: perToken(batch, advantages) } : batch, {
        ...options,
        gradEntropy: fn.dependsOnEntropy,
      }),
    merge: (parts, normalizer) => fn.merge(parts, normalizer),
  };
}

/**
 * Returns a subject that evaluates an algorithm's objective. If the rows have no advantages, the subject computes them
 * with the algorithm's advantage function.
 * @param seed the seed for the advantage function's random draws; by default the function's own seed.
 */
export function objectiveSubject(objective: Objective, seed?: number): Subject {
  const { algorithm, lossFn: policyLossFn, entropyLossFn } = objective;
  const functions = functionsOf(objective);
  const readsExperts = policyLossFn.reads.expertMask || entropyLossFn.rows === 'usual';
  const method = hasAdvantages(objective)
    ? objectiveMethod(objective, functions.advantageFn!, functions.klPenaltyFn, seed)
    : undefined;
  const columnsOfLoss = columnsOf(objective.backend, keysOfLoss(policyLossFn));
  return {
    ...subjectOf(algorithm, policyLossFn, readsExperts, method),
    columns: columnsOf(objective.backend, keysOf(objective, readsExperts)),
    functions,
    ...(objective.advantageObstacle !== undefined && { advantageObstacle: objective.advantageObstacle }),
    substitutes: (column) => {
      if (!OF_ADVANTAGES.has(column) || columnsOfLoss.includes(column)) return [];
      return column === 'token_level_rewards' ? ['reward', 'advantages'] : ['advantages'];
    },
    compute: (batch, advantages, options) =>
      objective.computeWith(
        batch,
        advantages?.perRow && policyLossFn.readsMaskedAdvantages
          ? { ...advantages, column: perToken(batch, advantages), perRow: false }
          : advantages,
        options,
      ),
    merge: (parts, normalizer) => objective.merge(parts, normalizer),
  };
}

/**
 * The columns that advantage functions read. Rows that have advantages do not need them, unless the policy loss reads
 * them too.
 */
const OF_ADVANTAGES: ReadonlySet<RolloutColumn> = new Set([
  'reward',
  'token_level_rewards',
  'values',
  'sum_pi_squared',
  'reward_baseline',
  'task_id',
  'run_id',
  'teacher_logprobs',
]);

/** The columns of a loss that depends on nothing but advantages and ratios. */
const OF_RATIO: ReadonlySet<ColumnName> = new Set(['logprob', 'old_logprob', 'advantages']);

function subjectOf(
  name: string,
  policyLossFn: Subject['policyLossFn'],
  readsExperts: boolean,
  method: AdvantageMethod | undefined,
) {
  const { columns, optional } = policyLossFn.reads;
  return {
    name,
    policyLossFn,
    readsRatio:
      columns.includes('old_logprob') &&
      columns.includes('advantages') &&
      columns.every((column) => OF_RATIO.has(column) || optional.includes(column)),
    readsAdvantages: columns.includes('advantages'),
    readsExperts,
    pairs: policyLossFn.readsPairs,
    ...(method && { advantages: method }),
    obstacle(batch: Batch) {
      const { nativeOptions } = policyLossFn;
      if (policyLossFn.readsPairs && nativeOptions.pairwise === false)
        return `${name} computes one margin over all rows`;
      if (policyLossFn.correction) return `${name} has a correction or masks`;
      if (policyLossFn.readsWholeBatch) return `${name} reduces over all rows of a batch`;
      return method?.appliesTo(batch) && method.scope === 'all'
        ? `${name} computes its advantages (${method.name}) from the tokens or the named rewards of several rows`
        : undefined;
    },
  } satisfies Partial<Subject>;
}

function functionsOf(objective: Objective): AlgorithmFunctions {
  const { policyLossFn, advantageFn, klLossFn, klPenaltyFn, entropyLossFn } = objective;
  return {
    policyLossFn: nameOf(POLICY_LOSS_FN, policyLossFn),
    ...(advantageFn && { advantageFn: nameOf(ADVANTAGE_FN, advantageFn) }),
    klLossFn: nameOf(KL_FN, klLossFn),
    klCoef: klLossFn.klCoef,
    ...(!(klPenaltyFn instanceof DummyKLFn) && { klPenaltyFn: nameOf(KL_FN, klPenaltyFn) }),
    entropyLossFn: nameOf(ENTROPY_LOSS_FN, entropyLossFn),
    entropyCoef: entropyLossFn.entropyCoef,
  };
}

function hasAdvantages(objective: Objective): objective is Objective & { advantageFn: AdvantageFn } {
  return objective.advantageFn !== undefined;
}

function keysOf(objective: Objective, readsExperts: boolean): string[] {
  const { lossFn: policyLossFn, advantageFn, klLossFn, klPenaltyFn, entropyLossFn } = objective;
  const keys = keysOfLoss(policyLossFn);
  if (advantageFn) keys.push('advantages', ...advantageFn.selectKeys);
  if (keys.includes('token_level_rewards')) keys.push('rewards');
  if (!(klPenaltyFn instanceof DummyKLFn)) keys.push('old_logprob', 'ref_logprob');
  if (!(klLossFn instanceof DummyKLFn)) keys.push('ref_logprob');
  if (klLossFn.usesOldLogprob) keys.push('old_logprob');
  if (entropyLossFn.rows !== 'none') keys.push('entropy');
  if (readsExperts) keys.push('expert_mask');
  return keys;
}

// A loss that refuses token_weights says so when it gets them.
function keysOfLoss({ selectKeys }: Subject['policyLossFn']): string[] {
  return [...selectKeys, 'token_weights'];
}

function columnsOf(backend: string, keys: readonly string[]): RolloutColumn[] {
  const mapper = KeyMapper.get(backend);
  return [...new Set(keys.flatMap((key) => columnOfKey(toCamelCase(mapper.toTrinity(key))) ?? []))].filter(
    (column) => column !== 'action_mask',
  );
}

function nameOf<T extends object>(registry: Registry<T>, object: T): string {
  const cls = object.constructor;
  return registry.names().find((name) => registry.get(name) === cls) ?? cls.name;
}
