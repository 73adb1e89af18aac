// Calls a function for many items, several at once.

/** How many files on servers are requested at once, because a server takes time to answer. */
export const FILES_AT_ONCE = 16;

/**
 * Yields the results of a function for all items, in their order.
 * @param atOnce the number of calls that may be in progress.
 */
export async function* inOrder<T, R>(
  items: readonly T[],
  atOnce: number,
  call: (item: T) => Promise<R>,
): AsyncGenerator<R> {
  const calls: Promise<R>[] = [];
  try {
    for (const item of items) {
      const started = call(item);
      // Its error is thrown in its turn. Until then, it must not count as unhandled.
      started.catch(() => {});
      calls.push(started);
      if (calls.length === atOnce) yield await calls.shift()!;
    }
    for (let next = calls.shift(); next; next = calls.shift()) yield await next;
  } finally {
    await Promise.allSettled(calls);
  }
}
