// Subjects: the losses and algorithms that evaluateFiles() evaluates. Advantages are computed apart from the loss,
// because those of one part of the rows may depend on the rows of all parts.

import { toCamelCase } from '../../base/options.js';
import type { ColumnName } from '../../batch/columns.js';
import type { ComputedAdvantages } from '../../call/computed-advantages.js';
import {
  ADVANTAGE_FN,
  type AdvantageFn,
  type AnyLossFn,
  type Batch,
  DummyKLFn,
  ENTROPY_LOSS_FN,
  KeyMapper,
  KL_FN,
  LOSS_FN,
  type LogitsLossFn,
  LossError,
  type Metrics,
  type Normalizer,
  type Objective,
  POLICY_LOSS_FN,
  PolicyLossFn,
  type Registry,
  type Result,
  RewardLossFn,
  ValueLossFn,
} from '../../index.js';
import type { Variable } from '../../program/graph.js';
import { columnOfKey, type RolloutColumn } from '../rollouts/index.js';
import { type AdvantageMethod, grpoMethod, objectiveMethod, perToken } from './advantage-method.js';

/** A loss or an algorithm that evaluateFiles() evaluates. */
export interface Subject {
  /** The registry name of the loss or algorithm. */
  readonly name: string;
  /** The columns that the subject can read in addition to logprobs and action_mask. */
  readonly columns: readonly RolloutColumn[];
  /** The functions of an algorithm; undefined if the subject is a loss. */
  readonly functions?: AlgorithmFunctions;
  /** The loss, or the policy loss of the algorithm. */
  readonly lossFn: RolloutLossFn;
  /** The column by which the loss is differentiated. The gradient has one number per row for rewards, and else per token. */
  readonly variable: Variable;
  /** Whether the loss depends on advantages and on the ratio of the current policy to the old one, and no more. */
  readonly readsRatio: boolean;
  readonly readsAdvantages: boolean;
  /** Whether experts' rows and the policy's own rows must be counted separately. */
  readonly readsExperts: boolean;
  /** Whether the loss compares pairs of rows. The two rows of a pair must stay in the same part. */
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
  /** The array that receives the gradient; see Subject.variable. */
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
  { lossFn }: Subject,
  { metrics, gradEntropy }: SubjectResult,
): Float32Array | undefined {
  const depends = lossFn instanceof PolicyLossFn && lossFn.dependsOnEntropy;
  return metrics.entropy_loss !== undefined || depends ? gradEntropy : undefined;
}

/** Returns where the gradient of each row of a packed batch begins, followed by the length of the gradient. */
export function gradientOffsets({ variable }: Subject, { cuSeqlens }: { cuSeqlens: Int32Array }): Int32Array {
  return variable === 'rewards' ? cuSeqlens.map((_, row) => row) : cuSeqlens;
}

/**
 * Checks that the gradients of subjects can be compared.
 * @throws LossError `ERR_INVALID_OPTION` if they are not gradients by the same column.
 */
export function checkComparable(subjects: readonly Subject[]): void {
  const [first] = subjects;
  const other = subjects.find(({ variable }) => variable !== first?.variable);
  if (!first || !other) return;
  throw new LossError('ERR_INVALID_OPTION', {
    expected: 'losses with gradients by the same column, which can be compared',
    received: `${first.name} (by ${first.variable}) and ${other.name} (by ${other.variable})`,
  });
}

/** A loss that can be computed from rollout files, which have no logits. */
type RolloutLossFn = Exclude<AnyLossFn, LogitsLossFn<Partial<Metrics>>>;

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
 * Returns a subject that evaluates a loss. If a policy loss reads advantages and the rows only have rewards and groups, the
 * subject computes GRPO's advantages from these.
 * @param name the registry name of the loss.
 * @param args the options of the loss, with their names in snake_case or camelCase.
 * @throws LossError `ERR_UNKNOWN_NAME` for an unknown loss or backend, `ERR_INVALID_OPTION` for an invalid option.
 */
export function lossSubject(name: string, args: Readonly<Record<string, unknown>> = {}): Subject {
  return subjectOfLoss(name, LOSS_FN.create(name, args));
}

/**
 * Returns a subject that evaluates a loss, as {@link lossSubject} does.
 * @param name the name of the loss in messages and results.
 */
export function subjectOfLoss(name: string, fn: AnyLossFn): Subject {
  if (fn instanceof PolicyLossFn) return policyLossSubject(name, fn);
  if (fn instanceof ValueLossFn) return valueLossSubject(name, fn);
  if (fn instanceof RewardLossFn) return rewardLossSubject(name, fn);
  throw new LossError('ERR_INVALID_OPTION', {
    expected: 'a loss of what rollout files have',
    received: `${name}, which is computed from logits`,
    hint: "'policy-loss distill' computes it from files of logits",
  });
}

function policyLossSubject(name: string, fn: PolicyLossFn<Partial<Metrics>>): Subject {
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

function valueLossSubject(name: string, fn: ValueLossFn<Partial<Metrics>>): Subject {
  return {
    ...columnLossSubject(name, fn, 'values'),
    async compute(batch, _, options) {
      const { gradValues: grad, ...result } = await fn.compute(batch, options);
      return { ...result, ...(grad && { grad }) };
    },
    merge: (parts, normalizer) => fn.merge(parts, normalizer),
  };
}

function rewardLossSubject(name: string, fn: RewardLossFn<Partial<Metrics>>): Subject {
  // The loss reads no tokens: each row counts as one that is masked.
  const ofRows = (counts: Normalizer): Normalizer => ({ tokens: 0, rows: counts.rows, columns: 1 });
  return {
    ...columnLossSubject(name, fn, 'rewards'),
    async compute(batch, _, { normalizer, ...options }) {
      const { gradRewards: grad, ...result } = await fn.compute(batch, {
        ...options,
        ...(normalizer && { normalizer: ofRows(normalizer) }),
      });
      return { ...result, ...(grad && { grad }) };
    },
    merge: (parts, normalizer) => fn.merge(parts, ofRows(normalizer)),
  };
}

function columnLossSubject(
  name: string,
  lossFn: Exclude<RolloutLossFn, PolicyLossFn<Partial<Metrics>>>,
  variable: Exclude<Variable, 'logprob'>,
) {
  return {
    name,
    lossFn,
    variable,
    columns: columnsOf(lossFn.backend, [
      variable,
      ...(variable === 'values' ? keysOfLoss(lossFn) : lossFn.selectKeys),
    ]),
    readsRatio: false,
    readsAdvantages: false,
    readsExperts: false,
    pairs: lossFn.readsPairs,
    obstacle: () => (lossFn.readsWholeBatch ? wholeBatchObstacle(name) : undefined),
    substitutes: () => [],
  } satisfies Partial<Subject>;
}

const wholeBatchObstacle = (name: string) => `${name} reduces over all rows of a batch`;

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
  policyLossFn: PolicyLossFn<Partial<Metrics>>,
  readsExperts: boolean,
  method: AdvantageMethod | undefined,
) {
  const { columns, optional } = policyLossFn.reads;
  return {
    name,
    lossFn: policyLossFn,
    variable: 'logprob',
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
      if (policyLossFn.readsWholeBatch) return wholeBatchObstacle(name);
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
function keysOfLoss({ selectKeys }: Pick<RolloutLossFn, 'selectKeys'>): string[] {
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
