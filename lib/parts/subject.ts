// Subjects: the policy losses and algorithms that evaluateFiles() computes. A subject computes its advantages and its
// loss in two steps, because the advantages of a part may depend on the rows of all parts.
import type { ComputedAdvantages } from '../core/evaluator.js';
import { toCamelCase } from '../core/options.js';
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
  type PolicyLossDeclaration,
  type PolicyLossFn,
  type Registry,
  type Result,
} from '../index.js';
import { columnOfKey, type RolloutColumn } from '../rollouts/index.js';
import { type AdvantageStep, grpoStep, objectiveStep, perToken } from './advantage-step.js';

/** A policy loss or an algorithm to evaluate. */
export interface Subject {
  /** Its registry name. */
  readonly name: string;
  /** Columns that it can read in addition to logprobs and action_mask. */
  readonly columns: readonly RolloutColumn[];
  /** An algorithm's functions; undefined for a policy loss. */
  readonly functions?: AlgorithmFunctions;
  readonly policyLossFn: PolicyLossFn<Partial<Metrics>>;
  /** Whether the policy loss is a function of the ratio to the old policy and of advantages. */
  readonly readsRatio: boolean;
  readonly readsAdvantages: boolean;
  /** Whether it counts experts' rows and the policy's own rows separately. */
  readonly readsExperts: boolean;
  /** Whether rows come in pairs, which must stay in the same part. */
  readonly pairs: boolean;
  /** Computes advantages for rows that have none; undefined if the subject cannot. */
  readonly advantages?: AdvantageStep;
  /** Returns why rows like those of the batch cannot be computed in parts; undefined if they can. */
  obstacle(batch: Batch): string | undefined;
  /** Returns the columns that can replace a missing one, for error messages. */
  substitutes(column: RolloutColumn): readonly string[];
  /**
   * Computes a batch, or one part of a batch if `options` has a normalizer.
   * @param advantages computed for the batch's rows; undefined if the batch has its own or the subject reads none.
   */
  compute(
    batch: Batch,
    advantages: ComputedAdvantages | undefined,
    options: SubjectOptions,
  ): Promise<SubjectResult>;
}

/** Options of {@link Subject.compute}. */
export interface SubjectOptions {
  /** Receives ∂loss/∂logprob. */
  grad: Float32Array;
  /** Where to compute; 'cpu' by default. */
  device?: string;
  /** The counts of all parts together. */
  normalizer?: Normalizer;
}

/** The result of {@link Subject.compute}. */
export type SubjectResult = Result<Partial<Metrics>> & { gradEntropy?: Float32Array };

/** The functions of an algorithm, by their registry names, with their coefficients. */
export interface AlgorithmFunctions {
  policyLossFn: string;
  advantageFn?: string;
  klLossFn: string;
  klCoef: number;
  /** Absent if the rewards have no KL penalty. */
  klPenaltyFn?: string;
  entropyLossFn: string;
  entropyCoef: number;
}

/**
 * Returns a policy loss as a subject. If it reads advantages and the rows only have rewards and groups, it computes
 * GRPO's advantages from them.
 * @param args options in snake_case or camelCase.
 * @throws LossError `ERR_UNKNOWN_NAME`, `ERR_INVALID_OPTION`
 */
export function lossSubject(name: string, args: Readonly<Record<string, unknown>> = {}): Subject {
  const fn = POLICY_LOSS_FN.create(name, args);
  const columns = columnsOf(fn.backend, fn.selectKeys);
  const step = columns.includes('advantages') ? grpoStep() : undefined;
  return {
    ...subjectOf(name, fn, fn.reads.expertMask, step),
    columns: step ? [...columns, 'reward', 'task_id'] : columns,
    substitutes: (column) =>
      column === 'advantages' ? ["both reward and task_id to compute it by GRPO's rule"] : [],
    compute: (batch, advantages, options) =>
      fn.compute(advantages ? { ...batch, advantages: perToken(batch, advantages) } : batch, options),
  };
}

/**
 * Returns an algorithm's objective as a subject. It computes its advantages if the rows have none.
 * @param seed the seed of random draws; by default the advantage function's own.
 */
export function objectiveSubject(objective: Objective, seed?: number): Subject {
  const { algorithm, policyLossFn, entropyLossFn } = objective;
  const functions = functionsOf(objective);
  const readsExperts = policyLossFn.reads.expertMask || entropyLossFn.rows === 'usual';
  const step = hasAdvantages(objective)
    ? objectiveStep(objective, functions.advantageFn!, functions.klPenaltyFn, seed)
    : undefined;
  return {
    ...subjectOf(algorithm, policyLossFn, readsExperts, step),
    columns: columnsOf(objective.backend, keysOf(objective, readsExperts)),
    functions,
    substitutes: (column) => {
      if (!OF_ADVANTAGES.has(column)) return [];
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
  };
}

/** Columns that only advantage functions read. */
const OF_ADVANTAGES: ReadonlySet<RolloutColumn> = new Set([
  'reward',
  'token_level_rewards',
  'values',
  'reward_baseline',
  'task_id',
  'run_id',
  'teacher_logprobs',
]);

function subjectOf(
  name: string,
  policyLossFn: Subject['policyLossFn'],
  readsExperts: boolean,
  step: AdvantageStep | undefined,
) {
  const { columns } = policyLossFn.reads;
  return {
    name,
    policyLossFn,
    readsRatio: columns.includes('old_logprob') && columns.includes('advantages'),
    readsAdvantages: columns.includes('advantages'),
    readsExperts,
    pairs: readsPairs(policyLossFn),
    ...(step && { advantages: step }),
    obstacle(batch: Batch) {
      const { policyLoss } = policyLossFn;
      if (readsPairs(policyLossFn) && policyLoss.options.pairwise === false)
        return `${name} computes one margin over all rows`;
      if (!step?.appliesTo(batch)) return undefined;
      if (step.scope === 'all')
        return `${name} whitens its advantages (${step.name}) over the tokens of all rows`;
      return step.adaptsPenalty ? `${name} adapts the coefficient of its KL penalty to all rows` : undefined;
    },
  } satisfies Partial<Subject>;
}

// Returns whether a loss is over pairs of rows; only the package's own losses declare it.
function readsPairs(policyLossFn: object): boolean {
  const { declaration } = policyLossFn.constructor as { declaration?: PolicyLossDeclaration };
  return declaration?.pairs === true;
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
  const { policyLossFn, advantageFn, klLossFn, klPenaltyFn, entropyLossFn } = objective;
  const keys = [...policyLossFn.selectKeys];
  if (advantageFn) keys.push('advantages', ...advantageFn.selectKeys);
  if (keys.includes('token_level_rewards')) keys.push('rewards');
  if (!(klPenaltyFn instanceof DummyKLFn)) keys.push('old_logprob', 'ref_logprob');
  if (!(klLossFn instanceof DummyKLFn)) keys.push('ref_logprob');
  if (klLossFn.usesOldLogprob) keys.push('old_logprob');
  if (entropyLossFn.rows !== 'none') keys.push('entropy');
  if (readsExperts) keys.push('expert_mask');
  return keys;
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
