/** Compares float32 results with float64 ones, within the bounds that test/golden/README.md states. */
import assert from 'node:assert/strict';
import type { Computed } from './subject.js';

const RELATIVE = 2e-5;
/** The bound for golden group advantages, which Trinity-RFT computed in float32. */
export const GROUP_RELATIVE = 2e-4;

export interface Expected {
  loss: number;
  metrics: Record<string, number>;
  grad: ArrayLike<number>;
  /** Σ|terms| of the loss and the metrics. Golden cases do not have it. */
  magnitude?: { loss: number; metrics: Record<string, number> };
  /** The largest Σ|terms| of any gradient element, where elements are sums. */
  gradMagnitude?: number;
}

/**
 * Fails if a number is too far from the expected one.
 *
 * `magnitude` is Σ|terms| of a sum. Each term is a float32 number with an error of about 6e-8 of it, which the sum keeps
 * even where its terms cancel. So a sum may be off by a twentieth of RELATIVE, 1e-6, of its magnitude. Drawn values
 * (e^±25 with random signs) cancel often; golden values were chosen so that they do not.
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

/**
 * Fails if an element is too far from the expected one. `magnitude` is the largest Σ|terms| of an array of sums; it
 * counts as a value of the array when the bound for small elements is computed.
 */
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

/** Fails unless two results are equal to the last bit, including the signs of zeros. */
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
