// Lists the functions to time: every loss in the package's registries, GRPO's whole objective, and the expressions of the
// golden cases. A function that is added to a registry is timed without a change here, unless it has an argument without
// a default. Only the package's public interface is used, so that compare-builds.ts can time other versions of it.
import { readFileSync } from 'node:fs';
import type * as Package from '../../lib/index.js';
import type {
  Batch,
  DeviceBatch,
  EntropyLossFn,
  HalfColumn,
  KLFn,
  Objective,
  PolicyLossFn,
  RewardLossFn,
  ValueLossFn,
} from '../../lib/index.js';
import { GROUP_SIZE, type Shape } from './batch.js';

/** The interface of the package whose functions are timed. */
export type Api = typeof Package;

/** The arrays that receive the gradients of a call. */
export interface Gradients<A = Float32Array | HalfColumn> {
  grad?: A;
  gradEntropy?: A;
}

/** The loss and the metrics of a call. */
export interface Outcome {
  loss: number;
  metrics: Partial<Record<string, number>>;
}

/**
 * The family of a function. 'framework' has the policy losses of verl, TRL and papers, which
 * this package defines by expressions.
 */
export type Family =
  | 'policy'
  | 'framework'
  | 'kl'
  | 'entropy'
  | 'value'
  | 'reward'
  | 'objective'
  | 'expression';

type AnyMetrics = Partial<Record<string, number>>;
/** Any policy loss. */
export type AnyLossFn = PolicyLossFn<AnyMetrics>;
/** Any loss of values or of rewards. */
export type AnyColumnLossFn = ValueLossFn<AnyMetrics> | RewardLossFn<AnyMetrics>;

/** A function to time, in the form that all benchmarks share. */
export interface Work {
  /** The function's name in tables and result files, such as 'ppo', 'kl k3', 'entropy mix' or 'grpo objective'. */
  readonly id: string;
  readonly family: Family;
  /** The function's name in its registry, such as 'k3', or the text of an expression. */
  readonly name: string;
  /** The arguments that differ from the function's defaults, under Trinity-RFT's names. */
  readonly args: Record<string, number>;
  /** The columns with respect to which the loss is differentiated. Only rewards have one value per row. */
  readonly wrt: readonly ('logprob' | 'entropy' | 'values' | 'rewards')[];
  readonly fn: AnyLossFn | AnyColumnLossFn | KLFn | EntropyLossFn | Objective;
  /** With `grad: true`, the gradient is in an array that the call returns. */
  compute(batch: Batch | DeviceBatch, gradients?: Gradients | { grad: true }): Promise<Outcome>;
  computeSync(batch: Batch | DeviceBatch, gradients?: Gradients): Outcome;
}

/**
 * The entropy coefficient. With the default of 0, all results would be 0, and a comparison with PyTorch could find no
 * error.
 */
const ENTROPY_COEF = 0.01;

/**
 * The arguments of policy losses that have no default. By default, trl/tpo reads three rows for each pair, and the rows of
 * the batch are pairs.
 */
const ARGUMENTS: Record<string, Record<string, number>> = {
  'verl/dro': { dro_beta: 0.1 },
  'verl/gvpo': { n: GROUP_SIZE },
  'verl/online_dpo': { beta: 0.1 },
  'trl/tpo': { tpo_alpha: 0 },
};

/** Returns the functions to time, PPO first. If a pattern is given, returns only the functions whose id matches it. */
export function works(api: Api, only?: RegExp): Work[] {
  // `none` computes nothing. Older versions of the package lack some registries.
  const names = (registry: { names(): string[] } | undefined) =>
    registry?.names().filter((name) => name !== 'none') ?? [];
  const all = [
    ...names(api.POLICY_LOSS_FN).map((name) => policyLoss(api, name)),
    ...names(api.KL_FN).map((name) => kl(api, name)),
    ...names(api.ENTROPY_LOSS_FN).map((name) => entropy(api, name)),
    ...names(api.VALUE_LOSS_FN).map((name) => ofColumn('value', name, api.VALUE_LOSS_FN.create(name))),
    ...names(api.REWARD_LOSS_FN).map((name) => ofColumn('reward', name, api.REWARD_LOSS_FN.create(name))),
    grpoObjective(api),
    ...expressions(api),
  ];
  return only ? all.filter(({ id }) => only.test(id)) : all;
}

