/**
 * Computes every loss in plain float64, so that tests can compare the library with it. Also holds the losses as
 * expressions. Shares no code with native/ or lib/. Gradients are computed by autograd.ts.
 */
import { Tape, type Variable } from './autograd.js';
import {
  type Args,
  type Formula,
  type Loss,
  type Outcome,
  type ReferenceBatch,
  type ReferenceResult,
  Tokens,
} from './batch.js';
import * as clipped from './clipped.js';
import { entropyFormulas } from './entropy.js';
import { distillationFormulas } from './families/distillation.js';
import { preferenceFormulas } from './families/preference.js';
import { rewardFormulas } from './families/rewards.js';
import { sftFormulas } from './families/sft.js';
import { supervisedFormulas } from './families/supervised.js';
import { valueFormulas } from './families/values.js';
import { papersFormulas } from './frameworks/papers.js';
import { klEstimators, klLoss, klValues } from './kl.js';
import * as likelihood from './likelihood.js';
import * as mixed from './mixed.js';
import { trlFormulas } from './trl.js';
import { verlFormulas } from './verl.js';

export type { Args, ReferenceBatch, ReferenceResult, Written } from './batch.js';

export type Evaluate = (args: Args, batch: ReferenceBatch, tape?: Tape) => ReferenceResult;
export type Wrt = 'logprob' | 'entropy' | 'entropyOther' | 'values' | 'rewards' | 'logits' | 'probs';

/** Returns the losses that a file exports, by registry name: `sftIs` becomes `sft_is`. */
function lossesOf(exported: Readonly<Record<string, Loss>>): Record<string, Loss> {
  return Object.fromEntries(
    Object.entries(exported).map(([name, loss]) => [
      name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      loss,
    ]),
  );
}

/** Returns the losses that the library itself defines by expressions. */
function expressionLosses(family: Record<string, Formula>): Record<string, Loss> {
  const notWritten = 'is itself defined by an expression';
  return Object.fromEntries(Object.entries(family).map(([name, formula]) => [name, { formula, notWritten }]));
}

/**
 * The policy losses and KL losses, by registry name. Entropy losses have no expressions, because the gradient of an
 * expression is with respect to logprob.
 */
export const losses: Record<'policy' | 'kl', Record<string, Loss>> = {
  policy: {
    ...lossesOf(clipped),
    ...lossesOf(likelihood),
    ...lossesOf(mixed),
    ...expressionLosses({
      ...verlFormulas,
      ...trlFormulas,
      ...papersFormulas,
      ...supervisedFormulas,
      ...preferenceFormulas,
    }),
  },
  kl: Object.fromEntries(Object.keys(klEstimators).map((name) => [name, klLoss(name)])),
};

const formulasOf = (family: Record<string, Loss>): Record<string, Formula> =>
  Object.fromEntries(Object.entries(family).map(([name, { formula }]) => [name, formula]));

/** The formulas of all losses, by family and registry name. */
export const formulas: Record<
  'policy' | 'kl' | 'entropy' | 'value' | 'reward' | 'logits',
  Record<string, Formula>
> = {
  policy: formulasOf(losses.policy),
  kl: formulasOf(losses.kl),
  entropy: entropyFormulas,
  value: valueFormulas,
  reward: rewardFormulas,
  logits: { ...distillationFormulas, ...sftFormulas },
};

/** Makes the function that evaluates a formula and computes its gradient with respect to `wrt`. */
export function evaluator(formula: Formula, wrt: Wrt): Evaluate {
  return (args, batch, tape = Tape.ofGradients()) => {
    const x = new Tokens(tape, batch);
    const { loss, metrics } = formula(x, args);
    x.tape.backward(loss);
    const { values, magnitudes } = metricNumbers(metrics);
    return {
      loss: loss.item,
      metrics: values,
      grad: x.leaf(wrt).grad,
      ...gradOfOther(x, wrt),
      ...(batch.logZ && wrt === 'logprob' ? { gradLogZ: x.leaf('logZ').grad } : {}),
      magnitude: { loss: loss.magnitudes[0]!, metrics: magnitudes },
    };
  };
}

/** The gradient with respect to the further column of a policy loss: the entropies, or what takes their place. */
function gradOfOther(x: Tokens, wrt: Wrt): { gradEntropy?: Float64Array } {
  const column = (['entropy', 'entropyOther'] as const).find((name) => x.hasLeaf(name));
  return wrt === 'logprob' && column ? { gradEntropy: x.leaf(column).grad } : {};
}

/** Returns the metrics' values and the sums of their terms' absolute values. */
export function metricNumbers(metrics: Outcome['metrics']) {
  const numbers = (of: (value: Variable) => number): Record<string, number> =>
    Object.fromEntries(
      Object.entries(metrics).map(([name, value]) => [name, typeof value === 'number' ? value : of(value)]),
    );
  return {
    values: numbers((value) => value.item),
    magnitudes: numbers((value) => value.magnitudes[0]!),
  };
}

export const evaluators = (family: Record<string, Formula>, wrt: Wrt): Record<string, Evaluate> =>
  Object.fromEntries(Object.entries(family).map(([name, formula]) => [name, evaluator(formula, wrt)]));

