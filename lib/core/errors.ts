// The package's one error class, and helpers that report bad values in one style.
import { closest, distance } from 'fastest-levenshtein';

/** The kind of failure, for programs; the message is for people. */
export type LossErrorCode =
  /** The batch lacks a key that the function reads. */
  | 'ERR_MISSING_INPUT'
  /** An array's length does not match the batch's shape. */
  | 'ERR_SHAPE_MISMATCH'
  /** A value has the wrong type or dtype, its buffer is detached, or values contradict each other. */
  | 'ERR_INVALID_INPUT'
  /** An option is unknown, out of its range, or conflicts with another. */
  | 'ERR_INVALID_OPTION'
  /** A function, backend or device kind that is not registered. */
  | 'ERR_UNKNOWN_NAME'
  /** A device that this machine or this build does not have. */
  | 'ERR_DEVICE_UNAVAILABLE'
  /** The host or the device ran out of memory. */
  | 'ERR_OUT_OF_MEMORY'
  /** An AbortSignal ended the call. */
  | 'ERR_ABORTED'
  /** The native module is missing or does not load; thrown when the package is imported. */
  | 'ERR_NATIVE_LOAD';

/** A text, or a function that makes it and writes option names with `spell`: the CLI spells them as flags. */
export type MessageText = string | ((spell: (option: string) => string) => string);

/**
 * What an error is about. The message is `at: key[index]: expected …, got …. Hint`, without the parts that are absent.
 */
export interface LossErrorDetails {
  /** The place: a class, a call, or a file and its line. */
  at?: string | undefined;
  /** The batch key, under the name that the caller used. */
  key?: string | undefined;
  /** Position of the bad element in the key's value. */
  index?: number | undefined;
  /** The option's name: in camelCase, or Trinity's for a key of a configuration. */
  option?: string | undefined;
  /** What would have been right. */
  expected?: MessageText | undefined;
  /** What was given instead. */
  received?: string | undefined;
  /** A likely fix, as a sentence without its full stop. */
  hint?: MessageText | undefined;
}

/** Every error that this package throws on purpose. */
export class LossError extends Error {
  /** 'LossError'. */
  override readonly name = 'LossError';
  /** The kind of failure. */
  readonly code: LossErrorCode;
  /** The batch key at fault, under the name that the caller used. */
  readonly key: string | undefined;
  /** Position of the bad element in the key's value. */
  readonly index: number | undefined;
  /** The option at fault: in camelCase, or Trinity's name for a key of a configuration. */
  readonly option: string | undefined;
  /** What would have been right. */
  readonly expected: string | undefined;
  /** What was given instead. */
  readonly received: string | undefined;
  readonly #details: LossErrorDetails | string;

  /**
   * @param details what the error is about, or the whole message where no field applies.
   * @param options `cause`: the error behind this one.
   */
  constructor(code: LossErrorCode, details: LossErrorDetails | string, options?: { cause?: unknown }) {
    super(messageOf(details), options);
    this.code = code;
    const { key, index, option, expected, received }: LossErrorDetails =
      typeof details === 'string' ? {} : details;
    this.key = key;
    this.index = index;
    this.option = option;
    this.expected = expected === undefined ? undefined : worded(expected, asIs);
    this.received = received;
    this.#details = details;
  }

