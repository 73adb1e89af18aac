// Measures how long compute() keeps the thread that calls it: until it returns its promise, and how late timers fire
// while it computes.
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { makeInputs, type Shape } from './batch.js';
import { type Sample, summarise } from './race.js';
import { spread, type TableContent } from './tables.js';
import type { Work } from './works.js';

const CALLS_PER_ROUND = 5;
const NANOSECONDS_PER_MILLISECOND = 1e6;
/** The monitor's timer fires at this interval in milliseconds, and the interval is part of the delay it reports. */
const RESOLUTION = 1;

/** How long one way of calling kept the event loop. */
export interface Kept {
  /** Until the promise is returned. */
  call: Sample;
  /** How late a timer fired. */
  timerLate: Sample;
}

/** Times calls that write the gradient into the caller's array, and calls that bring a new array each time. */
export async function timeEventLoop(work: Work, shape: Shape, rounds: number): Promise<Record<string, Kept>> {
  const inputs = makeInputs(shape);
  const grad = new Float32Array(shape[0] * shape[1]).fill(1);
  const fresh = () => ({ grad: new Float32Array(shape[0] * shape[1]) });
  return {
    'into an array of the caller': await timeKept(() => work.compute(inputs, { grad }), rounds),
    'new each call': await timeKept(() => work.compute(inputs, fresh()), rounds),
  };
}

async function timeKept(compute: () => Promise<unknown>, rounds: number): Promise<Kept> {
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
  const late = (nanoseconds: number) => Math.max(nanoseconds / NANOSECONDS_PER_MILLISECOND - RESOLUTION, 0);
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
    title: `Milliseconds that compute() of ${id} keeps the event loop, ${rows}×${columns}`,
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
