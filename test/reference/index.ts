/**
 * Every loss of losses.md in plain float64, to hold the engine against. It shares no code with native/ or lib/, and
 * derives no gradient by hand: see autograd.ts.
 */
import { Tape, type Variable } from './autograd.js';
import { type Args, type Formula, type ReferenceBatch, type ReferenceResult, Tokens } from './batch.js';
import * as clipped from './clipped.js';
import { entropyFormulas } from './entropy.js';
import { klEstimators, klLoss, klValues } from './kl.js';
import * as likelihood from './likelihood.js';
import * as mixed from './mixed.js';

export type { Args, ReferenceBatch, ReferenceResult } from './batch.js';
export { muSchedule } from './mixed.js';

export type Evaluate = (args: Args, batch: ReferenceBatch) => ReferenceResult;
type Wrt = 'logprob' | 'entropy';

/** By family and registry name, the bare formulas. */
export const formulas: Record<'policy' | 'kl' | 'entropy', Record<string, Formula>> = {
  policy: {
    ppo: clipped.ppo,
    gspo: clipped.gspo,
    cispo: clipped.cispo,
    topr: clipped.topr,
    sapo: clipped.sapo,
    sppo: clipped.sppo,
    rec: clipped.rec,
    importance_sampling: clipped.importanceSampling,
    opmd: likelihood.opmd,
    sft: likelihood.sft,
    sft_is: likelihood.sftIs,
    sft_phi: likelihood.sftPhi,
    dpo: likelihood.dpo,
    mix: mixed.mix,
    mix_chord: mixed.mixChord,
  },
  kl: Object.fromEntries(Object.keys(klEstimators).map((name) => [name, klLoss(name)])),
  entropy: entropyFormulas,
};

function evaluator(formula: Formula, wrt: Wrt): Evaluate {
  return (args, batch) => {
    const x = new Tokens(new Tape(), batch);
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

/** `values`: per token, B×T, under the mask too: calculate_kl knows no mask. */
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
 * The slope of the loss in one element of logprob (or entropy) by a central difference, everything under a
 * stop-gradient standing still. Undefined where the two sides lie on different branches: a kink is between them.
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
  if (up.branches.some((branch, i) => branch !== down.branches[i])) return undefined;
  return (up.loss - down.loss) / (2 * h);
}

/**
 * Whether rounding the inputs' differences in float32 could carry a token over one of the formula's thresholds. It
 * takes each difference lp − old (lp − ref) that is not exactly 0 a little more and a little less, by several times
 * what float32 rounds, and looks whether any choice the formula makes comes out otherwise.
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
  // Up, down, and rows against each other, which is how dpo compares them.
  const moves = [() => 1, () => -1, (i: number) => (Math.floor(i / batch.columns) % 2 ? 1 : -1)];
  return moves.some((sign) => branches(sign).some((branch, i) => branch !== here[i]));
}
