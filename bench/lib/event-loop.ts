// Measures how long compute() blocks the event loop: the time until a call returns its promise, and how late timers
// fire while the call computes.
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { makeInputs, type Shape } from './batch.js';
import { type Sample, summarise } from './race.js';
import { spread, type TableContent } from './tables.js';
import type { Work } from './works.js';

const CALLS_PER_ROUND = 5;
const NANOSECONDS_PER_MILLISECOND = 1e6;
/**
 * The interval of the timer that Node uses to measure delays, in milliseconds. The delays that Node reports include it.
 */
const RESOLUTION = 1;

/** How long compute() blocked the event loop, for one kind of call. */
export interface Kept {
  /** The time until the result was there. */
  whole: Sample;
  /** The time until compute() returned its promise. */
  call: Sample;
  /** How late timers fired while compute() was running. */
  timerLate: Sample;
}

/**
 * Times calls that write the gradient into the same array each time, calls that request an array (`grad: true`), and
 * calls that get a new array of zeros each time.
 */
export async function timeEventLoop(work: Work, shape: Shape, rounds: number): Promise<Record<string, Kept>> {
  const inputs = makeInputs(shape);
  const grad = new Float32Array(shape[0] * shape[1]).fill(1);
  const fresh = () => ({ grad: new Float32Array(shape[0] * shape[1]) });
  return {
    "into the caller's array": await timeKept(() => work.compute(inputs, { grad }), rounds),
    'into an array that the call returns': await timeKept(() => work.compute(inputs, { grad: true }), rounds),
    'into a new array each call': await timeKept(() => work.compute(inputs, fresh()), rounds),
  };
}

async function timeKept(compute: () => Promise<unknown>, rounds: number): Promise<Kept> {
  await compute();
  const calls: number[] = [];
  const wholes: number[] = [];
  const delay = monitorEventLoopDelay({ resolution: RESOLUTION });
  delay.enable();
  for (let i = 0; i < CALLS_PER_ROUND * rounds; i++) {
    const start = performance.now();
    const result = compute();
    calls.push(performance.now() - start);
    await result;
    wholes.push(performance.now() - start);
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
  return { call: summarise(calls), whole: summarise(wholes), timerLate };
}

export function eventLoopTable(
  { id }: Work,
  results: Record<string, Kept>,
  [rows, columns]: Shape,
): TableContent {
  return {
    title: `Milliseconds for which compute() of ${id} blocks the event loop, ${rows}×${columns}`,
    head: [
      'gradient',
      'call, median',
      'call, min – max',
      'timer late, median',
      'timer late, most',
      'result, median',
    ],
    rows: Object.entries(results).map(([name, { call, timerLate, whole }]) => [
      name,
      call.median.toFixed(3),
      spread(call),
      timerLate.median.toFixed(2),
      timerLate.most.toFixed(2),
      whole.median.toFixed(3),
    ]),
  };
}
