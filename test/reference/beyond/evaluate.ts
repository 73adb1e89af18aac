/** Evaluates the formulas of other frameworks' losses, with the gradients of everything that a formula reads. */
import { Tape, type Variable } from '../autograd.js';
import { type Args, type Formula, type ReferenceBatch, type ReferenceResult, Tokens } from '../batch.js';

export interface BeyondResult extends Omit<ReferenceResult, 'grad'> {
  /** The gradient with respect to logprob, B×T (rows × columns). */
  gradLogprob: Float64Array;
  /** The gradient with respect to entropy, B×T. Absent if the formula reads no entropy, or only as a constant. */
  gradEntropy?: Float64Array;
}

export type BeyondEvaluate = (args: Args, batch: ReferenceBatch, tape?: Tape) => BeyondResult;

function evaluator(formula: Formula): BeyondEvaluate {
  return (args, batch, tape = new Tape()) => {
    const x = new Tokens(tape, batch);
    const { loss, metrics } = formula(x, args);
    tape.backward(loss);
    const numbers = (of: (value: Variable) => number) =>
      Object.fromEntries(
        Object.entries(metrics).map(([name, value]) => [name, typeof value === 'number' ? value : of(value)]),
      );
    return {
      loss: loss.item,
      metrics: numbers((value) => value.item),
      gradLogprob: x.leaf('logprob').grad,
      ...(x.hasLeaf('entropy') ? { gradEntropy: x.leaf('entropy').grad } : {}),
      magnitude: { loss: loss.magnitudes[0]!, metrics: numbers((value) => value.magnitudes[0]!) },
    };
  };
}

/** Makes the functions that evaluate formulas, under the same names. */
export const evaluators = (formulas: Readonly<Record<string, Formula>>): Record<string, BeyondEvaluate> =>
  Object.fromEntries(Object.entries(formulas).map(([name, formula]) => [name, evaluator(formula)]));
