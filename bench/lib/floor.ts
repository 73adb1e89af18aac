// A function's traffic floor is a loop that reads the function's columns and mask and writes its gradients, without any
// arithmetic. It uses the same threads, chunks and tiles as the function. If the arrays do not fit in the caches, an
// implementation on these threads can hardly be faster than this loop.
import type { Batch, HalfColumn } from '../../lib/index.js';
import { benchNative } from './native.js';
import { prepare } from './native-calls.js';
import { type Contender, contender } from './race.js';
import type { Gradients, Work } from './works.js';

/** Returns a contender that runs a function's traffic floor. */
export function floor(work: Work, batch: Batch, gradients: Gradients<Float32Array | HalfColumn>): Contender {
  const call = { ...prepare(benchNative, work, batch, gradients), later: true } as const;
  return contender('floor', () => benchNative.traffic(call));
}
