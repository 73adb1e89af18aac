/** Tests of the float64 reference that all policy losses of a framework must pass. */
import assert from 'node:assert/strict';
import type { Formula } from '../reference/batch.js';
import type { Evaluate, ReferenceBatch } from '../reference/index.js';
import { agrees, allClose } from '../support/close.js';
import { cutRows, type FrameworkLossCase, referenceBatch } from '../support/golden.js';
import { poison } from '../support/poison.js';
import { slopesAgree } from '../support/slopes.js';

/** Compares everything that a case holds. `unreported` names the metrics that only the reference has. */
export function agreesWithCase(
  evaluate: Evaluate,
  { args, inputs, expected }: FrameworkLossCase,
  slack = 1,
  unreported: readonly string[] = [],
): void {
  const actual = evaluate(args, referenceBatch(inputs));
  for (const name of unreported) {
    assert.ok(name in actual.metrics, name);
    delete actual.metrics[name];
  }
  agrees(actual, expected, expected.grad_logprob.data, slack);
  assert.equal(actual.gradEntropy === undefined, expected.grad_entropy === undefined);
  if (expected.grad_entropy) allClose(actual.gradEntropy!, expected.grad_entropy.data, 'gradEntropy', slack);
}

/** Takes the gradient with respect to entropy for the only one. */
const ofEntropy =
  (evaluate: Evaluate): Evaluate =>
  (args, batch) => {
    const result = evaluate(args, batch);
    return { ...result, grad: result.gradEntropy! };
  };

function comparedSlopes(formula: Formula, evaluate: Evaluate, cases: readonly FrameworkLossCase[]): number {
  let compared = 0;
  for (const { args, inputs, expected } of cases) {
    const batch = referenceBatch(inputs);
    compared += slopesAgree(formula, evaluate, args, batch, 'logprob');
    if (expected.grad_entropy) slopesAgree(formula, ofEntropy(evaluate), args, batch, 'entropy');
  }
  return compared;
}

function allFinite({ loss, metrics, grad }: ReturnType<Evaluate>): boolean {
  return [loss, ...Object.values(metrics), ...grad].every(Number.isFinite);
}

export function behaveAsLosses(
  formulas: Readonly<Record<string, Formula>>,
  reference: Readonly<Record<string, Evaluate>>,
  cases: readonly FrameworkLossCase[],
): void {
  it('has cases for every function, and functions for every case', () => {
    assert.deepEqual([...new Set(cases.map(({ fn }) => fn))].sort(), Object.keys(formulas).sort());
  });

  for (const [name, formula] of Object.entries(formulas))
    it(`has gradients that are slopes: ${name}`, () => {
      const compared = comparedSlopes(
        formula,
        reference[name]!,
        cases.filter(({ fn }) => fn === name),
      );
      assert.ok(compared > 20, `only ${compared} elements lie away from kinks`);
    });

  it('ignores the values of masked tokens', () => {
    for (const { fn, args, inputs } of cases) {
      const batch = referenceBatch(inputs);
      assert.deepEqual(reference[fn]!(args, poison(batch, Number.NaN)), reference[fn]!(args, batch), fn);
    }
  });

  it('does not depend on masked tokens at the ends of rows', () => {
    for (const { fn, args, inputs } of cases) {
      const batch = referenceBatch(inputs);
      assert.deepEqual(reference[fn]!(args, cutRows(batch)), reference[fn]!(args, batch), fn);
    }
  });

  it('is finite without unmasked tokens and without rows', () => {
    for (const { fn, args, inputs } of cases) {
      const batch = referenceBatch(inputs);
      const masked = { ...batch, actionMask: new Uint8Array(batch.actionMask.length) };
      const columns = Object.keys(batch).filter((name) => name !== 'rows' && name !== 'columns');
      const empty = { ...batch, rows: 0, ...Object.fromEntries(columns.map((name) => [name, []])) };
      for (const [what, each] of Object.entries({ masked, empty } satisfies Record<string, ReferenceBatch>)) {
        const result = reference[fn]!(args, each);
        assert.ok(allFinite(result), `${fn} of a batch that is ${what}`);
        assert.ok(
          result.grad.every((g) => g === 0),
          fn,
        );
      }
    }
  });
}
