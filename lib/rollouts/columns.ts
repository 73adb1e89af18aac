// The columns of rollout files, each a key of batches: what may stand in them, and how they grow, row by row, into the
// arrays of a part.
import { describeValue, LossError, type LossErrorCode } from '../core/errors.js';

/** The columns of a rollout file that batches are made of; a file may have any others. */
export type RolloutColumn =
  /** A number per token. Every row must have it: its length is the row's. */
  | 'logprobs'
  /** A number per token. */
  | 'old_logprobs'
  /** A number per token. */
  | 'ref_logprobs'
  /** A number per token, or one number for all tokens of the row. */
  | 'advantages'
  /** 0, 1, false or true per token; a row without it counts in full. */
  | 'action_mask'
  /** A number per token. */
  | 'entropy'
  /** A number per token: its log-probability under a teacher. */
  | 'teacher_logprobs'
  /** One number. */
  | 'reward'
  /** A number per token. */
  | 'token_level_rewards'
  /** A number per token: a critic's values. */
  | 'values'
  /** One number: the reward of the greedy answer to the row's prompt. */
  | 'reward_baseline'
  /** A number or a string, the same in all rows of a group. */
  | 'task_id'
  /** A number or a string, the same in all rows of one run of several steps. */
  | 'run_id'
  /** true or false (or 1, 0): an expert's row. */
  | 'expert'
  /** One number: the trainer's step. */
  | 'step';

/** The complaint about a column's value in the row at hand. */
export type Complain = (code: LossErrorCode, message: string, index?: number) => LossError;

/** Where a row goes: its index in the part, its first token's, and how many tokens it has. */
export interface Slot {
  row: number;
  start: number;
  tokens: number;
}

/** One column of a part as it grows. A row that is refused half way is written over by the next. */
export interface ColumnBuilder {
  set(value: unknown, slot: Slot, complain: Complain): void;
  /**
   * What the batch is given of all rows before one. That row and those after it, up to the end, stay, as the first
   * of the next part.
   */
  take(from: Slot, end: Slot): unknown;
}

type TokenArray = Float32Array | Uint8Array;

/** Values per token, one row's after another's. */
abstract class TokenBuilder<A extends TokenArray> implements ColumnBuilder {
  readonly #make: (length: number) => A;
  #data: A;

  constructor(make: (length: number) => A) {
    this.#make = make;
    this.#data = make(0);
  }

