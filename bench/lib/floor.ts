// The traffic floor: the time that this package's own threads need to read a function's columns and to write its
// gradients, in the same chunks and tiles, without any arithmetic. If the arrays do not fit in the caches, this is
// about the least time that an implementation on these threads can take.
import type { Batch } from '../../lib/index.js';
import { benchNative } from './native.js';
import { prepare } from './native-calls.js';
import { type Contender, contender } from './race.js';
import type { Gradients, Work } from './works.js';

/** Returns a contender that measures the floor of a function on a batch. */
export function floor(work: Work, batch: Batch, gradients: Gradients): Contender {
  const { fn, input, call } = prepare(benchNative, work, batch, gradients);
  return contender('floor', () => benchNative.traffic(fn, input, call));
}