  /**
   * Returns a copy with some details replaced, such as a batch key by the file column that it came from. This error
   * becomes its cause.
   */
  with(details: LossErrorDetails): LossError {
    if (typeof this.#details === 'string') return this;
    return new LossError(this.code, { ...this.#details, ...details }, { cause: this });
  }

  /**
   * Returns a copy whose message writes option names with `spell`, such as `clipRange` as `--clip-range`. Its fields
   * keep the camelCase names.
   */
  withOptionNames(spell: (option: string) => string): LossError {
    if (typeof this.#details === 'string') return this;
    const copy = new LossError(this.code, this.#details, { cause: this });
    copy.message = messageOf(this.#details, spell);
    return copy;
  }
}

const asIs = (option: string) => option;

function worded(wording: MessageText, spell: (option: string) => string): string {
  return typeof wording === 'string' ? wording : wording(spell);
}

function messageOf(details: LossErrorDetails | string, spell = asIs): string {
  if (typeof details === 'string') return details;
  const { at, key, index, option, expected, received, hint } = details;
  const place = key === undefined ? undefined : index === undefined ? key : `${key}[${index}]`;
  const where = [at, place, option === undefined ? undefined : spell(option)].filter(
    (part) => part !== undefined,
  );
  const what = [
    expected === undefined ? undefined : `expected ${worded(expected, spell)}`,
    received === undefined ? undefined : `got ${received}`,
  ].filter((part) => part !== undefined);
  const message = [...where, what.join(', ')].join(': ');
  return hint === undefined ? message : `${message}. ${worded(hint, spell)}`;
}

/**
 * Returns the error for a name that does not exist, with the known names and the nearest one.
 * @param what the kind of name, such as 'policy loss'.
 */
export function unknownName(
  code: LossErrorCode,
  what: string,
  name: unknown,
  known: readonly string[],
): LossError {
  return new LossError(code, {
    at: `unknown ${what}`,
    expected: `one of ${known.join(', ')}`,
    received: describeValue(name),
    hint: didYouMean(name, known)?.(asIs),
  });
}

/** Returns the error for an option that its owner does not have. */
export function unknownOption(owner: string, name: string, known: readonly string[]): LossError {
  return new LossError('ERR_INVALID_OPTION', {
    at: owner,
    option: name,
    expected: (spell) =>
      known.length > 0 ? `one of the options ${known.map(spell).join(', ')}` : 'no options',
    received: 'an unknown name',
    hint: didYouMean(name, known),
  });
}

function didYouMean(
  name: unknown,
  known: readonly string[],
): ((spell: (option: string) => string) => string) | undefined {
  // Comparing a very long string takes long, and no known name would be near it.
  if (typeof name !== 'string' || known.length === 0 || name.length > 200) return undefined;
  const nearest = closest(name, known as string[]);
  if (distance(name, nearest) > Math.max(2, nearest.length / 2)) return undefined;
  return (spell) => `Did you mean '${spell(nearest)}'?`;
}

/**
 * Runs code that reads a caller's values. The caller's own code may run in it (getters, proxies, iterators), so
 * whatever it throws becomes the cause of a LossError.
 */
export function guarded<T>(read: () => T, code: LossErrorCode = 'ERR_INVALID_INPUT'): T {
  try {
    return read();
  } catch (error) {
    throw asLossError(error, code);
  }
}

/** Asynchronous version of {@link guarded}. */
export async function guardedAsync<T>(read: () => Promise<T>): Promise<T> {
  try {
    return await read();
  } catch (error) {
    throw asLossError(error, 'ERR_INVALID_INPUT');
  }
}

function asLossError(error: unknown, code: LossErrorCode): LossError {
  if (error instanceof LossError) return error;
  const reason = error instanceof Error ? String(error.message) : describeValue(error);
  return new LossError(code, `an argument could not be read: ${reason}`, { cause: error });
}

/**
 * Runs code that allocates an array.
 * @param what the array's contents, such as 'a gradient of 12 values'.
 * @throws LossError `ERR_OUT_OF_MEMORY` instead of the engine's RangeError.
 */
export function allocate<T>(what: string, make: () => T): T {
  try {
    return make();
  } catch (error) {
    throw new LossError('ERR_OUT_OF_MEMORY', `not enough memory for ${what}`, { cause: error });
  }
}

/** Returns a value as messages show it: its type, and the value itself if it is short. Never throws. */
export function describeValue(value: unknown): string {
  try {
    return describe(value);
  } catch {
    return `${typeof value === 'function' ? 'a function' : 'an object'} that cannot be inspected`;
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
