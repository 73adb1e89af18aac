/** Compares the float64 reference with the golden cases of other frameworks, whose results are float64 as well. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import type { BeyondEvaluate } from '../reference/beyond/evaluate.js';
import { referenceBatch, type Tensor } from '../support/golden.js';

export interface BeyondCase {
  id: string;
  kind: string;
  fn: string;
  /** The framework whose code computed the case, in others.json. */
  source?: string;
  args: Record<string, unknown>;
  inputs: Record<string, Tensor>;
  expected: {
    loss: number;
    /** A metric that is null cannot be compared. */
    metrics: Record<string, number | null>;
    grad_logprob: Tensor;
    grad_entropy?: Tensor;
  };
}

export const beyondCases = (file: string): BeyondCase[] =>
  JSON.parse(readFileSync(new URL(`../golden/beyond/${file}.json`, import.meta.url), 'utf8'));

function close(actual: number | undefined, expected: number, what: string, bound: number): void {
  const within = Math.abs(actual! - expected) <= bound + 1e-12;
  assert.ok(within, `${what} is ${actual}, expected ${expected}`);
}

function allClose(
  actual: ArrayLike<number> | undefined,
  expected: Tensor | undefined,
  what: string,
  relative: number,
): void {
  assert.equal(actual?.length, expected?.data.length, `length of ${what}`);
  const largest = expected?.data.reduce((most, x) => Math.max(most, Math.abs(x)), 0) ?? 0;
  expected?.data.forEach((x, i) => {
    close(actual![i], x, `${what}[${i}]`, relative * Math.max(Math.abs(x), 1e-3 * largest));
  });
}

/** Compares everything that a case holds. Returns the names of the metrics that only the reference has. */
export function agreesWithCase(
  evaluate: BeyondEvaluate,
  { args, inputs, expected }: BeyondCase,
  relative: number,
): string[] {
  const actual = evaluate(args, referenceBatch(inputs));
  close(actual.loss, expected.loss, 'loss', relative * Math.abs(expected.loss));
  for (const [name, value] of Object.entries(expected.metrics))
    if (value !== null) close(actual.metrics[name], value, name, relative * Math.abs(value));
  allClose(actual.gradLogprob, expected.grad_logprob, 'grad_logprob', relative);
  allClose(actual.gradEntropy, expected.grad_entropy, 'grad_entropy', relative);
  return Object.keys(actual.metrics).filter((name) => !(name in expected.metrics));
}
