// Rows to parts: packed batches of bounded size. What holds over all parts is kept here too: which columns there are,
// the numbers of groups and runs, how many rows there were.
import type { Batch } from '../core/batch.js';
import { describeValue, type LossError } from '../core/errors.js';
import type { ColumnNames } from './column-names.js';
import {
  COLUMNS,
  type ColumnBuilder,
  type Complain,
  isList,
  type RolloutColumn,
  type Slot,
} from './columns.js';
import { at, describePlace, type FileRow, listed, type Place } from './source.js';

/** Rows of the files that were read. */
export interface Rollouts {
  /**
   * Packed rows, in the order of the files and of the rows in them: cuSeqlens, logprob and actionMask, and of the
   * other columns those that the files have, as oldLogprob, refLogprob, advantages, entropy, teacherLogprob,
   * tokenLevelRewards, values (per token), rewards, rewardBaselines, groupIds, runIds, expertMask and step (per row).
   * groupIds and runIds number the names in the order they come up in: equal where the names are, and nowhere else.
   */
  batch: Batch & { cuSeqlens: Int32Array; logprob: Float32Array; actionMask: Uint8Array };
  rows: number;
  /** Tokens that the mask lets count. */
  tokens: number;
}

/** Some of the rows, one after another. Its arrays are its own. */
export interface RolloutPart extends Rollouts {
  /** The index of its first row among all rows that were read. */
  first: number;
  /** Per row: the further columns that were asked for, where the row has them, as they stand in the file. */
  kept: Record<string, unknown>[];
  /** Per row: where it stands. */
  places: Place[];
}

interface Column {
  name: RolloutColumn;
  /** Its names in files. */
  names: readonly string[];
  /** For messages. */
  shown: string;
  builder: ColumnBuilder;
  present: boolean;
}

/** Builds parts of rows. */
export class PartBuilder {
  /** Rows that went into parts, the one at hand included. */
  rows = 0;
  /** Their tokens, masked or not. */
  tokens = 0;

  readonly #names: ColumnNames;
  readonly #maxTokens: number;
  readonly #logprobs: Column;
  readonly #mask: Column;
  readonly #columns: Column[];
  #firstPlace: Place | undefined;

  // Of the part at hand: where each row begins, where the next will, and what is kept of each.
  #first = 0;
  #starts: number[] = [];
  #end = 0;
  #kept: Record<string, unknown>[] = [];
  #places: Place[] = [];
  // How much it holds, in tokens, up to the last whole unit of rows; that unit's rows, and the first beyond it.
  #cost = 0;
  #openCost = 0;
  #whole = 0;

