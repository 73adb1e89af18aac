// The traffic floor of a function: the time that this package's threads need to read the function's columns and write
// its gradients, in the same chunks and tiles, without any arithmetic. If the arrays do not fit in the caches, an
// implementation on these threads can hardly take less time.
import type { Batch } from '../../lib/index.js';
import { benchNative } from './native.js';
import { prepare } from './native-calls.js';
import { type Contender, contender } from './race.js';
import type { Gradients, Work } from './works.js';

/**
 * Returns a contender that times a function's traffic floor: it reads and writes the function's memory without
 * computing.
 */
export function floor(work: Work, batch: Batch, gradients: Gradients): Contender {
  const { fn, input, call } = prepare(benchNative, work, batch, gradients);
  return contender('floor', () => benchNative.traffic(fn, input, call));
}
