/**
 * Compares float64 results of the reference with those of a framework. Each allows a relative error of 1e-9, or
 * `slack` times that.
 */
import assert from 'node:assert/strict';

export function close(actual: number, expected: number, what: string, scale = Math.abs(expected)): void {
  assert.ok(Math.abs(actual - expected) <= 1e-9 * scale + 1e-12, `${what}: ${actual}, expected ${expected}`);
}

/** Allows 1e-12 of the array's largest element as well, because sums of larger numbers may cancel. */
export function allClose(actual: ArrayLike<number>, expected: number[], what: string, slack = 1): void {
  assert.equal(actual.length, expected.length, what);
  const largest = expected.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  expected.forEach((x, i) => {
    close(actual[i]!, x, `${what}[${i}]`, slack * Math.max(Math.abs(x), 1e-3 * largest));
  });
}

export function metricsAgree(
  actual: Record<string, number>,
  expected: Record<string, number>,
  slack = 1,
): void {
  assert.deepEqual(Object.keys(actual).sort(), Object.keys(expected).sort());
  for (const [name, value] of Object.entries(expected))
    close(actual[name]!, value, name, slack * Math.abs(value));
}
