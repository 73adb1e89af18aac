// The one error class of the package, and how names that do not exist are reported.
import { closest, distance } from 'fastest-levenshtein';

/** What went wrong, for programs; the message is for people. */
export type LossErrorCode =
  /** A batch lacks a key that the function reads. */
  | 'ERR_MISSING_INPUT'
  /** An array has another length than its batch's shape asks for. */
  | 'ERR_SHAPE_MISMATCH'
  /** A value of the wrong type or dtype, a detached buffer, values that contradict each other. */
  | 'ERR_INVALID_INPUT'
  /** An option that is unknown, out of its range, or does not go with another. */
  | 'ERR_INVALID_OPTION'
  /** A function, backend or device kind that is not registered. */
  | 'ERR_UNKNOWN_NAME'
  /** A device that this machine or this build does not have. */
  | 'ERR_DEVICE_UNAVAILABLE'
  /** The host's or the device's memory ran out. */
  | 'ERR_OUT_OF_MEMORY'
  /** An AbortSignal ended the call. */
  | 'ERR_ABORTED'
  /** The native module is not there, or does not load; thrown where the package is imported. */
  | 'ERR_NATIVE_LOAD';

/** Every error that this package throws on purpose. */
export class LossError extends Error {
  /** 'LossError'. */
  override readonly name = 'LossError';
  /** What went wrong, for programs. */
  readonly code: LossErrorCode;

  /** @param options `cause`: the error behind this one. */
  constructor(code: LossErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
  }
}

/** "…; known are a, b, c. Did you mean b?": how every unknown name is reported. */
export function unknownName(
  code: LossErrorCode,
  what: string,
  name: unknown,
  known: readonly string[],
): LossError {
  if (typeof name !== 'string')
    return new LossError(
      code,
      `unknown ${what}: expected one of ${known.join(', ')}, not ${describeValue(name)}`,
    );
  // Of what is no name at all, nothing is near, and it would take long to find out.
  const nearest = known.length > 0 && name.length <= 200 ? closest(name, known as string[]) : undefined;
  const near = nearest !== undefined && distance(name, nearest) <= Math.max(2, nearest.length / 2);
  return new LossError(
    code,
    `unknown ${what} ${describeValue(name)}; known are ${known.join(', ')}${near ? `. Did you mean '${nearest}'?` : ''}`,
  );
}

/**
 * Runs what looks at a caller's values. The caller's own code may run there (getters, proxies, iterators), and a value may
 * change from one look to the next: what is thrown then becomes the cause of a LossError.
 */
export function guarded<T>(look: () => T, code: LossErrorCode = 'ERR_INVALID_INPUT'): T {
  try {
    return look();
  } catch (error) {
    throw asLossError(error, code);
  }
}

/** The same of what goes on later. */
export async function guardedLater<T>(look: () => Promise<T>): Promise<T> {
  try {
    return await look();
  } catch (error) {
    throw asLossError(error, 'ERR_INVALID_INPUT');
  }
}

function asLossError(error: unknown, code: LossErrorCode): LossError {
  if (error instanceof LossError) return error;
  // What the engine says where there is no memory for an array.
  if (error instanceof RangeError && /allocation failed|Invalid typed array length/.test(error.message))
    return new LossError('ERR_OUT_OF_MEMORY', error.message, { cause: error });
  const said = error instanceof Error ? String(error.message) : describeValue(error);
  return new LossError(code, `an argument could not be read: ${said}`, { cause: error });
}

/** A value as an error message shows it: its type, and itself where that is short. Never throws. */
export function describeValue(value: unknown): string {
  try {
    return describe(value);
  } catch {
    return `${typeof value === 'function' ? 'a function' : 'an object'} that cannot be looked at`;
  }
}

function describe(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  if (Array.isArray(value)) return `an array of length ${value.length}`;
  if (ArrayBuffer.isView(value)) {
    const { length } = value as unknown as { length?: number };
    return `a ${value.constructor.name}${length === undefined ? '' : ` of length ${length}`}`;
  }
  if (typeof value === 'string') return `'${value.length > 40 ? `${value.slice(0, 40)}…` : value}'`;
  if (typeof value === 'object') return `an object of class ${value.constructor?.name ?? 'null'}`;
  if (typeof value === 'function') return 'a function';
  return `${typeof value} ${String(value)}`;
}
