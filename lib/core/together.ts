// Calls that are computed together, so that the columns of a batch that they share are read from memory only once.
import type { NativeBatch, NativeCall, NativeFunction } from '../../binding.js';
import { type AbortSignalLike, whenAborted } from './abortable.js';
import { describeValue, guarded, guardedAsync, LossError } from './errors.js';
import { native } from './native.js';

type Job = [fn: NativeFunction, batch: NativeBatch, call: NativeCall];

/** The largest number of calls that are computed together. */
const MOST_CALLS = 1024;

interface Waiting {
  job: Job;
  settle: (result: number | Promise<number>) => void;
  /** Ignores the call's signal from now on. */
  ignoreSignal: (() => void) | undefined;
}

/** One of the calls that {@link computeTogether} makes. Pass it to `compute()` as the option `together`. */
export class Together {
  readonly #group: Group;
  #isAwaited = true;

  /** @internal */
  constructor(group: Group) {
    this.#group = group;
  }

  /**
   * Evaluates a batch in host memory on the CPU when all other calls are ready to do so, or need not be waited for.
   * @param signal ends the wait when it is aborted.
   * @returns a promise of the result; -1 if the call was aborted.
   * @internal
   */
  evaluate(job: Job, signal: AbortSignalLike | undefined): Promise<number> {
    const result = this.#group.evaluate(job, signal);
    this.leave();
    return result;
  }

  /** Tells that the other calls need not wait for this one any more. */
  leave(): void {
    if (!this.#isAwaited) return;
    this.#isAwaited = false;
    this.#group.isReady();
  }
}

// The calls of one computeTogether(), in native form.
class Group {
  #awaited: number;
  readonly #waiting = new Set<Waiting>();

  /** @param awaited the number of calls for which the others wait. */
  constructor(awaited: number) {
    this.#awaited = awaited;
  }

  evaluate(job: Job, signal: AbortSignalLike | undefined): Promise<number> {
    if (this.#awaited === 0) return evaluateAlone(job);
    return new Promise((settle) => {
      const end = () => {
        this.#waiting.delete(waiting);
        waiting.ignoreSignal?.();
        settle(-1);
      };
      const waiting: Waiting = { job, settle, ignoreSignal: signal && whenAborted(signal, end) };
      this.#waiting.add(waiting);
    });
  }

  isReady(): void {
    if (--this.#awaited === 0 && this.#waiting.size > 0) void this.#evaluateAll();
  }

  async #evaluateAll(): Promise<void> {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const { ignoreSignal } of waiting) ignoreSignal?.();
    try {
      const results = await native.evaluateTogether(waiting.map(({ job }) => job));
      for (const [i, { settle }] of waiting.entries()) settle(results[i]!);
    } catch {
      // Each is computed on its own, so that an error reaches only the call that it is about.
      for (const { job, settle } of waiting) settle(evaluateAlone(job));
    }
  }
}

async function evaluateAlone(job: Job): Promise<number> {
  return native.evaluate(...job);
}

/**
 * Computes several policy losses and objectives together. Where they read the same batch, its columns are read from memory
 * only once, which takes less time than one call after another. Each call has its own options, and its result has the same
 * bits as without the others.
 *
 * ```ts
 * const [a, b] = await computeTogether([
 *   (together) => ppo.compute(batch, { grad: true, together }),
 *   (together) => gspo.compute(batch, { grad: true, together }),
 * ]);
 * ```
 *
 * @param calls functions that each call compute() with the given object as the option `together`, and return its promise.
 * There are at most 1024, and they must not wait for each other. Calls on a device, small calls, and calls without
 * this option are computed on their own. For a function that only makes calls without this option, the others wait until
 * its promise settles.
 * @returns a promise of the results, in the order of `calls`. If calls fail, it rejects with the error of the first of
 * them, after all have ended. An error that is not a LossError becomes the `cause` of a LossError `ERR_INVALID_INPUT`, which
 * is also the code of the error if `calls` is not such an array.
 */
export async function computeTogether<R extends readonly unknown[]>(
  calls: readonly [...{ [K in keyof R]: (together: Together) => Promise<R[K]> }],
): Promise<R> {
  const checked = checkCalls(calls);
  const group = new Group(checked.length);
  const results = await Promise.allSettled(
    checked.map(async (call) => {
      const together = new Together(group);
      try {
        return await guardedAsync(() => call(together), 'a call failed');
      } finally {
        together.leave();
      }
    }),
  );
  return results.map((result) => {
    if (result.status === 'rejected') throw result.reason;
    return result.value;
  }) as unknown as R;
}

type Call = (together: Together) => Promise<unknown>;

// Copies the list, because the calls may change it.
function checkCalls(calls: readonly unknown[]): Call[] {
  return guarded(() => {
    const length = Array.isArray(calls) ? calls.length : Number.POSITIVE_INFINITY;
    const copied = length <= MOST_CALLS ? Array.from({ length }, (_, i) => calls[i]) : [undefined];
    if (copied.every((call) => typeof call === 'function')) return copied as Call[];
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'calls',
      expected: `an array of at most ${MOST_CALLS} functions`,
      received: Array.isArray(calls) ? `an array of ${length} values` : describeValue(calls),
    });
  });
}

/** @throws LossError `ERR_INVALID_INPUT` if the option `together` is not an object from computeTogether(). */
export function checkTogether(together: unknown): asserts together is Together | undefined {
  if (together !== undefined && !(together instanceof Together))
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'together',
      expected: 'the object that computeTogether() passes to a call',
      received: describeValue(together),
    });
}
