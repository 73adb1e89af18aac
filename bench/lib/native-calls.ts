// Calls of a function's native code, without the package's classes around them.
import type { NativeBinding, NativeCall } from '../../binding.js';
import { native } from '../../lib/core/native.js';
import type { Batch } from '../../lib/index.js';
import { nativeBatch } from './batch.js';
import { type Contender, syncContender } from './race.js';
import type { Gradients, Work } from './works.js';

// The times do not depend on these values. They are not 0, so that the native code cannot skip a term.
const COEFFICIENTS = { mu: 0.1, klCoef: 0.001, entropyCoef: -0.01 };

/** Returns the arguments of an evaluation that writes these gradients. */
export function callFor(gradients: Gradients, values: number): NativeCall {
  return {
    values: new Float64Array(values),
    grad: gradients.grad,
    gradEntropy: gradients.gradEntropy,
    ...COEFFICIENTS,
    abort: undefined,
  };
}

/** Returns a contender that evaluates a function by one native call. */
export function nativeContender(name: string, work: Work, batch: Batch, gradients: Gradients): Contender {
  const { fn, input, call } = prepare(native, work, batch, gradients);
  return syncContender(name, () => native.evaluateSync(fn, input, call));
}

/** Prepares the arguments of native calls on one build. */
export function prepare(build: NativeBinding, work: Work, batch: Batch, gradients: Gradients) {
  const fn = build.createFunction(work.spec);
  const input = nativeBatch(batch, work.columns, work.expertMask);
  return { fn, input, call: callFor(gradients, build.valueNames(fn).length) };
}
