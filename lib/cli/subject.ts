// What the command line evaluates on rollouts: a policy loss, or an algorithm's objective.
import { columnOfKey, type RolloutColumn } from '../files/index.js';
import {
  ADVANTAGE_FN,
  type Batch,
  CorrectedK3Fn,
  DummyKLFn,
  ENTROPY_LOSS_FN,
  KeyMapper,
  KL_FN,
  type Objective,
  POLICY_LOSS_FN,
  type Registry,
  type Result,
} from '../index.js';
import { toCamelCase } from '../options.js';

/** Something to evaluate. */
export interface Subject {
  /** What it is registered as. */
  readonly name: string;
  /** The columns that it may read beside logprobs and action_mask. */
  readonly columns: readonly RolloutColumn[];
  /** What an algorithm is made of. */
  readonly parts?: AlgorithmParts;
  /** Computes it, with gradients. */
  compute(batch: Batch): Promise<Computed>;
  /** What it would take in the place of a column that the files lack, as a message says it. */
  insteadOf(column: RolloutColumn): readonly string[];
}

/** What came of it. */
export interface Computed {
  result: Result<Partial<Record<string, number>>> & { gradEntropy?: Float32Array };
  /** Where the advantages are from: 'given' in the batch, or an advantage function's name. Absent: none are read. */
  advantages?: string;
}

/** The functions that an algorithm is made of, by their names, with coefficients. */
export interface AlgorithmParts {
  policyLossFn: string;
  advantageFn?: string;
  klLossFn: string;
  klCoef: number;
  /** Absent: the rewards have no KL penalty. */
  klPenaltyFn?: string;
  entropyLossFn: string;
  entropyCoef: number;
}

/**
 * A policy loss. Where it reads advantages and the batch has only rewards and groups, they are GRPO's.
 * @param args under either spelling.
 * @throws LossError `ERR_UNKNOWN_NAME`, `ERR_INVALID_OPTION`
 */
export function lossSubject(name: string, args: Readonly<Record<string, unknown>>): Subject {
  const fn = POLICY_LOSS_FN.create(name, args);
  const needed = columnsOf(fn.backend, fn.selectKeys);
  const readsAdvantages = needed.includes('advantages');
  return {
    name,
    columns: readsAdvantages ? [...needed, 'reward', 'task_id'] : needed,
    async compute(batch) {
      if (!readsAdvantages) return { result: await fn.compute(batch, { grad: true }) };
      if (batch.advantages !== undefined || !batch.rewards || !batch.groupIds)
        return { result: await fn.compute(batch, { grad: true }), advantages: 'given' };
      const { advantages } = await ADVANTAGE_FN.create('grpo').compute(batch);
      return { result: await fn.compute({ ...batch, advantages }, { grad: true }), advantages: 'grpo' };
    },
    insteadOf: (column) =>
      column === 'advantages' ? ["both reward and task_id to compute it from by GRPO's rule"] : [],
  };
}

/**
 * An algorithm, which computes its advantages itself where the batch has none.
 * @param seed what random choices depend on.
 */
export function objectiveSubject(objective: Objective, seed?: number): Subject {
  const { algorithm, policyLossFn, advantageFn, klLossFn, klPenaltyFn, entropyLossFn, backend } = objective;
  const penalises = !(klPenaltyFn instanceof DummyKLFn);
  const keys = [...policyLossFn.selectKeys];
  const readsAdvantages = keys.includes('advantages');
  if (readsAdvantages && advantageFn) keys.push(...advantageFn.selectKeys);
  if (keys.includes('token_level_rewards')) keys.push('rewards');
  if (penalises) keys.push('old_logprob', 'ref_logprob');
  if (!(klLossFn instanceof DummyKLFn)) keys.push('ref_logprob');
  if (klLossFn instanceof CorrectedK3Fn) keys.push('old_logprob');
  if (entropyLossFn.rows !== 'none') keys.push('entropy');
  if (entropyLossFn.rows === 'usual') keys.push('expert_mask');

  const advantageName = advantageFn && nameOf(ADVANTAGE_FN, advantageFn);
  const parts: AlgorithmParts = {
    policyLossFn: nameOf(POLICY_LOSS_FN, policyLossFn),
    ...(advantageName !== undefined && { advantageFn: advantageName }),
    klLossFn: nameOf(KL_FN, klLossFn),
    klCoef: klLossFn.klCoef,
    ...(penalises && { klPenaltyFn: nameOf(KL_FN, klPenaltyFn) }),
    entropyLossFn: nameOf(ENTROPY_LOSS_FN, entropyLossFn),
    entropyCoef: entropyLossFn.entropyCoef,
  };
  const options = { grad: true, ...(seed !== undefined && { seed }) };
  return {
    name: algorithm,
    columns: columnsOf(backend, keys),
    parts,
    async compute(batch) {
      const result = await objective.compute(batch, options);
      if (!readsAdvantages) return { result };
      return { result, advantages: batch.advantages === undefined ? advantageName! : 'given' };
    },
    insteadOf: (column) => {
      if (!OF_ADVANTAGES.has(column)) return [];
      return column === 'token_level_rewards' ? ['reward', 'advantages'] : ['advantages'];
    },
  };
}

// What only advantage functions read.
const OF_ADVANTAGES: ReadonlySet<RolloutColumn> = new Set([
  'reward',
  'token_level_rewards',
  'values',
  'reward_baseline',
  'task_id',
  'run_id',
  'teacher_logprobs',
]);

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
