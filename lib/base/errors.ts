// LossError, the only class of errors that the package throws, and helpers that report bad values in a uniform style.
import { closest, distance } from 'fastest-levenshtein';
import { isError } from './kinds.js';

/** The kind of a failure, for programs to act on. The error's message explains the failure to people. */
export type LossErrorCode =
  /** The batch lacks a key that the function reads. */
  | 'ERR_MISSING_INPUT'
  /** The length of an array does not match the shape of the batch. */
  | 'ERR_SHAPE_MISMATCH'
  /** A value has the wrong type or dtype, the array's buffer is detached, or several values contradict each other. */
  | 'ERR_INVALID_INPUT'
  /** An option is unknown, has a value outside its range, or conflicts with another option. */
  | 'ERR_INVALID_OPTION'
  /**
   * A name is unknown: no function, algorithm or backend is registered under it, or the text of an expression uses a name
   * that the language does not have.
   */
  | 'ERR_UNKNOWN_NAME'
  /** The device does not exist, or this machine or this build of the package cannot use it. */
  | 'ERR_DEVICE_UNAVAILABLE'
  /** The host or the device ran out of memory. */
  | 'ERR_OUT_OF_MEMORY'
  /** The call ended early because its AbortSignal was aborted. */
  | 'ERR_ABORTED'
  /** The native module is missing or cannot be loaded. Thrown when the package is imported. */
  | 'ERR_NATIVE_LOAD';

/**
 * Part of an error message: a text, or a function that returns the text. The function must write each option name with
 * `spell`, so that the command line can show the names as flags.
 */
export type MessageText = string | ((spell: (option: string) => string) => string);

/**
 * The parts of an error's message: `at: key[index]: expected …, got …. Hint`. Parts that are absent are left out. The message
 * repeats at most 100 characters of `key` and of `option`.
 */
export interface LossErrorDetails {
  /** Where the error occurred: a class, a call, or a line of a file. */
  at?: string | undefined;
  /** The batch key with the bad value, as the caller wrote it. */
  key?: string | undefined;
  /** The index of the bad element in the array under `key`. */
  index?: number | undefined;
  /**
   * The name of the option with the bad value: in camelCase, or Trinity-RFT's name if it is a key of a configuration.
   */
  option?: string | undefined;
  /** The values that would have been accepted. */
  expected?: MessageText | undefined;
  /** The value that was given. */
  received?: string | undefined;
  /** The place of the error in the text of an expression: the index of a character. The message counts from 1. */
  position?: number | undefined;
  /** The text in which `position` lies. The message shows its line, with a mark under the place. */
  text?: string | undefined;
  /** A likely fix, as a sentence without its full stop. */
  hint?: MessageText | undefined;
  /** A question with which the message begins, such as "Did you mean 'gspo'?". */
  suggestion?: MessageText | undefined;
}

// Marks the errors of every copy of the package, because a process can load several: two versions, or one per realm.
const BRAND = Symbol.for('policy-loss.LossError');

/**
 * The class of all errors that this package throws on purpose. `instanceof LossError` is also true for the errors of
 * another copy of the package in the same process.
 */
export class LossError extends Error {
  static {
    Object.defineProperty(this.prototype, BRAND, { value: true });
  }

  /** Implements `instanceof`: for LossError by a mark that all copies of the package share, for subclasses as usual. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    if (this !== LossError) return Function.prototype[Symbol.hasInstance].call(this, value);
    try {
      return isError(value) && BRAND in value;
    } catch {
      return false; // a prototype of the error is a Proxy that throws
    }
  }

  /** Always 'LossError'. */
  override readonly name = 'LossError';
  /** The kind of the failure. */
  readonly code: LossErrorCode;
  /** Where the error occurred: a class, a call, or a line of a file. */
  readonly at: string | undefined;
  /** The batch key with the bad value, as the caller wrote it. */
  readonly key: string | undefined;
  /** The index of the bad element in the array under `key`. */
  readonly index: number | undefined;
  /**
   * The name of the option with the bad value: in camelCase, or Trinity-RFT's name if it is a key of a configuration.
   */
  readonly option: string | undefined;
  /** The values that would have been accepted. */
  readonly expected: string | undefined;
  /** The value that was given. */
  readonly received: string | undefined;
  /** The place of the error in the text of an expression: the index of a character (a UTF-16 unit), from 0. */
  readonly position: number | undefined;
  readonly #details: LossErrorDetails | string;

