// Calls that consist of several steps, each of which is done at once or later. One generator serves the synchronous and
// the asynchronous version of a call.

import { guarded, guardedAsync } from '../core/errors.js';

/** A step: the synchronous version of a call takes it now, the asynchronous one may wait for it. */
export interface Step<T> {
  now(): T;
  later(): T | PromiseLike<T>;
}

/** A generator of steps, each of which receives the result of the one before. */
export type Steps<R> = Generator<Step<unknown>, R, unknown>;

/** Takes one step. */
export function* perform<T>(step: Step<T>): Steps<T> {
  return (yield step) as T;
}

/**
 * Takes one step in the caller's code, which can throw anything. A LossError that has this as its cause is thrown
 * instead.
 * @param what what failed, for the error's message.
 */
export function* performForCaller<T>(what: string, { now, later }: Step<T>): Steps<T> {
  const step: Step<T> = {
    now: () => guarded(now, 'ERR_INVALID_INPUT', what),
    later: () => guardedAsync(later, what),
  };
  return yield* perform(step);
}

/** Returns whether a value is a promise. If it is, nobody will wait for it, so its rejection is ignored. */
export function ignored(value: unknown): boolean {
  const isPromise = typeof (value as PromiseLike<unknown> | null | undefined)?.then === 'function';
  if (isPromise) Promise.resolve(value).catch(() => {});
  return isPromise;
}

/** Takes all steps at once. */
export function takeNow<R>(steps: Steps<R>): R {
  let next = steps.next();
  while (!next.done) {
    let result: unknown;
    try {
      result = next.value.now();
    } catch (error) {
      next = steps.throw(error);
      continue;
    }
    next = steps.next(result);
  }
  return next.value;
}

/** Takes all steps, and waits for each. */
export async function takeLater<R>(steps: Steps<R>): Promise<R> {
  let next = steps.next();
  while (!next.done) {
    let result: unknown;
    try {
      result = await next.value.later();
    } catch (error) {
      next = steps.throw(error);
      continue;
    }
    next = steps.next(result);
  }
  return next.value;
}
