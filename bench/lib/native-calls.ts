// Prepares calls to a function's native code, without the package's classes around it.
import type { NativeBinding, NativeCall } from '../../binding.js';
import { nativeArray, nativeDtypes } from '../../lib/core/gradients.js';
import { native } from '../../lib/core/native.js';
import type { Batch, HalfColumn } from '../../lib/index.js';
import { nativeBatch } from './batch.js';
import { type Contender, syncContender } from './race.js';
import type { Gradients, Work } from './works.js';

// The times do not depend on the values of these coefficients. None is 0, because the native code could skip a term
// with a coefficient of 0.
const COEFFICIENTS = { mu: 0.1, klCoef: 0.001, entropyCoef: -0.01 };

/**
 * Returns the `call` argument of an evaluation: arrays for its results, and coefficients.
 * @param gradients the arrays that receive the gradients.
 * @param values the number of values (loss and metrics) that the function computes.
 */
export function callFor(gradients: Gradients<Float32Array | HalfColumn>, values: number): NativeCall {
  return {
    values: new Float64Array(values),
    grad: nativeArray(gradients.grad),
    gradEntropy: nativeArray(gradients.gradEntropy),
    gradDtypes: nativeDtypes(gradients),
    ...COEFFICIENTS,
    abort: undefined,
  };
}

/** Returns a contender that evaluates a function with one native call, without the package's classes. */
export function nativeContender(name: string, work: Work, batch: Batch, gradients: Gradients): Contender {
  const { fn, input, call } = prepare(native, work, batch, gradients);
  return syncContender(name, () => native.evaluateSync(fn, input, call));
}

/** Prepares the arguments for native calls on one build of the native module. */
export function prepare(
  build: NativeBinding,
  work: Work,
  batch: Batch,
  gradients: Gradients<Float32Array | HalfColumn>,
) {
  const fn = build.createFunction(work.spec);
  const input = nativeBatch(batch, work);
  return { fn, input, call: callFor(gradients, build.valueNames(fn).length) };
}
