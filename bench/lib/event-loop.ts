// What compute() costs the thread that calls it: until it gives its promise, and how late timers come meanwhile.
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { makeInputs, type Shape } from './batch.js';
import { type Sample, summarise } from './race.js';
import { spread, type TableContent } from './tables.js';
import type { Work } from './works.js';

const CALLS_PER_ROUND = 5;
const NANOSECONDS = 1e6; // in a millisecond
/** The monitor looks after so many milliseconds, and counts them as delay. */
const RESOLUTION = 1;

/** How long one way of calling kept the event loop. */
export interface Kept {
  /** Until the promise is given. */
  call: Sample;
  /** How much later than it was to come a timer came. */
  timerLate: Sample;
}

/** With the gradient into an array of the caller's, and with a new one for each call. */
export async function timeEventLoop(work: Work, shape: Shape, rounds: number): Promise<Record<string, Kept>> {
  const inputs = makeInputs(shape);
  const grad = new Float32Array(shape[0] * shape[1]).fill(1);
  const fresh = () => ({ grad: new Float32Array(shape[0] * shape[1]) });
  return {
    'into an array of the caller': await kept(() => work.compute(inputs, { grad }), rounds),
    'new each call': await kept(() => work.compute(inputs, fresh()), rounds),
  };
}

async function kept(compute: () => Promise<unknown>, rounds: number): Promise<Kept> {
  await compute();
  const calls: number[] = [];
  const delay = monitorEventLoopDelay({ resolution: RESOLUTION });
  delay.enable();
  for (let i = 0; i < CALLS_PER_ROUND * rounds; i++) {
    const start = performance.now();
    const result = compute();
    calls.push(performance.now() - start);
    await result;
    await new Promise((resolve) => setTimeout(resolve, 3));
  }
  delay.disable();
  const late = (nanoseconds: number) => Math.max(nanoseconds / NANOSECONDS - RESOLUTION, 0);
  const timerLate: Sample = {
    median: late(delay.percentile(50)),
    least: late(delay.min),
    most: late(delay.max),
    calls: delay.count,
  };
  return { call: summarise(calls), timerLate };
}

export function eventLoopTable(
  { id }: Work,
  results: Record<string, Kept>,
  [rows, columns]: Shape,
): TableContent {
  return {
    title: `How long compute() of ${id} keeps the event loop, ${rows}×${columns}, in ms`,
    head: ['gradient', 'call, median', 'call, min – max', 'timer late, median', 'timer late, most'],
    rows: Object.entries(results).map(([name, { call, timerLate }]) => [
      name,
      call.median.toFixed(3),
      spread(call),
      timerLate.median.toFixed(2),
      timerLate.most.toFixed(2),
    ]),
  };
}
