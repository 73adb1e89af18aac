// Calls that consist of several steps. One generator serves both versions of a call: the synchronous version takes all
// steps at once. The asynchronous version may wait for each, and lets the event loop do other work between them.
import type { NativeCompute } from '../../binding.js';
import { type AbortSignalLike, abortable, checkSignal, fromNative } from './abortable.js';
import { guarded, guardedAsync, unreadable } from './errors.js';
import { isPromise } from './kinds.js';
import { laterTurn } from './node.js';

/** How the steps of a call are taken. */
export interface Taking {
  /** Whether a step may return a promise of its result. */
  readonly later: boolean;
  /** Ends the call between two steps, and a step that can be aborted. */
  readonly signal?: AbortSignalLike | undefined;
}

/** A step of a call. It returns its result, or a promise of it if the step may be taken later. */
export type Step<T> = (taking: Taking) => T | Promise<T>;

/**
 * A call in steps: a generator that yields steps, whose results it receives, and undefined after each slice of long work
 * on the JavaScript thread.
 */
export type Steps<R> = Generator<Step<unknown> | undefined, R, unknown>;

/** Takes one step. */
export function* take<T>(step: Step<T>): Steps<T> {
  return (yield step) as T;
}

/**
 * Takes one step in the caller's code, which can throw anything. A LossError that has this as its cause is thrown
 * instead.
 * @param what what failed, for the error's message.
 */
export function takeForCaller<T>(what: string, step: Step<T>): Steps<T> {
  return take((taking) =>
    taking.later
      ? guardedAsync(() => step(taking), what)
      : guarded(() => step(taking), 'ERR_INVALID_INPUT', what),
  );
}

/**
 * Takes a step in native code that an AbortSignal can end.
 * @param start starts the work; see {@link abortable}.
 */
export function takeNative<T>(start: (abort: Int32Array | undefined) => Promise<T>): Steps<Exclude<T, -1>> {
  return take(({ signal }) => abortable(signal, start));
}

/**
 * Takes a step in native code: computes a call, and returns its value.
 * @param isSmall whether the JavaScript thread computes the call itself, because to wake another thread would take longer.
 */
export function takeCall<Call>(compute: NativeCompute<Call>, call: Call, isSmall = false): Steps<number> {
  const now = () => {
    try {
      return compute(call);
    } catch (error) {
      throw fromNative(error);
    }
  };
  return take(({ later, signal }) => {
    if (!later) return now();
    if (!isSmall) return abortable(signal, (abort) => compute({ ...call, later: true, abort }));
    return inOneTurn(() => {
      checkSignal(signal);
      return now();
    });
  });
}

/** The number of array elements that are converted in one slice. */
export const SLICE = 8192;

/** Calls `convert` for consecutive ranges of the indices from 0 to `length`, one range in each slice. */
export function* inSlices(length: number, convert: (begin: number, end: number) => void): Steps<void> {
  for (let begin = 0; begin < length; begin += SLICE) {
    if (begin > 0) yield;
    convert(begin, Math.min(begin + SLICE, length));
  }
}

const NOW: Taking = { later: false };

/**
 * Takes all steps at once, and returns the result of the call.
 * @throws LossError the call's own, or `ERR_INVALID_INPUT` with another error as its cause.
 */
export function takeNow<R>(steps: Steps<R>): R {
  return guarded(() => {
    let next = steps.next();
    while (!next.done) {
      let result: unknown;
      try {
        result = next.value?.(NOW);
      } catch (error) {
        next = steps.throw(error);
        continue;
      }
      next = steps.next(result);
    }
    return next.value;
  });
}

// The time in milliseconds for which slices are run in one turn of the event loop.
const TURN = 2;

/**
 * Takes all steps, and waits for each. Until one of them must be waited for, takes them before it returns. So native code
 * receives the arrays of a batch that needs no long conversion before the caller can change them.
 * @param options the options of the call, of which only the signal is read.
 * @returns a promise of the call's result. It rejects as takeNow() throws, and with `ERR_ABORTED`.
 */
export async function takeLater<R>(
  steps: Steps<R>,
  options?: { readonly signal?: AbortSignalLike | undefined } | null,
): Promise<R> {
  try {
    const taking = { later: true, signal: options?.signal };
    let turnEnds = 0;
    let next = steps.next();
    while (!next.done) {
      let result: unknown;
      try {
        const step = next.value;
        if (step) {
          result = step(taking);
          if (isPromise(result)) {
            result = await result;
            turnEnds = 0;
          }
        } else if (performance.now() >= turnEnds) {
          await nextTurn();
          checkSignal(taking.signal);
          turnEnds = performance.now() + TURN;
        }
      } catch (error) {
        next = steps.throw(error);
        continue;
      }
      next = steps.next(result);
    }
    return next.value;
  } catch (error) {
    throw unreadable(error);
  }
}

let lastTurn = Promise.resolve();

// Waits for a turn of the event loop that no other call uses. Without this, many calls at once would keep the event loop
// busy for many times the length of a turn.
function nextTurn(): Promise<void> {
  lastTurn = lastTurn.then(() => laterTurn());
  return lastTurn;
}

let isTurnFree = true;

// Computes a small call in this turn of the event loop, or in a later one if a small call was computed in this one. So
// calls that follow each other let timers and I/O run.
function inOneTurn<T>(now: () => T): T | Promise<T> {
  if (!isTurnFree) return nextTurn().then(now);
  isTurnFree = false;
  void nextTurn().then(() => {
    isTurnFree = true;
  });
  return now();
}
