// Rollout files, one JSON object a line and a rollout each, to one packed batch. Lines are read and forgotten one by
// one: what stays in memory are the numbers of the columns asked for.
import { createReadStream } from 'node:fs';
import type { Batch } from './batch.js';
import { describeValue, LossError, type LossErrorCode } from './errors.js';

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

/** All rows of the files that were read. */
export interface Rollouts {
  /**
   * Packed rows, in the order of the files and their lines: cuSeqlens, logprob and actionMask, and of the other
   * columns those that the files have, as oldLogprob, refLogprob, advantages, entropy, teacherLogprob,
   * tokenLevelRewards, values (per token), rewards, rewardBaselines, groupIds, runIds, expertMask and step (per row).
   * groupIds and runIds number the names in the order they come up in: equal where the names are, and nowhere else.
   */
  batch: Batch & { cuSeqlens: Int32Array; actionMask: Uint8Array };
  rows: number;
  /** Tokens that the mask lets count. */
  tokens: number;
}

/** Options of {@link readRollouts}. */
export interface ReadRolloutsOptions {
  /** The columns to read beside logprobs and action_mask; all by default. The others are not looked at. */
  columns?: readonly RolloutColumn[];
  /** Is told of each piece that has been read: its bytes, and the rows that are complete so far. */
  onProgress?: (bytes: number, rows: number) => void;
}

/**
 * Reads the rollouts of one or more JSON-lines files into one batch. Empty lines are skipped, and null counts as not
 * there. A column must be in every row or in none, action_mask excepted.
 *
 * @throws LossError naming the file, the line, the column, what was expected and what came: `ERR_INVALID_INPUT` (a
 * file that cannot be read or is empty, a line that is not a JSON object, a value of the wrong type),
 * `ERR_SHAPE_MISMATCH` (a list that is not as long as the row's logprobs), `ERR_MISSING_INPUT` (a row without
 * logprobs, or without a column that others have), `ERR_OUT_OF_MEMORY`.
 */
export async function readRollouts(
  files: readonly string[],
  { columns = Object.keys(COLUMNS) as RolloutColumn[], onProgress }: ReadRolloutsOptions = {},
): Promise<Rollouts> {
  const table = new RolloutTable(columns);
  for (const file of files) {
    const rowsBefore = table.rows;
    let line = 0;
    for await (const text of linesOf(file, (bytes) => onProgress?.(bytes, table.rows))) {
      line++;
      const json = text.trim();
      if (json !== '') table.add(parseRow(json, { file, line }), { file, line });
    }
    if (table.rows === rowsBefore)
      throw new LossError(
        'ERR_INVALID_INPUT',
        `${file}: expected rollouts, one JSON object a line, and the file is empty`,
      );
  }
  return table.finish();
}

interface Place {
  file: string;
  line: number;
}

// node:readline would also end a line at U+2028, which a JSON string may hold as it is.
async function* linesOf(file: string, onBytes: (bytes: number) => void): AsyncGenerator<string> {
  let pieces: Buffer[] = [];
  try {
    for await (const chunk of createReadStream(file, { highWaterMark: 1 << 18 }) as AsyncIterable<Buffer>) {
      let start = 0;
      for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
        pieces.push(chunk.subarray(start, end));
        yield Buffer.concat(pieces).toString();
        pieces = [];
        start = end + 1;
      }
      if (start < chunk.length) pieces.push(chunk.subarray(start));
      onBytes(chunk.length);
    }
    if (pieces.length > 0) yield Buffer.concat(pieces).toString();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${file}: expected a file of rollouts, and it cannot be read: ${reason}`,
      {
        cause: error,
      },
    );
  }
}

const NEWLINE = 0x0a;

function parseRow(json: string, place: Place): Record<string, unknown> {
  let row: unknown;
  try {
    row = JSON.parse(json);
  } catch (error) {
    const word = /\b(?:NaN|Infinity)\b/.exec(json.replace(/"(?:[^"\\]|\\.)*"/g, '""'))?.[0];
    const reason = word
      ? `${word} came, which JSON has no way to write (Python's json.dumps writes it all the same). ` +
        'Put a number there; under an action_mask of 0 it is not read'
      : `it does not parse: ${(error as Error).message}`;
    throw at(place, 'ERR_INVALID_INPUT', `expected a JSON object, and ${reason}`, error);
  }
  if (row === null || typeof row !== 'object' || Array.isArray(row))
    throw at(place, 'ERR_INVALID_INPUT', `expected a JSON object, not ${describeValue(row)}`);
  return row as Record<string, unknown>;
}

function at({ file, line }: Place, code: LossErrorCode, message: string, cause?: unknown): LossError {
  return new LossError(code, `${file}, line ${line}: ${message}`, { cause });
}

