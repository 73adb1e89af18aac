// The columns of rollout files. Each column becomes one key of a batch. A builder collects the column's values, row by
// row, into an array.
import {
  allocate,
  describeValue,
  type LossError,
  type LossErrorCode,
  type LossErrorDetails,
} from '../../base/errors.js';
import { toCamelCase } from '../../base/options.js';
import {
  type FileIdName,
  type FileName,
  INPUT_NAMES,
  type InputName,
  inputRow,
} from '../../batch/columns.js';
import { isList, numberOrText } from './values.js';

/** A column of a rollout file that becomes an input of batches. A file may have other columns too. */
export type RolloutColumn = FileName;

/** Makes an error about the value of a certain column in the row that is being read. */
export type MakeError = (code: LossErrorCode, details: Omit<LossErrorDetails, 'at' | 'key'>) => LossError;

/** A row's position in a part: the row's index, the index of its first token, and its number of tokens. */
export interface Slot {
  row: number;
  start: number;
  tokens: number;
}

/**
 * Collects the values of one column for a part. If a row is rejected after its value was set, the next row overwrites
 * the value.
 */
export interface ColumnBuilder {
  /** @param value the value of a row. null stands for a missing one, which only columns of numbers may have. */
  set(value: unknown, slot: Slot, makeError: MakeError): void;
  /**
   * Ends a part: returns the column's array for the rows before `from`. The rows from `from` to `end` become the first
   * rows of the next part.
   */
  take(from: Slot, end: Slot): unknown;
}

type TokenArray = Float32Array | Uint8Array;

/** Collects a column with one value per token. The values of all rows follow each other in one array. */
abstract class TokenBuilder<A extends TokenArray> implements ColumnBuilder {
  readonly #make: (length: number) => A;
  #data: A;

  constructor(make: (length: number) => A) {
    this.#make = make;
    this.#data = make(0);
  }

