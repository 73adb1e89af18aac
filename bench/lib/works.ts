// Lists the functions to time: every loss in the package's registries, and GRPO's whole objective. A function that is
// added to a registry is timed without a change here, unless it has an argument without a default.
import type { NativeFunctionSpec } from '../../binding.js';
import {
  ALGORITHM_TYPE,
  type Batch,
  type DeviceBatch,
  ENTROPY_LOSS_FN,
  type HalfColumn,
  KL_FN,
  POLICY_LOSS_FN,
  type PolicyLossFn,
} from '../../lib/index.js';
import { GROUP_SIZE, type NativeReads } from './batch.js';

/** The arrays that receive the gradients of a call. */
export interface Gradients<A = Float32Array> {
  grad?: A;
  gradEntropy?: A;
}

/** Requests the gradient with respect to log-probabilities in an array that the call returns. */
export interface ReturnedGradient {
  grad: true;
}

/** The results of a call: loss, metrics and gradients. */
export interface Outcome extends Gradients {
  loss: number;
  metrics: Partial<Record<string, number>>;
}

/**
 * The family of a function. 'framework' has the policy losses of other frameworks and papers than Trinity-RFT, which
 * this package defines by expressions.
 */
type Family = 'policy' | 'framework' | 'kl' | 'entropy' | 'objective' | 'expression';

/** A function to time, in the form that all benchmarks share, and the inputs that it reads. */
export interface Work extends NativeReads {
  /** The function's name in tables and result files, such as 'ppo', 'kl k3', 'entropy mix' or 'grpo objective'. */
  readonly id: string;
  readonly family: Family;
  /** The function's name in its registry, such as 'k3', or the text of an expression. */
  readonly name: string;
  /** The arguments that differ from the function's defaults, under Trinity-RFT's names. */
  readonly args: Record<string, number>;
  /** The columns with respect to which the loss is differentiated. */
  readonly wrt: readonly ('logprob' | 'entropy')[];
  /** Whether the function computes anything. It is false for `none`, which only writes zeros. */
  readonly computes: boolean;
  readonly spec: NativeFunctionSpec;
  /** With `grad: true`, returns the gradient in an array of its own. */
  compute(
    batch: Batch | DeviceBatch,
    gradients?: Gradients<Float32Array | HalfColumn> | ReturnedGradient,
  ): Promise<Outcome>;
  computeSync(batch: Batch | DeviceBatch, gradients?: Gradients): Outcome;
}

/**
 * The entropy coefficient. With the default of 0, all results would be 0, and a comparison with a peer could find no
 * error.
 */
const ENTROPY_COEF = 0.01;

/** The arguments of policy losses that have no default. */
const ARGUMENTS: Record<string, Record<string, number>> = {
  'verl/dro': { dro_beta: 0.1 },
  'verl/gvpo': { n: GROUP_SIZE },
  'verl/online_dpo': { beta: 0.1 },
};

function policyLoss(name: string): Work {
  const args = ARGUMENTS[name] ?? {};
  const fn = POLICY_LOSS_FN.create(name, args);
  const family = 'program' in fn.policyLoss ? 'framework' : 'policy';
  return policyWork({ id: name, family, name, args }, fn);
}

/** Returns the work that times a policy loss. */
export function policyWork(
  named: Pick<Work, 'id' | 'family' | 'name' | 'args'>,
  fn: PolicyLossFn<Partial<Record<string, number>>>,
): Work {
  return {
    ...named,
    wrt: ['logprob'],
    computes: true,
    ...fn.reads,
    spec: usualForm(fn),
    compute: (batch, gradients) => fn.compute(batch, gradients),
    computeSync: (batch, gradients) => fn.computeSync(batch, gradients),
  };
}

/** Returns the form of a policy loss for batches with all columns that it can read, with one value per token. */
function usualForm(fn: PolicyLossFn<Partial<Record<string, number>>>): NativeFunctionSpec {
  const made = fn.withTerms({});
  return 'spec' in made ? made.spec((1 << made.optional.length) - 1) : made;
}