/** The complaint about a column's value in the row at hand. */
type Complain = (code: LossErrorCode, message: string, index?: number) => LossError;

/** One column as it grows. */
interface ColumnBuilder {
  /** @param tokens the length of the row. */
  add(value: unknown, tokens: number, complain: Complain): void;
  /** What the batch is given. */
  finish(): unknown;
}

class RolloutTable {
  rows = 0;
  readonly #logprob = new TokenFloats();
  readonly #mask = new TokenMask();
  readonly #offsets: number[] = [0];
  readonly #columns: {
    name: RolloutColumn;
    expected: string;
    key: string;
    builder: ColumnBuilder;
    present: boolean;
  }[];
  #first: Place | undefined;

  constructor(columns: readonly RolloutColumn[]) {
    this.#columns = [...new Set(columns)]
      .filter((name) => name !== 'logprobs' && name !== 'action_mask')
      .map((name) => {
        const { key, expected, make } = COLUMNS[name];
        return { name, key, expected, builder: make(), present: false };
      });
  }

  add(row: Record<string, unknown>, place: Place): void {
    this.#first ??= place;
    const first = this.#first;
    const complainOf =
      (name: string): Complain =>
      (code, message, index) =>
        at(place, code, `${name}${index === undefined ? '' : `[${index}]`}: ${message}`);

    const logprobs = row.logprobs ?? undefined;
    if (logprobs === undefined)
      throw complainOf('logprobs')(
        'ERR_MISSING_INPUT',
        `expected ${COLUMNS.logprobs.expected}, and the row has only ${listed(Object.keys(row))}`,
      );
    if (!Array.isArray(logprobs))
      throw complainOf('logprobs')(
        'ERR_INVALID_INPUT',
        `expected ${COLUMNS.logprobs.expected}, not ${describeValue(logprobs)}`,
      );
    const tokens = logprobs.length;
    this.#logprob.add(logprobs, tokens, complainOf('logprobs'));
    this.#mask.add(row.action_mask ?? undefined, tokens, complainOf('action_mask'));

    for (const column of this.#columns) {
      const value = row[column.name] ?? undefined;
      if (this.rows === 0) column.present = value !== undefined;
      if (column.present !== (value !== undefined))
        throw complainOf(column.name)(
          'ERR_MISSING_INPUT',
          `expected in every row or in none, and ${first.file}, line ${first.line} has ${
            column.present ? `it (${column.expected}) where this row has none` : 'none'
          }`,
        );
      if (value !== undefined) column.builder.add(value, tokens, complainOf(column.name));
    }

    const end = this.#offsets.at(-1)! + tokens;
    if (end > MOST_TOKENS)
      throw at(
        place,
        'ERR_OUT_OF_MEMORY',
        `expected at most ${MOST_TOKENS} tokens in all, and there are more`,
      );
    this.#offsets.push(end);
    this.rows++;
  }

  finish(): Rollouts {
    const batch: Rollouts['batch'] = {
      cuSeqlens: Int32Array.from(this.#offsets),
      logprob: this.#logprob.finish(),
      actionMask: this.#mask.finish(),
    };
    for (const { key, builder, present } of this.#columns) if (present) batch[key] = builder.finish();
    return { batch, rows: this.rows, tokens: batch.actionMask.reduce((sum, m) => sum + m, 0) };
  }
}

// What cuSeqlens can count to.
const MOST_TOKENS = 2 ** 31 - 1;

/** A list of numbers per row, one after another. */
class TokenFloats implements ColumnBuilder {
  #data = new Float32Array(1024);
  #length = 0;
  readonly #orOne: boolean;

  /** @param orOne a row may have one number for all its tokens. */
  constructor(orOne = false) {
    this.#orOne = orOne;
  }

  add(value: unknown, tokens: number, complain: Complain): void {
    this.#data = withRoom(this.#data, this.#length + tokens);
    const data = this.#data;
    if (this.#orOne && typeof value === 'number') {
      data.fill(value, this.#length, this.#length + tokens);
    } else {
      const expected = `a list of ${tokens} numbers, as logprobs has${this.#orOne ? ', or one number' : ''}`;
      const list = listOf(value, tokens, expected, complain);
      for (let t = 0; t < tokens; t++) {
        const x = list[t];
        if (typeof x !== 'number')
          throw complain('ERR_INVALID_INPUT', `expected a number, not ${describeValue(x)}`, t);
        data[this.#length + t] = x;
      }
    }
    this.#length += tokens;
  }

  finish(): Float32Array {
    return this.#data.subarray(0, this.#length);
  }
}

/** A list of marks per row, one after another; a row without one has all ones. */
class TokenMask implements ColumnBuilder {
  #data = new Uint8Array(1024);
  #length = 0;

  add(value: unknown, tokens: number, complain: Complain): void {
    this.#data = withRoom(this.#data, this.#length + tokens);
    const data = this.#data;
    if (value === undefined) {
      data.fill(1, this.#length, this.#length + tokens);
    } else {
      const list = listOf(
        value,
        tokens,
        `a list of ${tokens} marks (0 or 1), as logprobs has numbers`,
        complain,
      );
      for (let t = 0; t < tokens; t++) data[this.#length + t] = flagOf(list[t], complain, t);
    }
    this.#length += tokens;
  }

  finish(): Uint8Array {
    return this.#data.subarray(0, this.#length);
  }
}

/** A number per row. */
class RowNumbers implements ColumnBuilder {
  readonly #values: number[] = [];

  add(value: unknown, _tokens: number, complain: Complain): void {
    if (typeof value !== 'number')
      throw complain('ERR_INVALID_INPUT', `expected one number, not ${describeValue(value)}`);
    this.#values.push(value);
  }

  finish(): Float64Array {
    return Float64Array.from(this.#values);
  }
}

/** true or false per row. */
class RowFlags implements ColumnBuilder {
  readonly #values: number[] = [];

  add(value: unknown, _tokens: number, complain: Complain): void {
    this.#values.push(flagOf(value, complain));
  }

  finish(): Uint8Array {
    return Uint8Array.from(this.#values);
  }
}

/** The name of a group or a run per row. */
class RowNames implements ColumnBuilder {
  readonly #numbers = new Map<unknown, number>();
  readonly #values: number[] = [];

  add(value: unknown, _tokens: number, complain: Complain): void {
    if (typeof value !== 'number' && typeof value !== 'string')
      throw complain('ERR_INVALID_INPUT', `expected a number or a string, not ${describeValue(value)}`);
    const number = this.#numbers.get(value) ?? this.#numbers.size;
    this.#numbers.set(value, number);
    this.#values.push(number);
  }

  finish(): Int32Array {
    return Int32Array.from(this.#values);
  }
}

const COLUMNS: Record<RolloutColumn, { key: string; expected: string; make: () => ColumnBuilder }> = {
  logprobs: { key: 'logprob', expected: 'a list of numbers, one per token', make: () => new TokenFloats() },
  old_logprobs: { key: 'oldLogprob', expected: 'a list of numbers', make: () => new TokenFloats() },
  ref_logprobs: { key: 'refLogprob', expected: 'a list of numbers', make: () => new TokenFloats() },
  advantages: { key: 'advantages', expected: 'a list of numbers, or one', make: () => new TokenFloats(true) },
  action_mask: { key: 'actionMask', expected: 'a list of 0 and 1', make: () => new TokenMask() },
  entropy: { key: 'entropy', expected: 'a list of numbers', make: () => new TokenFloats() },
  teacher_logprobs: { key: 'teacherLogprob', expected: 'a list of numbers', make: () => new TokenFloats() },
  reward: { key: 'rewards', expected: 'a number', make: () => new RowNumbers() },
  token_level_rewards: {
    key: 'tokenLevelRewards',
    expected: 'a list of numbers',
    make: () => new TokenFloats(),
  },
  values: { key: 'values', expected: 'a list of numbers', make: () => new TokenFloats() },
  reward_baseline: { key: 'rewardBaselines', expected: 'a number', make: () => new RowNumbers() },
  task_id: { key: 'groupIds', expected: 'a number or a string', make: () => new RowNames() },
  run_id: { key: 'runIds', expected: 'a number or a string', make: () => new RowNames() },
  expert: { key: 'expertMask', expected: 'true or false', make: () => new RowFlags() },
  step: { key: 'step', expected: 'a number', make: () => new RowNumbers() },
};

/** The column that becomes a batch's key (camelCase); undefined: none. */
export function columnOfKey(key: string): RolloutColumn | undefined {
  return (Object.keys(COLUMNS) as RolloutColumn[]).find((column) => COLUMNS[column].key === key);
}

// At least twice as large where it must grow, so that all growing together copies each number about once.
function withRoom<A extends Float32Array | Uint8Array>(data: A, length: number): A {
  if (length <= data.length) return data;
  try {
    const grown = new (data.constructor as new (length: number) => A)(Math.max(length, 2 * data.length));
    grown.set(data);
    return grown;
  } catch (error) {
    throw new LossError('ERR_OUT_OF_MEMORY', `no memory for a column of ${length} values`, { cause: error });
  }
}

function listOf(value: unknown, length: number, expected: string, complain: Complain): readonly unknown[] {
  if (!Array.isArray(value))
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

function listed(names: readonly string[]): string {
  if (names.length === 0) return 'no column at all';
  return names.length > 12 ? `${names.slice(0, 12).join(', ')}, …` : names.join(', ');
}