function policyLoss(api: Api, name: string): Work {
  const args = ARGUMENTS[name] ?? {};
  const { declaration } = api.POLICY_LOSS_FN.get(name) as { declaration?: { source: readonly string[] } };
  const family = declaration?.source.includes('Trinity-RFT') ? 'policy' : 'framework';
  return ofLoss({ id: name, family, name, args }, api.POLICY_LOSS_FN.create(name, args));
}

function ofLoss(named: Pick<Work, 'id' | 'family' | 'name' | 'args'>, fn: AnyLossFn | Objective): Work {
  return {
    ...named,
    wrt: ['logprob'],
    fn,
    compute: (batch, gradients) => fn.compute(batch, gradients),
    computeSync: (batch, gradients) => fn.computeSync(batch, gradients),
  };
}

function kl(api: Api, name: string): Work {
  const fn = api.KL_FN.create(name);
  return {
    ...{ id: `kl ${name}`, family: 'kl', name, args: {}, wrt: ['logprob'], fn },
    compute: (batch, gradients) => fn.calculateKlLoss(batch, gradients),
    computeSync: (batch, gradients) => fn.calculateKlLossSync(batch, gradients),
  };
}

function entropy(api: Api, name: string): Work {
  const args = { entropy_coef: ENTROPY_COEF };
  const fn = api.ENTROPY_LOSS_FN.create(name, args);
  // An entropy loss calls its gradient `grad`. Objectives and the benchmarks call it `gradEntropy`.
  const options = (given: Gradients | { grad: true } = {}) =>
    'gradEntropy' in given && given.gradEntropy ? { grad: given.gradEntropy } : {};
  return {
    ...{ id: `entropy ${name}`, family: 'entropy', name, args, wrt: ['entropy'], fn },
    compute: (batch, gradients) => fn.compute(batch, options(gradients)),
    computeSync: (batch, gradients) => fn.computeSync(batch, options(gradients)),
  };
}

function ofColumn(family: 'value' | 'reward', name: string, fn: AnyColumnLossFn): Work {
  return {
    ...{ id: name, family, name, args: {}, wrt: family === 'value' ? ['values'] : ['rewards'], fn },
    compute: (batch, gradients) => fn.compute(batch, gradients as Gradients<Float32Array>),
    computeSync: (batch, gradients) => fn.computeSync(batch, gradients as Gradients<Float32Array>),
  };
}

function grpoObjective(api: Api): Work {
  const args = { entropy_coef: ENTROPY_COEF };
  const fn = api.ALGORITHM_TYPE.get('grpo').objective({ entropy_loss_fn_args: args });
  const named = { id: 'grpo objective', family: 'objective', name: 'grpo', args } as const;
  return { ...ofLoss(named, fn), wrt: ['logprob', 'entropy'] };
}

/**
 * Returns the expressions of the golden cases, averaged over tokens. torch_losses.py has each of them under its text.
 */
function expressions(api: Api): Work[] {
  const file = new URL('../../test/golden/frameworks/expressions.json', import.meta.url);
  const cases: { expression: string; args: Record<string, number> }[] = JSON.parse(
    readFileSync(file, 'utf8'),
  );
  return cases.map(({ expression: name, args }) => {
    const fn = api.lossFromExpression(name, { options: args, lossAggMode: 'token-mean' });
    return ofLoss({ id: `expression ${name}`, family: 'expression', name, args }, fn);
  });
}

/** Returns how many values each of a function's gradients has. */
export function gradientLength({ wrt }: Pick<Work, 'wrt'>, [rows, columns]: Shape): number {
  return wrt.includes('rewards') ? rows : rows * columns;
}

/**
 * Returns arrays for a function's gradients. They are filled, so that the operating system provides their memory before
 * the timing starts.
 */
export function gradientsOf(work: Pick<Work, 'wrt'>, shape: Shape): Gradients<Float32Array> {
  return gradientArrays(work, () => new Float32Array(gradientLength(work, shape)).fill(1));
}

/** Does the same for gradients in 16 bits. Those of rewards have 32 bits. */
export function halfGradientsOf(
  work: Pick<Work, 'wrt'>,
  shape: Shape,
  dtype: HalfColumn['dtype'],
): Gradients {
  if (work.wrt.includes('rewards')) return gradientsOf(work, shape);
  return gradientArrays(work, () => ({ data: new Uint16Array(gradientLength(work, shape)).fill(1), dtype }));
}

function gradientArrays<A>({ wrt }: Pick<Work, 'wrt'>, make: () => A): Gradients<A> {
  return {
    ...(wrt.some((column) => column !== 'entropy') && { grad: make() }),
    ...(wrt.includes('entropy') && { gradEntropy: make() }),
  };
}
