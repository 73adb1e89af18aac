// What the command line evaluates on rollouts: a policy loss, or an algorithm's objective. Advantages and the loss are
// two steps here, as rows that come in parts get the advantages of the whole before the parts are computed.
import type { MadeAdvantages } from '../algorithm/objective.js';
import type { ComputedAdvantages } from '../core/evaluator.js';
import { toCamelCase } from '../core/options.js';
import {
  ADVANTAGE_FN,
  type AdvantageFn,
  type Batch,
  CorrectedK3Fn,
  DPOLossFn,
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
} from '../index.js';
import { columnOfKey, type RolloutColumn } from '../rollouts/index.js';

/** Something to evaluate. */
export interface Subject {
  /** What it is registered as. */
  readonly name: string;
  /** Its name with the options that were given, as on a command line. */
  readonly title: string;
  /** Those options by their names on the command line, without dashes. */
  readonly given: Readonly<Record<string, unknown>>;
  /** The columns that it may read beside logprobs and action_mask. */
  readonly columns: readonly RolloutColumn[];
  /** What an algorithm is made of. */
  readonly parts?: AlgorithmParts;
  /** Its policy loss alone. */
  readonly policyLossFn: PolicyLossFn<Partial<Record<string, number>>>;
  /** Whether rows count by expert's and usual ones. */
  readonly tellsExperts: boolean;
  /** Whether it reads advantages. */
  readonly readsAdvantages: boolean;
  /** How it makes advantages of a batch that has none; undefined: it does not. */
  readonly advantages?: AdvantageStep;
  /** What it would take in the place of a column that the files lack, as a message says it. */
  insteadOf(column: RolloutColumn): readonly string[];
  /** Computes a batch, or with a normalizer a part of one, with the advantages that were made for its rows. */
  compute(
    batch: Batch,
    computed: ComputedAdvantages | undefined,
    options: SubjectOptions,
  ): Promise<SubjectResult>;
}

/** How advantages are made. */
export interface AdvantageStep {
  /** The function's name. */
  name: string;
  fn: AdvantageFn;
  /** The same in all subjects that would make the same of the same batch. */
  key: string;
  /** What random choices depend on. */
  seed?: number;
  /** Whether they are made of this batch, or taken as they stand in it. */
  isFor(batch: Batch): boolean;
  /** Makes them of a batch that is no part of another. */
  make(batch: Batch): Promise<MadeAdvantages>;
  /** The batch as the function sees it: with a KL penalty taken from its rewards, if there is one. */
  penalised(batch: Batch): Promise<{ batch: Batch; metrics: Metrics }>;
  /** Whether that penalty's coefficient changes from one batch to the next. */
  adapts: boolean;
}

/** What a subject's call takes. */
export interface SubjectOptions {
  /** Where to write ∂loss/∂logprob. */
  grad: Float32Array;
  /** 'cpu' by default. */
  device?: string;
  /** The counts of all parts. */
  normalizer?: Normalizer;
}

/** What came of it. */
export type SubjectResult = Result<Partial<Record<string, number>>> & { gradEntropy?: Float32Array };

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

/** What a subject was called on the command line. */
export type SubjectLabel = Pick<Subject, 'title' | 'given'>;

/** Whether a subject's rows are pairs, which stay together. */
export function takesPairs({ policyLossFn }: Subject): boolean {
  return policyLossFn instanceof DPOLossFn;
}

/**
 * A policy loss. Where it reads advantages and the batch has only rewards and groups, they are GRPO's.
 * @param args under either spelling.
 * @throws LossError `ERR_UNKNOWN_NAME`, `ERR_INVALID_OPTION`
 */
export function lossSubject(
  name: string,
  args: Readonly<Record<string, unknown>>,
  label: SubjectLabel,
): Subject {
  const fn = POLICY_LOSS_FN.create(name, args);
  const needed = columnsOf(fn.backend, fn.selectKeys);
  const readsAdvantages = needed.includes('advantages');
  const grpo = ADVANTAGE_FN.create('grpo');
  return {
    name,
    ...label,
    columns: readsAdvantages ? [...needed, 'reward', 'task_id'] : needed,
    policyLossFn: fn,
    tellsExperts: fn.reads.expertMask,
    readsAdvantages,
    ...(readsAdvantages && {
      advantages: {
        name: 'grpo',
        fn: grpo,
        key: 'grpo',
        isFor: ({ advantages, rewards, groupIds }) =>
          advantages === undefined && rewards !== undefined && groupIds !== undefined,
        make: (batch) => grpo.computeFor(batch, undefined, true),
        penalised: async (batch) => ({ batch, metrics: {} }),
        adapts: false,
      },
    }),
    compute(batch, computed, options) {
      return fn.compute(computed ? { ...batch, advantages: perToken(batch, computed) } : batch, options);
    },
    insteadOf: (column) =>
      column === 'advantages' ? ["both reward and task_id to compute it from by GRPO's rule"] : [],
  };
}

/**
 * An algorithm, which computes its advantages itself where the batch has none.
 * @param seed what random choices depend on.
 */
export function objectiveSubject(
  objective: Objective,
  seed: number | undefined,
  label: SubjectLabel,
): Subject {
  const { algorithm, policyLossFn, advantageFn, klLossFn, klPenaltyFn, entropyLossFn, backend } = objective;
  const penalises = !(klPenaltyFn instanceof DummyKLFn);
  const keys = [...policyLossFn.selectKeys];
  if (advantageFn) keys.push('advantages', ...advantageFn.selectKeys);
  if (keys.includes('token_level_rewards')) keys.push('rewards');
  if (penalises) keys.push('old_logprob', 'ref_logprob');
  if (!(klLossFn instanceof DummyKLFn)) keys.push('ref_logprob');
  if (klLossFn instanceof CorrectedK3Fn) keys.push('old_logprob');
  if (entropyLossFn.rows !== 'none') keys.push('entropy');
  const tellsExperts = policyLossFn.reads.expertMask || entropyLossFn.rows === 'usual';
  if (tellsExperts) keys.push('expert_mask');

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
  const seeded = seed === undefined ? {} : { seed };
  return {
    name: algorithm,
    ...label,
    columns: columnsOf(backend, keys),
    parts,
    policyLossFn,
    tellsExperts,
    readsAdvantages: policyLossFn.selectKeys.includes('advantages'),
    ...(advantageFn && {
      advantages: {
        name: advantageName!,
        fn: advantageFn,
        key: JSON.stringify([
          advantageFn.definition,
          seed,
          penalises && [parts.klPenaltyFn, klPenaltyFn.klCoef],
        ]),
        ...seeded,
        isFor: ({ advantages }) => advantages === undefined,
        make: async (batch) => (await objective.advantagesOf(batch, seeded))!,
        penalised: (batch) => objective.penalised(batch),
        adapts: klPenaltyFn.adaptive,
      },
    }),
    compute: (batch, computed, options) =>
      objective.computeWith(
        batch,
        computed?.perRow && policyLossFn.readsMaskedAdvantages
          ? { ...computed, column: perToken(batch, computed), perRow: false }
          : computed,
        options,
      ),
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

/** Advantages as a column per token, 0 under the mask where they are one per row. */
export function perToken(batch: Batch, { column, perRow }: ComputedAdvantages): Float32Array {
  if (!perRow) return column;
  const offsets = batch.cuSeqlens as Int32Array;
  const mask = batch.actionMask as Uint8Array;
  const tokens = new Float32Array(mask.length);
  for (let row = 0; row < column.length; row++)
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) if (mask[t] !== 0) tokens[t] = column[row]!;
  return tokens;
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
