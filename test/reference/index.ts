/**
 * Computes every loss in plain float64, so that tests can compare the library with it. Also holds the losses as
 * expressions. Shares no code with native/ or lib/. Gradients are computed by autograd.ts.
 */
import { Tape, type Variable } from './autograd.js';
import {
  type Args,
  type Formula,
  type Loss,
  type ReferenceBatch,
  type ReferenceResult,
  Tokens,
} from './batch.js';
import * as clipped from './clipped.js';
import { entropyFormulas } from './entropy.js';
import { klEstimators, klLoss, klValues } from './kl.js';
import * as likelihood from './likelihood.js';
import * as mixed from './mixed.js';

export type { Args, ReferenceBatch, ReferenceResult, Written } from './batch.js';

export type Evaluate = (args: Args, batch: ReferenceBatch, tape?: Tape) => ReferenceResult;
type Wrt = 'logprob' | 'entropy';

/** Returns the losses that a file exports, by registry name: `sftIs` becomes `sft_is`. */
function lossesOf(exported: Readonly<Record<string, Loss>>): Record<string, Loss> {
  return Object.fromEntries(
    Object.entries(exported).map(([name, loss]) => [
      name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      loss,
    ]),
  );
}

/**
 * The policy losses and KL losses, by registry name. Entropy losses have no expressions, because the gradient of an
 * expression is with respect to logprob.
 */
export const losses: Record<'policy' | 'kl', Record<string, Loss>> = {
  policy: { ...lossesOf(clipped), ...lossesOf(likelihood), ...lossesOf(mixed) },
  kl: Object.fromEntries(Object.keys(klEstimators).map((name) => [name, klLoss(name)])),
};

const formulasOf = (family: Record<string, Loss>): Record<string, Formula> =>
  Object.fromEntries(Object.entries(family).map(([name, { formula }]) => [name, formula]));

/** The formulas of all losses, by family and registry name. */
export const formulas: Record<'policy' | 'kl' | 'entropy', Record<string, Formula>> = {
  policy: formulasOf(losses.policy),
  kl: formulasOf(losses.kl),
  entropy: entropyFormulas,
};

/** Makes the function that evaluates a formula and computes its gradient with respect to `wrt`. */
export function evaluator(formula: Formula, wrt: Wrt): Evaluate {
  return (args, batch, tape = new Tape()) => {
    const x = new Tokens(tape, batch);
    const { loss, metrics } = formula(x, args);
    x.tape.backward(loss);
    const numbers = (of: (value: Variable) => number) =>
      Object.fromEntries(
        Object.entries(metrics).map(([name, value]) => [name, typeof value === 'number' ? value : of(value)]),
      );
    return {
      loss: loss.item,
      metrics: numbers((value) => value.item),
      grad: x.leaf(wrt).grad,
      magnitude: { loss: loss.magnitudes[0]!, metrics: numbers((value) => value.magnitudes[0]!) },
    };
  };
}

const evaluators = (family: Record<string, Formula>, wrt: Wrt): Record<string, Evaluate> =>
  Object.fromEntries(Object.entries(family).map(([name, formula]) => [name, evaluator(formula, wrt)]));

export const referencePolicyLosses = evaluators(formulas.policy, 'logprob');
export const referenceEntropyLosses = evaluators(formulas.entropy, 'entropy');

/**
 * The KL functions by registry name. `values` returns a B×T array (rows × columns) that includes masked tokens, because
 * Trinity-RFT's calculate_kl reads no mask.
 */
export const referenceKl: Record<string, { values(batch: ReferenceBatch): Float64Array; loss: Evaluate }> =
  Object.fromEntries(
    Object.entries(formulas.kl).map(([name, formula]) => [
      name,
      {
        values(batch: ReferenceBatch) {
          const out = new Float64Array(batch.rows * batch.columns);
          const x = new Tokens(new Tape(), { ...batch, actionMask: out.map(() => 1) });
          klValues(name, x).value.forEach((value, i) => {
            out[x.index[i]!] = value;
          });
          return out;
        },
        loss: evaluator(formula, 'logprob'),
      },
    ]),
  );

/**
 * Returns the slope of the loss with respect to one element of logprob or entropy, computed as a central difference.
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
  const here = new Tokens(new Tape(), batch);
  formula(here, args);
  const side = (offset: number) => {
    const moved = Float64Array.from(batch[wrt]!);
    moved[element]! += offset;
    const x = new Tokens(new Tape(here.tape.detached), { ...batch, [wrt]: moved });
    return { loss: formula(x, args).loss.item, branches: x.tape.branches };
  };
  const [up, down] = [side(h), side(-h)];
  const isOnEdge = here.tape.branches.some(
    (branch, i) => branch !== up.branches[i] || branch !== down.branches[i],
  );
  if (isOnEdge) return undefined;
  return (up.loss - down.loss) / (2 * h);
}

/**
 * Returns whether rounding to float32 could move a token across one of the formula's thresholds. Changes each nonzero
 * difference between logprob and oldLogprob (or refLogprob) by several float32 rounding errors, and checks whether the
 * formula then takes another branch.
 */
export function standsOnEdge(formula: Formula, args: Args, batch: ReferenceBatch): boolean {
  const { logprob, oldLogprob, refLogprob } = batch;
  if (!logprob) return false;
  const branches = (sign: (i: number) => number) => {
    const moved = new Float64Array(logprob);
    for (let i = 0; i < moved.length; i++) {
      const d = moved[i]! - ((oldLogprob ?? refLogprob)?.[i] ?? 0);
      if (d !== 0) moved[i]! += sign(i) * 1e-6 * (1 + Math.abs(d));
    }
    const x = new Tokens(new Tape(), { ...batch, logprob: moved });
    formula(x, args);
    return x.tape.branches;
  };
  const here = branches(() => 0);
  // dpo compares even rows with odd rows, so the third change moves them in opposite directions.
  const moves = [() => 1, () => -1, (i: number) => (Math.floor(i / batch.columns) % 2 ? 1 : -1)];
  return moves.some((sign) => branches(sign).some((branch, i) => branch !== here[i]));
}
