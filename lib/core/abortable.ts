// Runs native work that an AbortSignal can end, and converts native errors to LossErrors.
import { describeValue, LossError, type LossErrorCode } from './errors.js';

/**
 * Runs native work that an AbortSignal can end.
 * @param start starts the work. It receives a flag that becomes non-zero when the signal aborts, and gives it to native
 * code, which polls it. The promise must resolve to -1 if the work ended because of the flag.
 * @returns a promise of the result. It rejects with LossError `ERR_ABORTED` if the signal ended the work.
 */
export async function abortable<T>(
  signal: AbortSignal | undefined,
  start: (flag: Int32Array | undefined) => Promise<T>,
): Promise<Exclude<T, -1>> {
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new LossError('ERR_INVALID_INPUT', {
      option: 'signal',
      expected: 'an AbortSignal',
      received: describeValue(signal),
    });
  const aborted = () => new LossError('ERR_ABORTED', 'the call was aborted', { cause: signal?.reason });
  if (signal?.aborted) throw aborted();
  const watch = signal && Watch.of(signal);
  const flag = watch?.add();
  try {
    const result = await start(flag);
    if (result === -1) throw aborted();
    return result as Exclude<T, -1>;
  } catch (error) {
    throw fromNative(error);
  } finally {
    if (flag) watch?.delete(flag);
  }
}

// The running calls that use one signal. They share one listener, because Node warns of a leak when a signal has more
// than ten.
class Watch {
  static readonly #watches = new WeakMap<AbortSignal, Watch>();
  readonly #signal: AbortSignal;
  readonly #flags = new Set<Int32Array>();
  readonly #abort = () => {
    for (const flag of this.#flags) Atomics.store(flag, 0, 1);
  };

  constructor(signal: AbortSignal) {
    this.#signal = signal;
  }

  static of(signal: AbortSignal): Watch {
    let watch = Watch.#watches.get(signal);
    if (!watch) {
      watch = new Watch(signal);
      Watch.#watches.set(signal, watch);
    }
    return watch;
  }

  /** Creates the flag of one call, which native code polls. The flag becomes non-zero when the signal aborts. */
  add(): Int32Array {
    if (this.#flags.size === 0) this.#signal.addEventListener('abort', this.#abort, { once: true });
    const flag = new Int32Array(1);
    this.#flags.add(flag);
    return flag;
  }

  delete(flag: Int32Array): void {
    this.#flags.delete(flag);
    if (this.#flags.size === 0) this.#signal.removeEventListener('abort', this.#abort);
  }
}

const NATIVE_CODES: readonly unknown[] = [
  'ERR_OUT_OF_MEMORY',
  'ERR_DEVICE_UNAVAILABLE',
] satisfies LossErrorCode[];

/**
 * Converts an error of the native module to a LossError, if it is one that callers must be prepared for. Returns any
 * other error unchanged.
 */
export function fromNative(error: unknown): unknown {
  // Native code checks every array a second time, because an array may have changed since lib/ checked it.
  if (error instanceof TypeError)
    return new LossError('ERR_INVALID_INPUT', `an array changed while it was being read: ${error.message}`, {
      cause: error,
    });
  const code = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
  if (!NATIVE_CODES.includes(code)) return error;
  return new LossError(code as LossErrorCode, (error as Error).message, { cause: error });
}
