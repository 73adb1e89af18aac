/** Compares float32 results with float64 ones, within the bounds that test/golden/README.md states. */
import assert from 'node:assert/strict';
import type { Computed } from './subject.js';

const RELATIVE = 2e-5;
/** Numbers below e^−87, the smallest normal float32 number, become 0. Factors may then make the error larger. */
const TINY = 1e-34;
/** The relative bound for golden group advantages, which Trinity-RFT computed in float32. */
export const GROUP_RELATIVE = 2e-4;

export interface Expected {
  loss: number;
  metrics: Record<string, number>;
  grad: ArrayLike<number>;
  /** For the loss and each metric: the sum of the absolute values of its terms. Golden cases do not have it. */
  magnitude?: { loss: number; metrics: Record<string, number> };
  /** If gradient elements are sums: the largest sum of the absolute values of an element's terms. */
  gradMagnitude?: number;
}

/**
 * Fails if a number is too far from the expected one.
 *
 * If the number is a sum, `magnitude` is the sum of the absolute values of its terms. The terms are float32 numbers
 * with relative errors of about 6e-8, and these errors remain even if the terms cancel. So a sum may be off by 1e-6 of
 * its magnitude, which is a twentieth of RELATIVE. In drawn batches (ratios up to e^±25, random signs) terms often
 * cancel. Golden values were chosen so that they do not.
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
 * Fails if an element is too far from the expected one. The bound for small elements depends on the largest value of
 * the array. If the elements are sums, `magnitude` counts as one of these values: it is the largest sum of the absolute
 * values of an element's terms.
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
    const bound = Math.max(relative * Math.max(Math.abs(expected[i]!), largest / 100), TINY);
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

/** Compares the memory of two arrays, which is faster than a loop. */
function haveSameBytes(some: ArrayLike<number>, others: ArrayLike<number>): boolean {
  if (!(some instanceof Float32Array && others instanceof Float32Array)) return false;
  const bytes = ({ buffer, byteOffset, byteLength }: Float32Array) =>
    Buffer.from(buffer as ArrayBuffer, byteOffset, byteLength);
  return bytes(some).equals(bytes(others));
}

export function assertSameArray(actual: ArrayLike<number>, expected: ArrayLike<number>, what: string): void {
  assert.equal(actual.length, expected.length, `length of ${what}`);
  if (haveSameBytes(actual, expected)) return;
  for (let i = 0; i < expected.length; i++) {
    if (!Object.is(actual[i], expected[i]))
      assert.fail(`${what}[${i}] is ${actual[i]}, expected ${expected[i]}`);
  }
}
