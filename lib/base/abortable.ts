// Runs native work that an AbortSignal can end, and converts native errors to LossErrors.
import { describeValue, LossError, type LossErrorCode } from './errors.js';
import { isError } from './kinds.js';

/**
 * The part of an AbortSignal that the package uses. A signal of Node, of a DOM or of another realm has it. Its `reason`
 * becomes the `cause` of the error.
 */
export interface AbortSignalLike {
  /** Whether the signal was aborted. */
  readonly aborted: boolean;
  /** The reason for which the signal was aborted. */
  readonly reason?: unknown;
  /** Calls `listener` when the signal is aborted. */
  addEventListener(type: 'abort', listener: () => void, options?: { once?: boolean }): void;
  /** Undoes addEventListener(). */
  removeEventListener(type: 'abort', listener: () => void): void;
}

/**
 * Runs native work that an AbortSignal can end.
 * @param start starts the work, before this function returns. It receives a flag that becomes non-zero when the signal
 * aborts, and gives it to native code, which polls it. The promise must resolve to -1 if the work ended because of the flag.
 * @returns a promise of the result. It rejects with LossError `ERR_ABORTED` if the signal aborted before the result was
 * there, even if the work ended too early to see the flag, and as {@link fromNative} says if the work failed.
 */
export async function abortable<T>(
  signal: AbortSignalLike | undefined,
  start: (flag: Int32Array | undefined) => Promise<T>,
): Promise<Exclude<T, -1>> {
  checkSignal(signal);
  const flag = signal && new Int32Array(1);
  const ignore = signal && whenAborted(signal, () => Atomics.store(flag!, 0, 1));
  try {
    const result = await start(flag);
    if (flag?.[0]) throw aborted(signal);
    return result as Exclude<T, -1>;
  } catch (error) {
    throw fromNative(error);
  } finally {
    ignore?.();
  }
}

/**
 * Throws if a signal was aborted, or if it is not a signal.
 * @throws LossError `ERR_ABORTED`, `ERR_INVALID_INPUT`
 */
export function checkSignal(signal: AbortSignalLike | undefined): void {
  if (signal === undefined) return;
  if (!isSignal(signal))
    throw new LossError('ERR_INVALID_INPUT', {
      option: 'signal',
      expected: 'an AbortSignal',
      received: describeValue(signal),
    });
  if (signal.aborted) throw aborted(signal);
}

function isSignal(value: AbortSignalLike | null): boolean {
  return (
    typeof value === 'object' &&
    typeof value?.aborted === 'boolean' &&
    typeof value.addEventListener === 'function' &&
    typeof value.removeEventListener === 'function'
  );
}

function aborted(signal: AbortSignalLike | undefined): LossError {
  return new LossError('ERR_ABORTED', 'the call was aborted', { cause: signal?.reason });
}

// Calls `act` once if a signal is aborted. Returns a function that undoes this.
function whenAborted(signal: AbortSignalLike, act: () => void): () => void {
  const watch = Watch.of(signal);
  watch.add(act);
  return () => watch.delete(act);
}

// What running calls do when one signal is aborted. They share one listener, because Node warns of a leak when a signal
// has more than ten.
class Watch {
  static readonly #watches = new WeakMap<AbortSignalLike, Watch>();
  readonly #signal: AbortSignalLike;
  readonly #acts = new Set<() => void>();
  readonly #abort = () => {
    for (const act of this.#acts) act();
  };

  constructor(signal: AbortSignalLike) {
    this.#signal = signal;
  }

  static of(signal: AbortSignalLike): Watch {
    let watch = Watch.#watches.get(signal);
    if (!watch) {
      watch = new Watch(signal);
      Watch.#watches.set(signal, watch);
    }
    return watch;
  }

  /** @param act a function that was not added before. */
  add(act: () => void): void {
    if (this.#acts.size === 0) this.#signal.addEventListener('abort', this.#abort, { once: true });
    this.#acts.add(act);
  }

  delete(act: () => void): void {
    this.#acts.delete(act);
    if (this.#acts.size === 0) this.#signal.removeEventListener('abort', this.#abort);
  }
}

const NATIVE_CODES: readonly unknown[] = [
  'ERR_OUT_OF_MEMORY',
  'ERR_DEVICE_UNAVAILABLE',
  'ERR_INVALID_INPUT',
] satisfies LossErrorCode[];

/**
 * Converts an error of the native module to a LossError, if it is one that callers must be prepared for. Returns any
 * other error unchanged.
 */
export function fromNative(error: unknown): unknown {
  // Native code checks every array a second time, because an array may have changed since lib/ checked it.
  if (isError(error) && error.name === 'TypeError')
    return new LossError('ERR_INVALID_INPUT', `an array changed while it was being read: ${error.message}`, {
      cause: error,
    });
  const code = isError(error) ? (error as { code?: unknown }).code : undefined;
  if (!NATIVE_CODES.includes(code)) return error;
  return new LossError(code as LossErrorCode, (error as Error).message, { cause: error });
}
