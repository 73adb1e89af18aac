// Counts the passes over the tokens that a loss needs.
import type { NativeFunctionSpec } from '../../binding.js';
import { native } from '../../lib/core/native.js';

/** The size of an instruction; see NativeProgram in binding.d.ts. Its first number is the index of the operation. */
const NUMBERS_PER_INSTRUCTION = 6;

/**
 * Returns how many passes over the tokens a compiled loss needs for its value and its gradient. This is the number of its
 * segments for tokens, up to the one that outputs the gradient. Segments after it serve only metrics. Their sums could
 * be taken in the pass that outputs the gradient, so they do not count.
 * @throws Error if the loss is not compiled.
 */
export function passesOf({ policyLoss }: NativeFunctionSpec): number {
  if (!policyLoss || !('program' in policyLoss)) throw new Error('policyLoss: expected a compiled loss');
  const { code } = policyLoss.program.withGrad;
  const operations = code.filter((_, i) => i % NUMBERS_PER_INSTRUCTION === 0);
  const last = operations.lastIndexOf(native.programOps.indexOf('grad'));
  const begin = native.programOps.indexOf('tokens');
  return operations.subarray(0, last).filter((operation) => operation === begin).length;
}