  /** @param maxTokens what a part may hold. A unit of rows that has more is a part of its own. */
  constructor(names: ColumnNames, maxTokens: number) {
    this.#names = names;
    this.#maxTokens = maxTokens;
    const columns = names.columns.map((name) => ({
      name,
      names: names.of(name),
      shown: names.describe(name),
      builder: COLUMNS[name].make(),
      present: true,
    }));
    [this.#logprobs, this.#mask] = columns as [Column, Column];
    this.#columns = columns.slice(2);
  }

  /**
   * Adds a row; where that throws, there is nothing of it.
   * @throws LossError naming the row, the column, what was expected and what came.
   */
  add(row: FileRow): void {
    const { place } = row;
    const values = row.read();
    const complainOf =
      ({ shown }: Column): Complain =>
      (code, message, index) =>
        at(place, code, `${shown}${index === undefined ? '' : `[${index}]`}: ${message}`);

    const slot = this.#place(columnIn(values, this.#logprobs), values, complainOf(this.#logprobs));
    if (slot.start + slot.tokens > MOST_TOKENS)
      throw at(
        place,
        'ERR_OUT_OF_MEMORY',
        `expected at most ${MOST_TOKENS} tokens in all, and there are more`,
      );
    this.#logprobs.builder.set(columnIn(values, this.#logprobs), slot, complainOf(this.#logprobs));
    const mask = columnIn(values, this.#mask);
    if (mask === undefined && this.#names.isRenamed('action_mask'))
      throw this.#absent(this.#mask, values, place);
    this.#mask.builder.set(mask, slot, complainOf(this.#mask));

    for (const column of this.#columns) {
      const value = columnIn(values, column);
      if (value === undefined && this.#names.isRenamed(column.name))
        throw this.#absent(column, values, place);
      const first = this.#firstPlace;
      if (first && column.present !== (value !== undefined))
        throw complainOf(column)(
          'ERR_MISSING_INPUT',
          `expected in every row or in none, and ${describePlace(first)} has ${
            column.present ? `it (${COLUMNS[column.name].expected}) where this row has none` : 'none'
          }`,
        );
      if (value !== undefined) column.builder.set(value, slot, complainOf(column));
    }

    if (!this.#firstPlace) {
      this.#firstPlace = place;
      for (const column of this.#columns) column.present = columnIn(values, column) !== undefined;
    }
    this.#keep(values);
    this.#places.push(place);
    this.#starts.push(slot.start);
    this.#end = slot.start + slot.tokens;
    this.rows++;
    this.tokens += slot.tokens;
    this.#openCost += Math.max(slot.tokens, 1);
  }

  /** Ends a unit of rows that must not be torn apart. @returns the part that had no more room for it. */
  endUnit(): RolloutPart | undefined {
    const full = this.#whole > 0 && this.#cost + this.#openCost > this.#maxTokens;
    const part = full ? this.#take(this.#whole) : undefined;
    this.#cost += this.#openCost;
    this.#openCost = 0;
    this.#whole = this.#places.length;
    return part;
  }

  /** Forgets the rows since the last unit ended. */
  dropUnit(): void {
    const dropped = this.#places.length - this.#whole;
    const end = this.#starts[this.#whole] ?? this.#end;
    this.rows -= dropped;
    this.tokens -= this.#end - end;
    this.#end = end;
    for (const list of [this.#starts, this.#places, this.#kept]) list.length = this.#whole;
    this.#openCost = 0;
    // Which columns there are is for a row to say that stays.
    if (this.rows === 0) this.#firstPlace = undefined;
  }

  /** The last part, of what rows there are still. */
  finish(): RolloutPart {
    return this.#take(this.#places.length);
  }

  /** Where the next row goes. */
  #place(logprobs: unknown, values: Readonly<Record<string, unknown>>, complain: Complain): Slot {
    const { expected } = COLUMNS.logprobs;
    if (logprobs === undefined)
      throw complain(
        'ERR_MISSING_INPUT',
        `expected ${expected}, and the row has only ${listed(Object.keys(values))}`,
      );
    if (!isList(logprobs))
      throw complain('ERR_INVALID_INPUT', `expected ${expected}, not ${describeValue(logprobs)}`);
    return { row: this.#places.length, start: this.#end, tokens: logprobs.length };
  }

  #absent({ name, shown }: Column, values: Readonly<Record<string, unknown>>, place: Place): LossError {
    return at(
      place,
      'ERR_MISSING_INPUT',
      `${shown}: expected ${COLUMNS[name].expected}, and the row has only ${listed(Object.keys(values))}`,
    );
  }

  #keep(values: Readonly<Record<string, unknown>>): void {
    const kept: Record<string, unknown> = {};
    for (const name of this.#names.keep) {
      const value = values[name] ?? undefined;
      if (value === undefined) continue;
      kept[name] = ArrayBuffer.isView(value) && isList(value) ? Array.from<unknown>(value) : value;
      this.#openCost += sizeOf(value);
    }
    this.#kept.push(kept);
  }

  /** The part of the first so many rows. The others begin the next. */
  #take(rows: number): RolloutPart {
    const all = { row: this.#places.length, start: this.#end, tokens: 0 };
    const from = { row: rows, start: this.#starts[rows] ?? this.#end, tokens: 0 };
    const cuSeqlens = Int32Array.from({ length: rows + 1 }, (_, row) => this.#starts[row] ?? from.start);
    const actionMask = this.#mask.builder.take(from, all) as Uint8Array;
    const logprob = this.#logprobs.builder.take(from, all) as Float32Array;
    const batch: Rollouts['batch'] = { cuSeqlens, logprob, actionMask };
    for (const { name, builder, present } of this.#columns)
      if (present) batch[COLUMNS[name].key] = builder.take(from, all);
    const part = {
      batch,
      rows,
      tokens: actionMask.reduce((sum, m) => sum + m, 0),
      first: this.#first,
      kept: this.#kept.splice(0, rows),
      places: this.#places.splice(0, rows),
    };
    this.#starts = this.#starts.slice(rows).map((start) => start - from.start);
    this.#end -= from.start;
    this.#first += rows;
    this.#cost = 0;
    return part;
  }
}

// What cuSeqlens can count to.
const MOST_TOKENS = 2 ** 31 - 1;

function columnIn(values: Readonly<Record<string, unknown>>, { names }: Column): unknown {
  for (const name of names) {
    const value = values[name];
    if (value !== undefined && value !== null) return value;
  }
  return undefined;
}

// What is kept of a row takes room as its tokens do: a token has about so many characters in all its columns.
const CHARACTERS_PER_TOKEN = 16;

function sizeOf(value: unknown): number {
  if (typeof value === 'string') return value.length / CHARACTERS_PER_TOKEN;
  if (!isList(value)) return 0;
  let size = value.length;
  for (const item of value) if (typeof item === 'string') size += sizeOf(item);
  return size;
}