  set(value: unknown, slot: Slot, makeError: MakeError): void {
    const end = slot.start + slot.tokens;
    if (end > this.#data.length) this.#grow(end, slot.start);
    this.write(this.#data, value, slot, makeError);
  }

  /** Writes a row's values into the array, at the row's position. */
  protected abstract write(data: A, value: unknown, slot: Slot, makeError: MakeError): void;

  take(from: Slot, end: Slot): A {
    const data = this.#data;
    // If rows remain, they begin another part, which will probably be about as long as this one.
    this.#data = this.#make(end.start > from.start ? data.length : 0);
    this.#data.set(data.subarray(from.start, end.start));
    return data.subarray(0, from.start) as A;
  }

  // The capacity is doubled, so that each value is copied only about once on average.
  #grow(length: number, used: number): void {
    const capacity = Math.max(length, 2 * this.#data.length, MIN_CAPACITY);
    const grown = allocate(`a column of ${length} values`, () => this.#make(capacity));
    grown.set(this.#data.subarray(0, used));
    this.#data = grown;
  }
}

const MIN_CAPACITY = 1024;

/** Collects a column with one number per token. Missing numbers become NaN. */
class TokenFloats extends TokenBuilder<Float32Array> {
  readonly #scalars: boolean;

  /** @param scalars whether a row may have a single number that applies to all its tokens. */
  constructor(scalars = false) {
    super((length) => new Float32Array(length));
    this.#scalars = scalars;
  }

  protected override write(
    data: Float32Array,
    value: unknown,
    { start, tokens }: Slot,
    makeError: MakeError,
  ): void {
    if (value === null || (this.#scalars && typeof value === 'number')) {
      data.fill(value ?? Number.NaN, start, start + tokens);
      return;
    }
    const list = listOf(value, tokens, 'number', this.#scalars ? ', or one number' : '', makeError);
    if (ArrayBuffer.isView(list)) {
      data.set(list, start);
      return;
    }
    for (let t = 0; t < tokens; t++) {
      const x: unknown = list[t] ?? Number.NaN;
      if (typeof x !== 'number')
        throw makeError('ERR_INVALID_INPUT', { index: t, expected: 'a number', received: describeValue(x) });
      data[start + t] = x;
    }
  }
}

/** Collects a column with one flag per token. A row that lacks the column gets 1 for every token. */
class TokenMask extends TokenBuilder<Uint8Array> {
  constructor() {
    super((length) => new Uint8Array(length));
  }

  protected override write(
    data: Uint8Array,
    value: unknown,
    { start, tokens }: Slot,
    makeError: MakeError,
  ): void {
    if (value === undefined) {
      data.fill(1, start, start + tokens);
      return;
    }
    const list = listOf(value, tokens, 'flag', ' (0 or 1)', makeError);
    for (let t = 0; t < tokens; t++) data[start + t] = flagOf(list[t], makeError, t);
  }
}

/** Collects a column with one value per row. */
abstract class RowBuilder<V> implements ColumnBuilder {
  #values: V[] = [];

  set(value: unknown, { row }: Slot, makeError: MakeError): void {
    this.#values[row] = this.read(value, makeError);
  }

  take(from: Slot, end: Slot): unknown {
    const values = this.#values;
    this.#values = values.slice(from.row, end.row);
    values.length = from.row;
    return this.collect(values);
  }

  protected abstract read(value: unknown, makeError: MakeError): V;
  protected abstract collect(values: V[]): unknown;
}

/** Collects a column with one number per row. A missing number becomes NaN. */
class RowNumbers extends RowBuilder<number> {
  protected override read(value: unknown, makeError: MakeError): number {
    if (value === null) return Number.NaN;
    if (typeof value !== 'number')
      throw makeError('ERR_INVALID_INPUT', { expected: 'one number', received: describeValue(value) });
    return value;
  }

  protected override collect(values: number[]): Float64Array {
    return Float64Array.from(values);
  }
}

/** Collects a column with one flag (0 or 1) per row. */
class RowFlags extends RowBuilder<number> {
  protected override read(value: unknown, makeError: MakeError): number {
    return flagOf(value, makeError);
  }

  protected override collect(values: number[]): Uint8Array {
    return Uint8Array.from(values);
  }
}

/**
 * Collects a column with one id of a group or run per row, and numbers the ids in order of appearance. The numbering
 * continues from part to part, so equal ids get equal numbers in all parts.
 */
export class RowIds extends RowBuilder<Id> {
  readonly #ids = new Map<number | string, Id>();
  #numbered = 0;
  #characters = 0;

  protected override read(value: unknown, makeError: MakeError): Id {
    const id = idOf(value, makeError);
    return this.#ids.get(id) ?? this.#add(id, makeError);
  }

  // The ids get their numbers here and not in read(), because a row may still be rejected after read() if another
  // column has a bad value.
  protected override collect(values: Id[]): Int32Array {
    return Int32Array.from(values, (id) => {
      id.number ??= this.#numbered++;
      return id.number;
    });
  }

  /** Returns the ids that have numbers, in the order of their numbers. */
  numbered(): (number | string)[] {
    const ids: (number | string)[] = [];
    for (const [id, { number }] of this.#ids) if (number !== undefined) ids[number] = id;
    return ids;
  }

  #add(id: number | string, makeError: MakeError): Id {
    if (typeof id === 'string') this.#characters += id.length;
    if (this.#ids.size === MAX_IDS || this.#characters > MAX_CHARACTERS_OF_IDS)
      throw makeError('ERR_OUT_OF_MEMORY', {
        expected: `at most ${MAX_IDS} different ids with ${MAX_CHARACTERS_OF_IDS} characters`,
        received: 'more',
      });
    const added: Id = { number: undefined };
    this.#ids.set(id, added);
    return added;
  }
}

/** An id of one or more rows. Rows share this object instead of keeping the id's text. */
interface Id {
  number: number | undefined;
}

/** Returns an id of what a row belongs to. */
export function idOf(value: unknown, makeError: MakeError): number | string {
  if (typeof value === 'string') {
    if (value.length > MAX_ID_CHARACTERS)
      throw makeError('ERR_INVALID_INPUT', {
        expected: `at most ${MAX_ID_CHARACTERS} characters`,
        received: String(value.length),
      });
    return value;
  }
  if (typeof value !== 'number' || !Number.isFinite(value))
    throw makeError('ERR_INVALID_INPUT', {
      expected: typeof value === 'number' ? 'a finite number or a string' : 'a number or a string',
      received: describeValue(value),
    });
  // Other readers return such integers as text already. A large float64 must be equal to them.
  return Number.isInteger(value) && !Number.isSafeInteger(value) ? numberOrText(BigInt(value)) : value;
}

// All different ids are in memory. These limits keep their text within a few hundred megabytes. A Map cannot hold more
// than 2 ** 24 values.
const MAX_ID_CHARACTERS = 2 ** 16;
const MAX_IDS = 2 ** 24 - 1;
const MAX_CHARACTERS_OF_IDS = 2 ** 27;

/** How to read a column, and what it becomes in a batch. */
export interface ColumnKind {
  /** The batch key that the column becomes. */
  key: string;
  /** The kind of value that a row must have in this column, for error messages. */
  expected: string;
  /** Whether a row has one value per token ('token'), a single value ('row'), or one of the two ('either'). */
  per: 'token' | 'row' | 'either';
  /** Which rows may lack a value if the first row has one, or null. Their value is NaN. */
  mayLack: 'none' | 'masked' | 'any';
  /** What to do if a value is missing, for error messages. */
  hint?: string | undefined;
  make: () => ColumnBuilder;
}

// A file has what belongs to a pair in both of its rows.
const isOfRows = (per: string) => per === 'row' || per === 'pair';

// The values of an input that a row of a file may have, and what collects them.
function kindOf(name: InputName): ColumnKind {
  const { type, per, hint } = inputRow(name);
  const about = {
    key: toCamelCase(name),
    hint,
    per: isOfRows(per) ? 'row' : 'token',
    mayLack: type === 'floats' || type === 'numbers' ? 'masked' : 'none',
  } as const;
  if (type === 'ids') return { ...about, expected: 'a number or a string', make: () => new RowIds() };
  if (type === 'flags')
    return isOfRows(per)
      ? { ...about, expected: 'true or false', make: () => new RowFlags() }
      : { ...about, expected: 'a list of 0 and 1', make: () => new TokenMask() };
  if (isOfRows(per)) {
    // A reward function may fail. Losses that need no rewards can be computed nevertheless.
    const mayLack = name === 'rewards' ? 'any' : about.mayLack;
    return { ...about, mayLack, expected: 'a number', make: () => new RowNumbers() };
  }
  if (name === 'advantages')
    return {
      ...about,
      expected: 'a list of numbers, or one number',
      per: 'either',
      make: () => new TokenFloats(true),
    };
  // Every row must have logprobs, so their error says more.
  const expected = name === 'logprob' ? 'a list of numbers, one per token' : 'a list of numbers';
  return { ...about, expected, make: () => new TokenFloats() };
}

/** All columns, and how they are read. */
export const COLUMNS = Object.fromEntries(
  INPUT_NAMES.flatMap((name) => {
    const { file } = inputRow(name);
    return file === undefined ? [] : [[file, kindOf(name)]];
  }),
) as Readonly<Record<RolloutColumn, ColumnKind>>;

/** A column that identifies what a row belongs to, such as a group or a run. */
export type IdColumn = FileIdName;

const ID_COLUMNS: ReadonlySet<string | undefined> = new Set(
  INPUT_NAMES.filter((name) => inputRow(name).type === 'ids').map((name) => inputRow(name).file),
);

/** Returns whether a column identifies what a row belongs to. Its values are read exactly. */
export function isIdColumn(column: RolloutColumn | undefined): column is IdColumn {
  return column !== undefined && ID_COLUMNS.has(column);
}

/** Returns whether a batch has one value per row of a column. */
export function isPerRow(column: RolloutColumn): boolean {
  return COLUMNS[column].per === 'row';
}

/** Returns the column that becomes the given batch key (in camelCase); undefined if no column does. */
export function columnOfKey(key: string): RolloutColumn | undefined {
  return (Object.keys(COLUMNS) as RolloutColumn[]).find((column) => COLUMNS[column].key === key);
}

/**
 * Checks that a value is a list of a given length, and returns it. Otherwise throws an error.
 * @param noun the word for one element in the error message, such as 'number'.
 * @param suffix text that follows the noun in the error message.
 */
function listOf(value: unknown, length: number, noun: string, suffix: string, makeError: MakeError) {
  if (isList(value) && value.length === length) return value;
  throw makeError(isList(value) ? 'ERR_SHAPE_MISMATCH' : 'ERR_INVALID_INPUT', {
    expected: `a list of ${length} ${noun}${length === 1 ? '' : 's'}${suffix}`,
    received: describeValue(value),
  });
}

function flagOf(value: unknown, makeError: MakeError, index?: number): 0 | 1 {
  if (value === true || value === 1) return 1;
  if (value === false || value === 0) return 0;
  throw makeError('ERR_INVALID_INPUT', {
    index,
    expected: 'true, false, 0 or 1',
    received: describeValue(value),
  });
}
