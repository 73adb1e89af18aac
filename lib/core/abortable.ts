// Native work under an AbortSignal, and native errors as the package's own.
import { describeValue, LossError, type LossErrorCode } from './errors.js';

/** Starts native work that an AbortSignal can end; it gives -1 where it was. */
export async function abortable<T>(
  signal: AbortSignal | undefined,
  start: (flag: Int32Array | undefined) => Promise<T>,
): Promise<Exclude<T, -1>> {
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new LossError('ERR_INVALID_INPUT', `signal: expected an AbortSignal, not ${describeValue(signal)}`);
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

// The calls that one signal ends. They share a listener, as Node takes more than ten on one signal for a leak.
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

  /** A flag that native code looks at: not 0 once the signal has aborted. */
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

/** An error of the native module as a LossError, where it is one for the caller. */
export function fromNative(error: unknown): unknown {
  // Native code looks at every array once more, and finds those that have changed since.
  if (error instanceof TypeError)
    return new LossError('ERR_INVALID_INPUT', `an array changed while it was read: ${error.message}`, {
      cause: error,
    });
  const code = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
  if (!NATIVE_CODES.includes(code)) return error;
  return new LossError(code as LossErrorCode, (error as Error).message, { cause: error });
}
