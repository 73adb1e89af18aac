// Divides long work on the JavaScript thread into slices. A synchronous call runs all slices at once. An asynchronous
// call lets the event loop do other work between them.
import { setImmediate } from 'node:timers/promises';
import { type AbortSignalLike, checkSignal } from './abortable.js';

/** Work in slices: a generator that yields after each slice but the last one, and then returns the result. */
export type Sliced<T> = Generator<undefined, T, undefined>;

/** The number of array elements that are converted in one slice. */
export const SLICE = 8192;

// The time in milliseconds for which slices are run in one turn of the event loop.
const TURN = 2;

/** Calls `convert` for consecutive ranges of the indices from 0 to `length`, one range in each slice. */
export function* inSlices(length: number, convert: (begin: number, end: number) => void): Sliced<void> {
  for (let begin = 0; begin < length; begin += SLICE) {
    if (begin > 0) yield;
    convert(begin, Math.min(begin + SLICE, length));
  }
}

/** Runs all slices at once and returns the result. */
export function finish<T>(work: Sliced<T>): T {
  for (;;) {
    const { done, value } = work.next();
    if (done) return value;
  }
}

/**
 * Runs the slices over several turns of the event loop, and then calls `use` with the result. If the first slice is the
 * only one, calls `use` before it returns. So native code takes the arrays of a batch that needs no long conversion
 * before the caller can change them.
 * @param signal ends the work between two slices when it is aborted. The promise then rejects with `ERR_ABORTED`.
 */
export async function finishInTurns<T, R>(
  work: Sliced<T>,
  signal: AbortSignalLike | undefined,
  use: (result: T) => R | Promise<R>,
): Promise<R> {
  const first = work.next();
  return use(first.done ? first.value : await finishInLaterTurns(work, signal));
}

/** Runs the slices after the first one, as {@link finishInTurns} does. */
export async function finishInLaterTurns<T>(
  work: Sliced<T>,
  signal: AbortSignalLike | undefined,
): Promise<T> {
  for (;;) {
    await nextTurn();
    checkSignal(signal);
    const end = performance.now() + TURN;
    do {
      const { done, value } = work.next();
      if (done) return value;
    } while (performance.now() < end);
  }
}

let lastTurn = Promise.resolve();

// Waits for a turn of the event loop in which no other call runs slices. Without this, many calls at once would keep
// the event loop busy for many times the length of a turn.
function nextTurn(): Promise<void> {
  lastTurn = lastTurn.then(() => setImmediate());
  return lastTurn;
}
