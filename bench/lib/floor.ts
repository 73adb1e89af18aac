// The traffic floor: what this package's own threads take to read a function's columns and to write its gradients in
// the same chunks and tiles, with no arithmetic between. No implementation on these threads can be faster while the
// arrays do not fit in the caches.
import type { NativeCall } from '../../binding.js';
import { native } from '../../lib/core/native.js';
import type { Batch } from '../../lib/index.js';
import { nativeBatch } from './batch.js';
import { type Contender, contender } from './race.js';
import type { Gradients, Work } from './works.js';

/** A native call of a work that gives these gradients. */
export function nativeCall(gradients: Gradients, values: number): NativeCall {
  return {
    values: new Float64Array(values),
    grad: gradients.grad,
    gradEntropy: gradients.gradEntropy,
    mu: undefined,
    klCoef: undefined,
    entropyCoef: undefined,
    abort: undefined,
  };
}

/** The floor of a work on a batch, as a contender. */
export function floor(work: Work, batch: Batch, gradients: Gradients): Contender {
  const fn = native.createFunction(work.spec);
  const input = nativeBatch(batch, work.columns, work.expertMask);
  const call = nativeCall(gradients, native.valueNames(fn).length);
  return contender('floor', () => native.traffic(fn, input, call));
}