  set(value: unknown, slot: Slot, complain: Complain): void {
    const end = slot.start + slot.tokens;
    if (end > this.#data.length) this.#grow(end, slot.start);
    this.write(this.#data, value, slot, complain);
  }

  /** Writes a row's values at its slot. */
  protected abstract write(data: A, value: unknown, slot: Slot, complain: Complain): void;

  take(from: Slot, end: Slot): A {
    const data = this.#data;
    // The next part will be about as long.
    this.#data = this.#make(end.start > from.start ? data.length : 0);
    this.#data.set(data.subarray(from.start, end.start));
    return data.subarray(0, from.start) as A;
  }

  // At least twice as large, so that all growing together copies each number about once.
  #grow(length: number, used: number): void {
    try {
      const grown = this.#make(Math.max(length, 2 * this.#data.length, LEAST_ROOM));
      grown.set(this.#data.subarray(0, used));
      this.#data = grown;
    } catch (error) {
      throw new LossError('ERR_OUT_OF_MEMORY', `no memory for a column of ${length} values`, {
        cause: error,
      });
    }
  }
}

const LEAST_ROOM = 1024;

/** Numbers per token. */
class TokenFloats extends TokenBuilder<Float32Array> {
  readonly #orOne: boolean;

  /** @param orOne a row may have one number for all its tokens. */
  constructor(orOne = false) {
    super((length) => new Float32Array(length));
    this.#orOne = orOne;
  }

  protected override write(
    data: Float32Array,
    value: unknown,
    { start, tokens }: Slot,
    complain: Complain,
  ): void {
    if (this.#orOne && typeof value === 'number') {
      data.fill(value, start, start + tokens);
      return;
    }
    const expected = `a list of ${tokens} numbers, as logprobs has${this.#orOne ? ', or one number' : ''}`;
    const list = listOf(value, tokens, expected, complain);
    if (ArrayBuffer.isView(list)) {
      data.set(list, start);
      return;
    }
    for (let t = 0; t < tokens; t++) {
      const x: unknown = list[t];
      if (typeof x !== 'number')
        throw complain('ERR_INVALID_INPUT', `expected a number, not ${describeValue(x)}`, t);
      data[start + t] = x;
    }
  }
}

/** Marks per token; a row without them has all ones. */
class TokenMask extends TokenBuilder<Uint8Array> {
  constructor() {
    super((length) => new Uint8Array(length));
  }

  protected override write(
    data: Uint8Array,
    value: unknown,
    { start, tokens }: Slot,
    complain: Complain,
  ): void {
    if (value === undefined) {
      data.fill(1, start, start + tokens);
      return;
    }
    const expected = `a list of ${tokens} marks (0 or 1), as logprobs has numbers`;
    const list = listOf(value, tokens, expected, complain);
    for (let t = 0; t < tokens; t++) data[start + t] = flagOf(list[t], complain, t);
  }
}

/** One value per row. */
abstract class RowBuilder<V> implements ColumnBuilder {
  #values: V[] = [];

  set(value: unknown, { row }: Slot, complain: Complain): void {
    this.#values[row] = this.read(value, complain);
  }

  take(from: Slot, end: Slot): unknown {
    const values = this.#values;
    this.#values = values.slice(from.row, end.row);
    values.length = from.row;
    return this.collect(values);
  }

  protected abstract read(value: unknown, complain: Complain): V;
  protected abstract collect(values: V[]): unknown;
}

/** A number per row. */
class RowNumbers extends RowBuilder<number> {
  protected override read(value: unknown, complain: Complain): number {
    if (typeof value !== 'number')
      throw complain('ERR_INVALID_INPUT', `expected one number, not ${describeValue(value)}`);
    return value;
  }

  protected override collect(values: number[]): Float64Array {
    return Float64Array.from(values);
  }
}

/** true or false per row. */
class RowFlags extends RowBuilder<number> {
  protected override read(value: unknown, complain: Complain): number {
    return flagOf(value, complain);
  }

  protected override collect(values: number[]): Uint8Array {
    return Uint8Array.from(values);
  }
}

/** The name of a group or a run per row. Names keep their numbers from part to part. */
class RowNames extends RowBuilder<number | string> {
  readonly #numbers = new Map<number | string, number>();

  protected override read(value: unknown, complain: Complain): number | string {
    if (typeof value !== 'number' && typeof value !== 'string')
      throw complain('ERR_INVALID_INPUT', `expected a number or a string, not ${describeValue(value)}`);
    return value;
  }

  // Not before: a row that is refused for another column numbers nothing.
  protected override collect(values: (number | string)[]): Int32Array {
    return Int32Array.from(values, (name) => {
      const number = this.#numbers.get(name) ?? this.#numbers.size;
      this.#numbers.set(name, number);
      return number;
    });
  }
}

/** What a column is. */
export interface ColumnKind {
  /** Its key in batches. */
  key: string;
  /** What it holds, as messages say it. */
  expected: string;
  /** What it has a value for. */
  per: 'token' | 'row' | 'either';
  make: () => ColumnBuilder;
}

const floats = (key: string): ColumnKind => ({
  key,
  expected: 'a list of numbers',
  per: 'token',
  make: () => new TokenFloats(),
});
const number = (key: string): ColumnKind => ({
  key,
  expected: 'a number',
  per: 'row',
  make: () => new RowNumbers(),
});
const name = (key: string): ColumnKind => ({
  key,
  expected: 'a number or a string',
  per: 'row',
  make: () => new RowNames(),
});

/** Every column. */
export const COLUMNS: Readonly<Record<RolloutColumn, ColumnKind>> = {
  logprobs: { ...floats('logprob'), expected: 'a list of numbers, one per token' },
  old_logprobs: floats('oldLogprob'),
  ref_logprobs: floats('refLogprob'),
  advantages: {
    key: 'advantages',
    expected: 'a list of numbers, or one',
    per: 'either',
    make: () => new TokenFloats(true),
  },
  action_mask: {
    key: 'actionMask',
    expected: 'a list of 0 and 1',
    per: 'token',
    make: () => new TokenMask(),
  },
  entropy: floats('entropy'),
  teacher_logprobs: floats('teacherLogprob'),
  reward: number('rewards'),
  token_level_rewards: floats('tokenLevelRewards'),
  values: floats('values'),
  reward_baseline: number('rewardBaselines'),
  task_id: name('groupIds'),
  run_id: name('runIds'),
  expert: { key: 'expertMask', expected: 'true or false', per: 'row', make: () => new RowFlags() },
  step: number('step'),
};

/** The column that becomes a batch's key (camelCase); undefined: none. */
export function columnOfKey(key: string): RolloutColumn | undefined {
  return (Object.keys(COLUMNS) as RolloutColumn[]).find((column) => COLUMNS[column].key === key);
}

/** A list of numbers as files of tensors have it. */
export type NumberArray =
  | Float32Array
  | Float64Array
  | Uint8Array
  | Int8Array
  | Uint16Array
  | Int16Array
  | Uint32Array
  | Int32Array;

/** Whether it is a list: one of anything, or a typed array of plain numbers. */
export function isList(value: unknown): value is readonly unknown[] | NumberArray {
  if (!ArrayBuffer.isView(value)) return Array.isArray(value);
  return !(value instanceof DataView || value instanceof BigInt64Array || value instanceof BigUint64Array);
}

function listOf(value: unknown, length: number, expected: string, complain: Complain) {
  if (!isList(value))
    throw complain('ERR_INVALID_INPUT', `expected ${expected}, not ${describeValue(value)}`);
  if (value.length !== length)
    throw complain('ERR_SHAPE_MISMATCH', `expected ${expected}, not ${describeValue(value)}`);
  return value;
}

function flagOf(value: unknown, complain: Complain, index?: number): 0 | 1 {
  if (value === true || value === 1) return 1;
  if (value === false || value === 0) return 0;
  throw complain('ERR_INVALID_INPUT', `expected true, false, 0 or 1, not ${describeValue(value)}`, index);
}
