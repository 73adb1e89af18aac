// Prepares calls to a function's native code, without the package's classes around it.
import type { NativeBinding, NativeCall, NativeFunction } from '../../binding.js';
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
 * Returns a call of a function on a batch, with arrays for its results.
 * @param gradients the arrays that receive the gradients.
 */
export function callFor(
  build: NativeBinding,
  fn: NativeFunction,
  batch: NativeCall['batch'],
  gradients: Gradients<Float32Array | HalfColumn>,
): NativeCall {
  return {
    fn,
    batch,
    values: new Float64Array(build.valueNames(fn).length),
    grad: nativeArray(gradients.grad),
    gradEntropy: nativeArray(gradients.gradEntropy),
    gradDtypes: nativeDtypes(gradients),
    ...COEFFICIENTS,
  };
}

/** Returns a contender that evaluates a function with one native call, without the package's classes. */
export function nativeContender(name: string, work: Work, batch: Batch, gradients: Gradients): Contender {
  const call = prepare(native, work, batch, gradients);
  return syncContender(name, () => native.evaluate(call));
}

/** Prepares a native call on one build of the native module. */
export function prepare(
  build: NativeBinding,
  work: Work,
  batch: Batch,
  gradients: Gradients<Float32Array | HalfColumn>,
): NativeCall {
  return callFor(build, build.createFunction(work.spec), nativeBatch(batch, work), gradients);
}