export const referencePolicyLosses = evaluators(formulas.policy, 'logprob');
export const referenceEntropyLosses = evaluators(formulas.entropy, 'entropy');
export const referenceValueLosses = evaluators(formulas.value, 'values');
export const referenceRewardLosses = evaluators(formulas.reward, 'rewards');

/**
 * A KL function. `values` returns a B×T array (rows × columns) that includes masked tokens, because Trinity-RFT's
 * calculate_kl reads no mask.
 */
export interface ReferenceKl {
  values(batch: ReferenceBatch): Float64Array;
  loss: Evaluate;
}

/** Makes a KL function from its estimator and its loss. */
export const klReference = (estimate: (x: Tokens) => Variable, loss: Formula): ReferenceKl => ({
  values(batch) {
    const out = new Float64Array(batch.rows * batch.columns);
    const x = new Tokens(new Tape(), { ...batch, actionMask: out.map(() => 1) });
    estimate(x).value.forEach((value, i) => {
      out[x.index[i]!] = value;
    });
    return out;
  },
  loss: evaluator(loss, 'logprob'),
});

/** The KL functions by registry name. */
export const referenceKl: Record<string, ReferenceKl> = Object.fromEntries(
  Object.entries(formulas.kl).map(([name, formula]) => [
    name,
    klReference((x) => klValues(name, x), formula),
  ]),
);

/**
 * Returns the slope of the loss with respect to one element of a column, computed as a central difference.
 * Detached values do not change. Returns undefined if the formula takes another branch at one of the two points.
 */
export function centralDifference(
  formula: Formula,
  args: Args,
  batch: ReferenceBatch,
  wrt: Wrt,
  element: number,
  h = 1e-5,
): number | undefined {
  const here = new Tokens(Tape.ofBranches(), batch);
  formula(here, args);
  const side = (offset: number) => {
    const moved = Float64Array.from(batch[wrt]!);
    moved[element]! += offset;
    const x = new Tokens(Tape.ofBranches(here.tape.detached), { ...batch, [wrt]: moved });
    return { loss: formula(x, args).loss.item, branches: x.tape.branches };
  };
  const [up, down] = [side(h), side(-h)];
  const { branches } = here.tape;
  if (differ(up.branches, branches) || differ(down.branches, branches)) return undefined;
  return (up.loss - down.loss) / (2 * h);
}

function differ(some: readonly number[], others: readonly number[]): boolean {
  return some.length !== others.length || some.some((branch, i) => branch !== others[i]);
}

/** Columns of a batch, as they are or moved. */
type Columns = Partial<Record<(typeof MOVED)[number], Float64Array>>;

const MOVED = ['logprob', 'rolloutLogprob', 'proxLogprob', 'entropy', 'values'] as const;

// The columns with which others than log-probabilities are compared.
const OTHERS: { [name: string]: ((batch: ReferenceBatch) => ArrayLike<number> | undefined) | undefined } = {
  entropy: (batch) => batch.oldEntropy,
  values: (batch) => batch.oldValues,
};

// The directions in which elements move. dpo compares even rows with odd rows, so the third change moves them in opposite
// directions.
const DIRECTIONS: readonly ((i: number, columns: number) => number)[] = [
  () => 1,
  () => -1,
  (i, columns) => (Math.floor(i / columns) % 2 ? 1 : -1),
];

// Keeps the moved columns of batches, because many losses are evaluated on the same batch.
const moved = new WeakMap<ReferenceBatch, Columns[]>();

/** Moves the elements that differ from another column, by several float32 rounding errors. */
function nudged(batch: ReferenceBatch, direction: number): Columns {
  const known = moved.get(batch) ?? [];
  moved.set(batch, known);
  known[direction] ??= Object.fromEntries(
    MOVED.flatMap((name) => {
      const column = batch[name];
      if (!column) return [];
      const other = OTHERS[name]?.(batch) ?? batch.oldLogprob ?? batch.refLogprob;
      const out = new Float64Array(column.length);
      for (let i = 0; i < out.length; i++) {
        const d = column[i]! - (other?.[i] ?? 0);
        const sign = DIRECTIONS[direction]!(i, batch.columns);
        out[i] = d === 0 ? column[i]! : column[i]! + sign * 1e-6 * (1 + Math.abs(d));
      }
      return [[name, out]];
    }),
  );
  return known[direction];
}

/**
 * Returns whether rounding to float32 could move a token across one of the formula's thresholds. Changes each nonzero
 * difference between logprob, rolloutLogprob or proxLogprob and oldLogprob (or refLogprob), and between entropy and
 * oldEntropy, and values and oldValues, and checks whether the formula then takes another branch.
 */
export function standsOnEdge(formula: Formula, args: Args, batch: ReferenceBatch): boolean {
  if (!batch.logprob && !batch.values) return false;
  const run = (columns: Columns) => {
    const x = new Tokens(Tape.ofBranches(), { ...batch, ...columns });
    formula(x, args);
    return x.tape;
  };
  const here = run({});
  if (here.isOnEdge) return true;
  if (here.branches.length === 0) return false;
  return DIRECTIONS.some((_, direction) => {
    const { branches } = run(nudged(batch, direction));
    return differ(branches, here.branches);
  });
}
