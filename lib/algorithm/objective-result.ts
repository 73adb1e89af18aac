// The result of an objective, made of that of its evaluator.

import type { Layout } from '../batch/layout.js';
import type { LossResult } from '../call/calls.js';
import { addGradient, type Gradients } from '../call/gradients.js';
import type { CallAdvantages } from './objective-advantages.js';

/** The loss and the metrics that an objective computes for a batch, and its gradients if they were requested. */
export interface ObjectiveResult extends LossResult {
  /** ∂loss/∂entropy of each token, of shape [B, T]. Present if this gradient or ∂loss/∂logprob was requested. */
  gradEntropy?: Float32Array;
}

/** @internal Returns the result of an objective for the result of its evaluator. */
export function toResult(
  { loss, metrics, grad, halfGrad, deviceGrad, gradLogZ, part, state }: LossResult,
  { gradEntropy }: Gradients,
  wantsGradEntropy: boolean,
  { tokens }: Layout,
  found: CallAdvantages | undefined,
): ObjectiveResult {
  if (found?.metrics) Object.assign(metrics, found.metrics());
  const result: ObjectiveResult = { loss, metrics };
  if (part) result.part = part;
  if (state) result.state = state;
  if (grad) result.grad = grad;
  if (halfGrad) result.halfGrad = halfGrad;
  if (deviceGrad) result.deviceGrad = deviceGrad;
  if (gradLogZ) result.gradLogZ = gradLogZ;
  if (gradEntropy) addGradient(result, 'gradEntropy', gradEntropy);
  else if (!wantsGradEntropy) return result;
  else if (grad) addZeros(result, 'gradEntropy', () => new Float32Array(tokens));
  else if (halfGrad)
    addZeros(result, 'halfGradEntropy', () => ({ data: new Uint16Array(tokens), dtype: halfGrad.dtype }));
  return result;
}

// Adds a gradient of zeros to the result. The array is made only when it is first read: making a large one blocks the
// event loop, and callers that never read it should not pay for it.
function addZeros<K extends 'gradEntropy' | 'halfGradEntropy'>(
  result: ObjectiveResult,
  key: K,
  zeros: () => ObjectiveResult[K],
): void {
  const shared = { configurable: true, enumerable: true };
  Object.defineProperty(result, key, {
    ...shared,
    get() {
      const value = zeros();
      Object.defineProperty(result, key, { ...shared, value, writable: true });
      return value;
    },
  });
}