  /**
   * @param details the parts of the message. A string is used as the whole message instead.
   * @param options `cause` is the error that led to this one.
   */
  constructor(code: LossErrorCode, details: LossErrorDetails | string, options?: { cause?: unknown }) {
    super(messageOf(details), options);
    this.code = code;
    const { at, key, index, option, expected, received, position }: LossErrorDetails =
      typeof details === 'string' ? {} : details;
    this.at = at;
    this.key = key;
    this.index = index;
    this.option = option;
    this.expected = expected === undefined ? undefined : worded(expected, asIs);
    this.received = received;
    this.position = position;
    this.#details = details;
  }

  /**
   * Returns a copy of this error with some details replaced. For example, a reader of files replaces the batch key with
   * the name of the file's column. The copy's `cause` is this error. An error whose message is a plain string is
   * returned unchanged.
   */
  with(details: LossErrorDetails): LossError {
    if (typeof this.#details === 'string') return this;
    return new LossError(this.code, { ...this.#details, ...details }, { cause: this });
  }

  /**
   * Returns a copy of this error whose message writes option names with `spell`, for example `--clip-range` for
   * `clipRange`. Its fields keep the camelCase names. An error whose message is a plain string is returned unchanged.
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
  const { at, key, index, option, expected, received, position, text, hint, suggestion } = details;
  const name = key === undefined ? undefined : brief(key);
  const place = name === undefined || index === undefined ? name : `${name}[${index}]`;
  const where = [at, place, option === undefined ? undefined : brief(spell(option))].filter(
    (part) => part !== undefined,
  );
  const what = [
    expected === undefined ? undefined : `expected ${worded(expected, spell)}`,
    received === undefined ? undefined : `got ${received}`,
  ].filter((part) => part !== undefined);
  const inText = position === undefined ? '' : ` at character ${position + 1}`;
  const begin = suggestion === undefined ? '' : `${worded(suggestion, spell)} `;
  const end = hint === undefined ? '' : `. ${worded(hint, spell)}`;
  const message = begin + [...where, what.join(', ')].join(': ') + inText + end;
  return text === undefined || position === undefined ? message : `${message}\n${excerpt(text, position)}`;
}

// The largest numbers of characters that an excerpt shows before and after its mark.
const BEFORE_MARK = 50;
const AFTER_MARK = 20;

/** Returns the line of a text in which a position lies, and a line with a mark under it. */
function excerpt(text: string, position: number): string {
  const lineStart = text.slice(0, position).lastIndexOf('\n') + 1;
  const start = Math.max(lineStart, position - BEFORE_MARK);
  const [line] = text.slice(start, position + AFTER_MARK).split('\n', 1) as [string];
  // Each of these characters is one unit of UTF-16, so that the mark stays in its place.
  const shown = line.replace(/[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu, ' ');
  return `  ${shown}\n  ${' '.repeat(position - start)}^`;
}

/**
 * Returns the error for an unknown name. It begins with the most similar known name, or lists known names if none is
 * similar.
 * @param what the kind of name, such as 'policy loss'.
 * @param aliases further names, which the error can suggest but does not list.
 */
export function unknownName(
  code: LossErrorCode,
  what: string,
  name: unknown,
  known: readonly string[],
  aliases: Iterable<string> = [],
): LossError {
  const suggestion = didYouMean(name, [...known, ...aliases])?.(asIs);
  return new LossError(code, {
    at: `unknown ${what}`,
    ...(suggestion === undefined && { expected: `one of ${listOf(known)}` }),
    received: describeValue(name),
    suggestion,
  });
}

// The largest number of names that an error lists.
const MAX_LISTED = 12;

function listOf(names: readonly string[]): string {
  const more = names.length - MAX_LISTED;
  // One name more takes less space than the words that replace it.
  const shown = more > 1 ? [...names.slice(0, MAX_LISTED), `and ${more} more`] : names;
  return shorten(shown.join(', '));
}

/**
 * Returns the error for an unknown option.
 * @param owner the class or call that does not have the option.
 * @param known the options that it has.
 */
export function unknownOption(owner: string, name: string, known: readonly string[]): LossError {
  const suggestion = didYouMean(name, known);
  return new LossError('ERR_INVALID_OPTION', {
    at: owner,
    option: name,
    ...(!suggestion && {
      expected: (spell) =>
        known.length > 0 ? `one of the options ${listOf(known.map((each) => spell(each)))}` : 'no options',
    }),
    received: 'an unknown name',
    suggestion,
  });
}

function didYouMean(
  name: unknown,
  known: readonly string[],
): ((spell: (option: string) => string) => string) | undefined {
  // A very long string would take long to compare and could not be similar to a known name.
  if (typeof name !== 'string' || known.length === 0 || name.length > 200) return undefined;
  const nearest = closest(name, known as string[]);
  if (distance(name, nearest) > Math.max(2, nearest.length / 3)) return undefined;
  return (spell) => `Did you mean '${spell(nearest)}'?`;
}

/**
 * Calls `read`, which reads values of a caller, and converts any error to a LossError. Reading may run the caller's own
 * code (getters, proxies, iterators), which can throw anything.
 * @param what what failed, for the error's message.
 */
export function guarded<T>(read: () => T, code: LossErrorCode = 'ERR_INVALID_INPUT', what = UNREADABLE): T {
  try {
    return read();
  } catch (error) {
    throw asLossError(error, code, what);
  }
}

/** Asynchronous version of {@link guarded}. */
export async function guardedAsync<T>(read: () => T | PromiseLike<T>, what = UNREADABLE): Promise<T> {
  try {
    return await read();
  } catch (error) {
    throw asLossError(error, 'ERR_INVALID_INPUT', what);
  }
}

/** Returns the error that {@link guardedAsync} throws instead of an error. */
export function unreadable(error: unknown): LossError {
  return asLossError(error, 'ERR_INVALID_INPUT', UNREADABLE);
}

const UNREADABLE = 'an argument could not be read';

function asLossError(error: unknown, code: LossErrorCode, what: string): LossError {
  if (error instanceof LossError) return error;
  return new LossError(code, `${what}: ${reasonOf(error)}`, { cause: error });
}

/**
 * Returns the message of an error that the caller's code may have thrown, or a description of anything else. Never throws,
 * although reading the message may run the caller's code again.
 */
export function reasonOf(error: unknown): string {
  try {
    if (error instanceof Error || isError(error)) return shorten(String(error.message));
  } catch {
    // The error is a Proxy that throws, or its message does.
  }
  return describeValue(error);
}

/**
 * Calls `make`, which allocates an array.
 * @param what the contents of the array, for the error message, such as 'a gradient of 12 values'.
 * @throws LossError `ERR_OUT_OF_MEMORY` instead of the error that JavaScript throws if the allocation fails.
 */
export function allocate<T>(what: string, make: () => T): T {
  try {
    return make();
  } catch (error) {
    throw new LossError('ERR_OUT_OF_MEMORY', `not enough memory for ${what}`, { cause: error });
  }
}

/** Returns a list or an explanation for an error message: its beginning, with an ellipsis, if it is too long. */
export function shorten(text: string): string {
  return beginning(text, MAX_TEXT);
}

/**
 * Returns a name or another text of the caller's as an error message repeats it: its beginning, with an ellipsis, if it is
 * too long. The message shortens `key` and `option` itself.
 */
export function brief(text: string): string {
  return beginning(text, MAX_NAME);
}

const MAX_TEXT = 1000;
const MAX_NAME = 100;

function beginning(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** Describes a value for error messages: its type, and its content if that is short. Never throws. */
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
    return `a ${brief(value.constructor.name)}${length === undefined ? '' : ` of length ${length}`}`;
  }
  if (typeof value === 'string') return `'${value.length > 40 ? `${value.slice(0, 40)}…` : value}'`;
  if (typeof value === 'object') return `an object of class ${brief(value.constructor?.name ?? 'null')}`;
  if (typeof value === 'function') return 'a function';
  // A long bigint takes long to convert to a text.
  if (typeof value === 'bigint' && BigInt.asIntN(64, value) !== value) return 'bigint of more than 64 bits';
  return `${typeof value} ${brief(String(value))}`;
}
