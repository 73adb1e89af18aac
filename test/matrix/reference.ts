/** The float64 references of all families, and the assertions that the library agrees with them. */
import assert from 'node:assert/strict';
import type { Batch } from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import { referenceAdvantages } from '../reference/advantages.js';
import type { Formula } from '../reference/batch.js';
import { preferenceFormulas } from '../reference/families/preference.js';
import { verlCorrections } from '../reference/frameworks/verl-corrections.js';
import { type Args, formulas, type ReferenceBatch, referenceKl, standsOnEdge } from '../reference/index.js';
import { reported } from '../reference/verl.js';
import { layOut } from '../support/draw.js';
import {
  evaluateOf,
  type Family,
  isLossFamily,
  packedBatch,
  paddedBatch,
  unpack,
} from '../support/subject.js';
import { gradMagnitude } from '../support/terms.js';
import { assertArray, assertNumber } from '../support/tolerance.js';
import { LOSS, type Result } from './tested.js';

/** The families of registered functions. */
export type Registered = Family | 'advantage' | 'correction';

/** What a reference computed, with the sums of the absolute values of the terms. Values per token are padded. */
export interface Expected {
  loss?: number;
  metrics: Record<string, number>;
  magnitude?: { loss?: number; metrics: Record<string, number> };
  tokens: Record<string, ArrayLike<number> | 'zeros'>;
  rows: Record<string, ArrayLike<number> | 'zeros'>;
  /** Counts as an element of each array of tokens, in the bounds for small elements. */
  tokenMagnitude?: number;
  metricRelative?: number | undefined;
  tokenRelative?: number | undefined;
}

/** The argument that multiplies the second term of a loss's gradient, which may cancel the first one. */
const coefficientOf = (name: string): string | undefined =>
  name === 'verl/dro'
    ? 'dro_beta'
    : name.startsWith('trl/') && !(name in preferenceFormulas)
      ? 'beta'
      : undefined;

export const formulaOf = (family: string, name: string): Formula | undefined =>
  isLossFamily(family) ? formulas[family][name] : undefined;

/** The names of the functions that have a reference. */
export const REFERENCES: Record<Registered, () => string[]> = {
  policy: () => Object.keys(formulas.policy),
  kl: () => Object.keys(formulas.kl),
  entropy: () => Object.keys(formulas.entropy),
  advantage: () => Object.keys(referenceAdvantages),
  value: () => Object.keys(formulas.value),
  reward: () => Object.keys(formulas.reward),
  correction: () => Object.keys(verlCorrections).map((name) => `verl/${name}`),
};

/** Computes a batch in float64. */
export function expectedOf(family: Registered, name: string, args: Args, batch: RewardedBatch): Expected {
  if (family === 'advantage') {
    const { advantages, returns, kept, metrics, magnitude } = referenceAdvantages[name]!(args, batch);
    return {
      metrics,
      magnitude: { metrics: magnitude },
      tokens: { advantages, returns },
      rows: { keptRows: kept.map(Number) },
      // If all expected values are 0, float64 terms that cancel still leave small errors.
      tokenMagnitude: 1e-6,
    };
  }
  if (family === 'correction') {
    const { weights, keptMask, metrics, magnitude } = verlCorrections[name.slice('verl/'.length)]!(
      args,
      batch,
    );
    const tokens = { ...(weights && { weights }), keptMask };
    return { metrics: reported(metrics, args), magnitude: { metrics: magnitude }, tokens, rows: {} };
  }
  const result = evaluateOf(family, name)(args, batch);
  const { loss, metrics, grad, gradEntropy, gradLogZ, magnitude } = result;
  const coefficient = family === 'policy' ? coefficientOf(name) : undefined;
  if (family === 'reward') return { loss, metrics, magnitude, tokens: {}, rows: { grad } };
  return {
    loss,
    metrics,
    magnitude,
    tokens: { grad, ...(family === 'policy' && { gradEntropy: gradEntropy ?? 'zeros' }) },
    rows: family === 'policy' ? { gradLogZ: gradLogZ ?? 'zeros' } : {},
    ...(coefficient && { tokenMagnitude: gradMagnitude(name, coefficient, args, batch, result) }),
  };
}

/** Returns whether a threshold of the function is so close to a token that rounding decides on which side it is. */
export function isOnEdge(family: string, name: string, args: Args, batch: ReferenceBatch): boolean {
  const formula = formulaOf(family, name);
  return formula !== undefined && standsOnEdge(formula, args, batch);
}

const zerosLike = (expected: ArrayLike<number> | 'zeros', length: number) =>
  expected === 'zeros' ? new Float32Array(length) : expected;

/** Asserts that a result is what is expected, within bounds for rounding errors. */
export function assertExpected(batch: ReferenceBatch, actual: Result, expected: Expected): void {
  const { loss, metrics, magnitude, tokens, rows } = expected;
  const { [LOSS]: computed, ...others } = actual.numbers;
  if (loss !== undefined) assertNumber(computed, loss, 'loss', magnitude?.loss);
  assert.deepEqual(Object.keys(others).sort(), Object.keys(metrics).sort());
  for (const [name, value] of Object.entries(metrics))
    assertNumber(others[name], value, name, magnitude?.metrics[name], expected.metricRelative);
  for (const [key, values] of Object.entries(tokens)) {
    const column = actual.tokens[key] as Float32Array | undefined;
    assert.ok(column, `no ${key}`);
    const laid = batch.rowLengths ? unpack(batch, column) : column;
    assertArray(laid, zerosLike(values, laid.length), key, expected.tokenRelative, expected.tokenMagnitude);
  }
  for (const [key, values] of Object.entries(rows)) {
    const column = actual.rows[key];
    assert.ok(column, `no ${key}`);
    assertArray(column, zerosLike(values, column.length), key);
  }
}

/** Returns the estimates of a KL function, padded. */
export const klOf = (name: string, batch: ReferenceBatch) => referenceKl[name]!.values(batch);

/** Lays out a batch as the library takes it. Its advantages may be one per row. */
export function layAny(batch: RewardedBatch): Batch & Record<string, unknown> {
  const { advantages, ...perToken } = batch;
  if (advantages?.length !== batch.rows || batch.rows * batch.columns === batch.rows) return layOut(batch);
  const laid = (batch.rowLengths ? packedBatch : paddedBatch)(perToken);
  return { ...laid, advantages: Float32Array.from(advantages) };
}
