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
  const flag = signal && new Int32Array(1);
  const abort = () => {
    if (flag) Atomics.store(flag, 0, 1);
  };
  signal?.addEventListener('abort', abort, { once: true });
  try {
    const result = await start(flag);
    if (result === -1) throw aborted();
    return result as Exclude<T, -1>;
  } catch (error) {
    throw fromNative(error);
  } finally {
    signal?.removeEventListener('abort', abort);
  }
}

const NATIVE_CODES: readonly unknown[] = [
  'ERR_OUT_OF_MEMORY',
  'ERR_DEVICE_UNAVAILABLE',
] satisfies LossErrorCode[];

/** An error of the native module as a LossError, where it is one for the caller. */
export function fromNative(error: unknown): unknown {
  const code = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
  if (!NATIVE_CODES.includes(code)) return error;
  return new LossError(code as LossErrorCode, (error as Error).message, { cause: error });
}
