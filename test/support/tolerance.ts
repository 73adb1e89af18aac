/** How close float32 arithmetic has to come to float64: the bounds of the golden cases' README. */
import assert from 'node:assert/strict';
import type { Computed } from './subject.js';

const RELATIVE = 2e-5;
/** Of golden group advantages, which the source computed in float32. */
export const GROUP_RELATIVE = 2e-4;

export interface Expected {
  loss: number;
  metrics: Record<string, number>;
  grad: ArrayLike<number>;
  /** Σ|terms|, where known. Golden cases are held without it. */
  magnitude?: { loss: number; metrics: Record<string, number> };
  /** Where a gradient is a sum: the largest Σ|terms| of an element. */
  gradMagnitude?: number;
}

/**
 * `magnitude`: Σ|terms| of a sum. Its terms are float32, each off by a few units in its last place (6e-8 of it), which
 * no summation can take back. So a sum whose terms cancel is held to a twentieth of RELATIVE, 1e-6, of what was summed:
 * drawn values (e^±25 with random signs) do cancel, which the golden ones were chosen not to.
 */
export function assertNumber(
  actual: number | undefined,
  expected: number,
  what: string,
  magnitude = 0,
  relative = RELATIVE,
): void {
  const bound = relative * Math.max(Math.abs(expected), 0.05, magnitude / 20);
  assert.ok(
    Math.abs(actual! - expected) <= bound,
    `${what} is ${actual}, expected ${expected} ± ${bound.toExponential(2)}`,
  );
}

/** `magnitude`: of an array whose elements are sums, the largest Σ|terms|, which counts as the array's largest. */
export function assertArray(
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  what: string,
  relative = RELATIVE,
  magnitude = 0,
): void {
  assert.equal(actual.length, expected.length, `length of ${what}`);
  let largest = magnitude;
  for (let i = 0; i < expected.length; i++) largest = Math.max(largest, Math.abs(expected[i]!));
  for (let i = 0; i < expected.length; i++) {
    const bound = relative * Math.max(Math.abs(expected[i]!), largest / 100);
    if (!(Math.abs(actual[i]! - expected[i]!) <= bound)) {
      assert.fail(
        `${what}[${i}] is ${actual[i]}, expected ${expected[i]} ± ${bound.toExponential(2)} (largest ${largest})`,
      );
    }
  }
}

export function assertComputed(actual: Computed, expected: Expected): void {
  assertNumber(actual.loss, expected.loss, 'loss', expected.magnitude?.loss);
  assert.deepEqual(Object.keys(actual.metrics).sort(), Object.keys(expected.metrics).sort());
  for (const [name, value] of Object.entries(expected.metrics)) {
    assertNumber(actual.metrics[name], value, name, expected.magnitude?.metrics[name]);
  }
  assertArray(actual.grad, expected.grad, 'grad', RELATIVE, expected.gradMagnitude);
}

/** Equal to the last bit, the sign of a zero aside from nothing: Object.is, element by element. */
export function assertSameBits(actual: Computed, expected: Computed): void {
  assert.deepStrictEqual(
    { loss: actual.loss, metrics: actual.metrics },
    { loss: expected.loss, metrics: expected.metrics },
  );
  assertSameArray(actual.grad, expected.grad, 'grad');
}

export function assertSameArray(actual: ArrayLike<number>, expected: ArrayLike<number>, what: string): void {
  assert.equal(actual.length, expected.length, `length of ${what}`);
  for (let i = 0; i < expected.length; i++) {
    if (!Object.is(actual[i], expected[i]))
      assert.fail(`${what}[${i}] is ${actual[i]}, expected ${expected[i]}`);
  }
}
