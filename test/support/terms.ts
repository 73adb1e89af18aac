/** Gradients that are sums of two terms, which may cancel. */
import { option } from '../reference/batch.js';
import {
  type Args,
  type ReferenceBatch,
  type ReferenceResult,
  referencePolicyLosses,
} from '../reference/index.js';

/**
 * Returns the largest sum of the absolute values of a gradient's two terms. The argument `coefficient` multiplies the
 * second term.
 */
export function gradMagnitude(
  name: string,
  coefficient: string,
  args: Args,
  batch: ReferenceBatch,
  { grad }: ReferenceResult,
): number {
  if (option(args, coefficient, 0) === 0) return 0;
  const { grad: first } = referencePolicyLosses[name]!({ ...args, [coefficient]: 0 }, batch);
  return grad.reduce((most, g, i) => Math.max(most, Math.abs(first[i]!) + Math.abs(g - first[i]!)), 0);
}