function kl(name: string): Work {
  const fn = KL_FN.create(name);
  const term = fn.term('token-mean', true);
  return {
    id: `kl ${name}`,
    family: 'kl',
    name,
    args: {},
    wrt: ['logprob'],
    computes: term !== undefined,
    columns: term ? ['logprob', 'ref_logprob', ...(fn.usesOldLogprob ? (['old_logprob'] as const) : [])] : [],
    rowColumns: [],
    expertMask: false,
    spec: term ? { kl: term } : {},
    compute: (batch, gradients) => fn.calculateKlLoss(batch, gradients),
    computeSync: (batch, gradients) => fn.calculateKlLossSync(batch, gradients),
  };
}

function entropy(name: string): Work {
  const fn = ENTROPY_LOSS_FN.create(name, { entropy_coef: ENTROPY_COEF });
  const term = fn.term('token-mean');
  // In its options and results, an entropy loss calls its gradient `grad`. Objectives and the benchmarks call it
  // `gradEntropy`.
  const options = (given: Gradients<Float32Array | HalfColumn> | ReturnedGradient = {}) =>
    'gradEntropy' in given && given.gradEntropy ? { grad: given.gradEntropy } : {};
  const outcome = ({ grad, ...rest }: Outcome): Outcome => ({ ...rest, ...(grad && { gradEntropy: grad }) });
  return {
    id: `entropy ${name}`,
    family: 'entropy',
    name,
    args: { entropy_coef: ENTROPY_COEF },
    wrt: ['entropy'],
    computes: term !== undefined,
    columns: term ? ['entropy'] : [],
    rowColumns: [],
    expertMask: fn.rows === 'usual',
    spec: term ? { entropy: term } : {},
    compute: async (batch, gradients) => outcome(await fn.compute(batch, options(gradients))),
    computeSync: (batch, gradients) => outcome(fn.computeSync(batch, options(gradients))),
  };
}

function grpoObjective(): Work {
  const args = { entropy_coef: ENTROPY_COEF };
  const objective = ALGORITHM_TYPE.get('grpo').objective({ entropy_loss_fn_args: args });
  const { policyLossFn, klLossFn, entropyLossFn, lossAggMode } = objective;
  const kl = klLossFn.term(lossAggMode, true);
  const entropy = entropyLossFn.term(lossAggMode);
  return {
    id: 'grpo objective',
    family: 'objective',
    name: 'grpo',
    args,
    wrt: ['logprob', 'entropy'],
    computes: true,
    columns: [...policyLossFn.reads.columns, 'ref_logprob', 'entropy'],
    rowColumns: [],
    expertMask: false,
    spec: {
      policyLoss: policyLossFn.policyLoss,
      ...(kl && { kl }),
      ...(entropy && { entropy }),
    },
    compute: (batch, gradients) => objective.compute(batch, gradients),
    computeSync: (batch, gradients) => objective.computeSync(batch, gradients),
  };
}

/** Returns the functions to time, PPO first. If a pattern is given, returns only the functions whose id matches it. */
export function works(only: RegExp | undefined): Work[] {
  const all = [
    ...POLICY_LOSS_FN.names().map(policyLoss),
    ...KL_FN.names().map(kl),
    ...ENTROPY_LOSS_FN.names().map(entropy),
    grpoObjective(),
  ];
  return only ? all.filter(({ id }) => only.test(id)) : all;
}

/**
 * Returns arrays for a function's gradients. They are filled, so that the operating system provides their memory before
 * the timing starts.
 */
export function gradientsOf(work: Work, tokens: number): Gradients {
  return gradientArrays(work, () => new Float32Array(tokens).fill(1));
}

/** Does the same for gradients in 16 bits. */
export function halfGradientsOf(
  work: Work,
  tokens: number,
  dtype: HalfColumn['dtype'],
): Gradients<HalfColumn> {
  return gradientArrays(work, () => ({ data: new Uint16Array(tokens).fill(1), dtype }));
}

function gradientArrays<A>({ wrt }: Work, make: () => A): Gradients<A> {
  return {
    ...(wrt.includes('logprob') && { grad: make() }),
    ...(wrt.includes('entropy') && { gradEntropy: make() }),
  };
}
