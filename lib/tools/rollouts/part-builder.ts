// Collects rows into parts. A part is a packed batch of limited size. The builder also keeps what all parts share:
// which columns the rows have, the numbers of groups and runs, and the number of rows.
import { describeValue, type LossError } from '../../base/errors.js';
import type { BatchWith } from '../../batch/batch.js';
import { adviceOnNear, adviceOnStandIn, type ColumnNames } from './column-names.js';
import {
  COLUMNS,
  type ColumnBuilder,
  type IdColumn,
  type MakeError,
  type RolloutColumn,
  RowIds,
  type Slot,
} from './columns.js';
import { tooManyRows, tooManyTokens } from './limits.js';
import {
  describeColumns,
  describePlace,
  errorAt,
  type FileRow,
  type Place,
  ROW_TOKENS,
  type RowLimits,
  type RowValues,
} from './source.js';
import { isList } from './values.js';

/** Rows read from files, as a batch. */
export interface Rollouts {
  /**
   * The rows as a packed batch, in the order of the files. The batch always has cuSeqlens, logprob and actionMask, except
   * that `ReadOptions.logprobs` can allow it to lack logprob. If the files have them, it also has oldLogprob, refLogprob, rolloutLogprob, proxLogprob, teacherLogprob, advantages,
   * entropy, oldEntropy, tokenLevelRewards, values and sumPiSquared (per token), and rewards, rewardBaselines, vStar,
   * probability, logZ, groupIds, runIds, expertMask and step (per row). groupIds and runIds hold numbers instead of the
   * files' ids, in order of appearance. Two rows have equal numbers if and only if their ids are equal.
   */
  batch: BatchWith<string> & { cuSeqlens: Int32Array; logprob: Float32Array; actionMask: Uint8Array };
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
}

/** A part of the rows: some consecutive rows. Its arrays belong to it; later parts do not overwrite them. */
export interface RolloutPart extends Rollouts {
  /** The index of the part's first row among all rows that were read. */
  first: number;
  /**
   * One object per row with the row's values of the columns in `StreamOptions.keep`, as they are in the file. A column
   * that the row lacks is left out.
   */
  kept: Record<string, unknown>[];
  /** The place of each row in its file, for error messages. */
  places: Place[];
  /** The names of the columns of the first row in its file, for error messages. */
  fileColumns?: readonly string[];
  /**
   * Returns the ids of a column that have numbers so far, in the order of their numbers. Numbers begin at 0. The list is
   * empty if the rows have no such column.
   */
  idsOf(column: IdColumn): (number | string)[];
}

interface Column {
  name: RolloutColumn;
  /** The names that the column may have in files. Error messages show the first one. */
  names: readonly [string, ...string[]];
  builder: ColumnBuilder;
  /** Whether the rows have this column. All rows have it, or none, apart from values that are missing. */
  present: boolean;
}

/** The columns that rows have. */
export interface PresentColumns {
  columns: readonly RolloutColumn[];
  /** The place of a row that has them, for error messages. */
  first: Place;
}

/** The limits on parts and their rows. */
export interface PartLimits extends RowLimits {
  /** The capacity of a part, in tokens. A set that exceeds it becomes a part of its own. */
  maxTokens: number;
  /** The maximum number of rows in all parts, and of skipped rows. */
  maxRows: number;
}

/**
 * Builds parts from rows. Rows are added in sets: a set is one row, or a pair of rows that must be in the same part.
 */
export class PartBuilder {
  /** The number of rows in all parts so far, including the part that is being built. */
  rows = 0;
  /** The number of tokens, masked or not, in all parts so far, including the part that is being built. */
  tokens = 0;
  /** The number of rows that were skipped. They count towards maxRows, because reading them takes time. */
  skipped = 0;

  readonly #names: ColumnNames;
  readonly #limits: PartLimits;
  readonly #logprobs: Column;
  readonly #mask: Column;
  // All columns but the mask.
  readonly #columns: Column[];
  readonly #given: PresentColumns | undefined;
  #firstPlace: Place | undefined;
  #fileColumns: readonly string[] = [];

  // The part that is being built: the index of its first row, the token at which each row begins, the token at which
  // the next row will begin, the kept values of each row, and the place of each row.
  #first = 0;
  #starts: number[] = [];
  #end = 0;
  #kept: Record<string, unknown>[] = [];
  #places: Place[] = [];
  // The memory cost of the part's finished sets, the cost of the set that is not finished, both in tokens, and the
  // index of the first row of the unfinished set.
  #cost = 0;
  #openCost = 0;
  #setStart = 0;

  /** @param given the columns that the rows have; undefined if the first row decides. */
  constructor(names: ColumnNames, limits: PartLimits, given?: PresentColumns) {
    this.#limits = limits;
    this.#names = names;
    this.#given = given;
    this.#firstPlace = given?.first;
    const columns = names.columns.map((name) => ({
      name,
      names: names.of(name),
      builder: COLUMNS[name].make(),
      present: given?.columns.includes(name) ?? true,
    }));
    [this.#logprobs, this.#mask] = columns as [Column, Column];
    this.#columns = columns.filter((column) => column !== this.#mask);
  }

  /**
   * Adds a row to the current set. If this throws, the row is not added.
   * @throws LossError if the row is invalid or too large for the part. The message names the row's place, the column,
   * what was expected and what was given.
   */
  add(row: FileRow): void {
    const { place } = row;
    const { maxRows } = this.#limits;
    if (this.rows + this.skipped >= maxRows) throw errorAt(place, 'ERR_OUT_OF_MEMORY', tooManyRows(maxRows));
    const values = row.read();
    const fileColumns = row.columns ?? Object.keys(values);
    const makeErrorFor =
      ({ name, names }: Column): MakeError =>
      (code, details) =>
        errorAt(place, code, { key: row.keyOf?.(name) ?? names[0], ...details });

    const logprobs = columnIn(values, this.#logprobs);
    const mask = columnIn(values, this.#mask);
    const isMasked = isList(mask) && mask.length > 0 && mask.every((flag) => flag === 0 || flag === false);
    const needsLogprobs = this.#names.needLogprobs || this.#names.isRenamed('logprobs');
    if (logprobs === undefined && needsLogprobs && !this.#mayLack(this.#logprobs, values, isMasked))
      throw missing(this.#logprobs, values, fileColumns, row);
    const makeError = makeErrorFor(this.#logprobs);
    const slot = this.#slotFor(
      logprobs === undefined ? this.#tokensOf(values) : lengthOf(logprobs, makeError),
      makeError,
    );
    if (mask === undefined && this.#names.isRenamed('action_mask'))
      throw missing(this.#mask, values, fileColumns, row);
    this.#mask.builder.set(mask, slot, makeErrorFor(this.#mask));
    const found = this.#columns.map((column) => {
      const value = columnIn(values, column) ?? (this.#mayLack(column, values, isMasked) ? null : undefined);
      if (value === undefined && this.#names.isRenamed(column.name))
        throw missing(column, values, fileColumns, row);
      this.#checkPresence(column, value, makeErrorFor(column));
      if (value !== undefined) column.builder.set(value, slot, makeErrorFor(column));
      return value;
    });

    const { kept, cost } = this.#keptOf(values, place);
    if (!this.#firstPlace) {
      this.#firstPlace = place;
      this.#fileColumns = fileColumns;
      this.#columns.forEach((column, i) => {
        column.present = found[i] !== undefined;
      });
    }
    this.#kept.push(kept);
    this.#places.push(place);
    this.#starts.push(slot.start);
    this.#end = slot.start + slot.tokens;
    this.rows++;
    this.tokens += slot.tokens;
    this.#openCost += Math.max(slot.tokens, 1) + cost;
  }

  /**
   * Ends the current set. If the set does not fit into the current part, returns the rows before it as a complete
   * part, and the set begins the next part.
   */
  endSet(): RolloutPart | undefined {
    const full = this.#setStart > 0 && this.#cost + this.#openCost > this.#limits.maxTokens;
    const part = full ? this.#take(this.#setStart) : undefined;
    this.#cost += this.#openCost;
    this.#openCost = 0;
    this.#setStart = this.#places.length;
    return part;
  }

  /** Removes the rows of the current set, which was not ended. */
  dropSet(): void {
    const dropped = this.#places.length - this.#setStart;
    const end = this.#starts[this.#setStart] ?? this.#end;
    this.rows -= dropped;
    this.skipped += dropped;
    this.tokens -= this.#end - end;
    this.#end = end;
    for (const list of [this.#starts, this.#places, this.#kept]) list.length = this.#setStart;
    this.#openCost = 0;
    // Unless it is given, the first row decides which columns are present. If no row is left, the next row becomes the
    // first.
    if (this.rows === 0) this.#firstPlace = this.#given?.first;
  }

  /** Returns the remaining rows as the last part. */
  finish(): RolloutPart {
    return this.#take(this.#places.length);
  }

  /**
   * Returns whether a row may lack a value of a column that other rows have. The first row may only lack a reward, which is
   * null then.
   * @param isMasked whether all tokens of the row are masked.
   */
  #mayLack({ name, names, present }: Column, values: Readonly<RowValues>, isMasked: boolean): boolean {
    const { mayLack } = COLUMNS[name];
    if (!this.#firstPlace) return mayLack === 'any' && names.some((each) => values[each] === null);
    return present && (mayLack === 'any' || (mayLack === 'masked' && isMasked));
  }

  /** Throws an error if a row lacks a column that the rows before it have, or the other way round. */
  #checkPresence({ name, present }: Column, value: unknown, makeError: MakeError): void {
    const first = this.#firstPlace;
    if (!first || present === (value !== undefined)) return;
    const { expected, hint } = COLUMNS[name];
    throw makeError('ERR_MISSING_INPUT', {
      expected: `${expected} in every row or in none`,
      received: present
        ? `none here, but one in ${describePlace(first)}`
        : `one here, but none in ${describePlace(first)}`,
      hint,
    });
  }

  /**
   * Returns the number of tokens of a row without logprobs: what the file states, or the length of another list. A row that
   * has only a number for all its tokens counts as one token.
   */
  #tokensOf(values: Readonly<RowValues>): number {
    const list = [this.#mask, ...this.#columns].map((column) => columnIn(values, column)).find(isList);
    const isNumber = (column: Column) =>
      COLUMNS[column.name].per === 'either' && columnIn(values, column) !== undefined;
    return values[ROW_TOKENS] ?? list?.length ?? Number(this.#columns.some(isNumber));
  }

  /** Returns the position that the next row, of the given number of tokens, will have in the part. */
  #slotFor(tokens: number, makeError: MakeError): Slot {
    if (tokens > this.#limits.maxRowTokens)
      throw makeError('ERR_INVALID_INPUT', tooManyTokens(this.#limits, tokens));
    const slot = { row: this.#places.length, start: this.#end, tokens };
    if (slot.start + slot.tokens > MAX_PART_TOKENS)
      throw makeError('ERR_OUT_OF_MEMORY', {
        expected: `at most ${MAX_PART_TOKENS} tokens in a part`,
        received: String(slot.start + slot.tokens),
      });
    return slot;
  }

  /** Returns the row's values of the columns to keep, and how much of a part's capacity they take up. */
  #keptOf(values: Readonly<RowValues>, place: Place) {
    const { maxRowTokens } = this.#limits;
    const kept: Record<string, unknown> = {};
    let sum = 0;
    for (const name of this.#names.keep) {
      const value = values[name] ?? undefined;
      if (value === undefined) continue;
      const cost = costOf(value);
      if (cost > maxRowTokens)
        throw errorAt(place, 'ERR_INVALID_INPUT', {
          key: name,
          expected: `at most ${maxRowTokens} elements, or ${CHARACTERS_PER_TOKEN * maxRowTokens} characters`,
          received: 'more',
          hint: (spell) => `If the row is correct, raise ${spell('maxRowTokens')}`,
        });
      kept[name] = ArrayBuffer.isView(value) && isList(value) ? Array.from<unknown>(value) : value;
      sum += cost;
    }
    return { kept, cost: sum };
  }

  /** Returns the given number of rows, from the first on, as a part. The other rows begin the next part. */
  #take(rows: number): RolloutPart {
    const end = { row: this.#places.length, start: this.#end, tokens: 0 };
    const from = { row: rows, start: this.#starts[rows] ?? this.#end, tokens: 0 };
    const cuSeqlens = Int32Array.from({ length: rows + 1 }, (_, row) => this.#starts[row] ?? from.start);
    const actionMask = this.#mask.builder.take(from, end) as Uint8Array;
    const batch: { cuSeqlens: Int32Array; actionMask: Uint8Array; [key: string]: unknown } = {
      cuSeqlens,
      actionMask,
    };
    for (const { name, builder, present } of this.#columns)
      if (present) batch[COLUMNS[name].key] = builder.take(from, end);
    const part: RolloutPart = {
      batch: batch as Rollouts['batch'],
      rows,
      tokens: actionMask.reduce((sum, m) => sum + m, 0),
      first: this.#first,
      fileColumns: this.#fileColumns,
      kept: this.#kept.splice(0, rows),
      places: this.#places.splice(0, rows),
      idsOf: (column) => {
        const builder = this.#columns.find(({ name }) => name === column)?.builder;
        return builder instanceof RowIds ? builder.numbered() : [];
      },
    };
    this.#starts = this.#starts.slice(rows).map((start) => start - from.start);
    this.#end -= from.start;
    this.#first += rows;
    this.#cost = 0;
    return part;
  }
}

// cuSeqlens holds token positions as 32-bit integers, so a part cannot have more tokens than this.
const MAX_PART_TOKENS = 2 ** 31 - 1;

/** Returns the length of a row's logprobs, in tokens. */
function lengthOf(logprobs: unknown, makeError: MakeError): number {
  if (isList(logprobs)) return logprobs.length;
  throw makeError('ERR_INVALID_INPUT', {
    expected: COLUMNS.logprobs.expected,
    received: describeValue(logprobs),
  });
}

/** Returns a row's value of a column; undefined if it is absent. null counts as absent. */
function columnIn(values: Readonly<RowValues>, { names }: Column): unknown {
  for (const name of names) {
    const value = values[name];
    if (value !== undefined && value !== null) return value;
  }
  return undefined;
}

/**
 * Returns the error to throw for a row that lacks a required column.
 * @param names the names of the file's columns.
 */
function missing(
  column: Column,
  values: Readonly<RowValues>,
  names: readonly string[],
  { place, keyOf }: FileRow,
): LossError {
  const { expected, hint } = COLUMNS[column.name];
  const wanted = keyOf?.(column.name) ?? column.names[0];
  const isNull = column.names.some((name) => values[name] === null);
  return errorAt(place, 'ERR_MISSING_INPUT', {
    key: wanted,
    expected,
    received: isNull ? 'null' : describeColumns('a row', names),
    hint:
      (isNull ? hint : adviceOnNear(column.name, wanted, names)) ??
      adviceOnStandIn(column.name, names) ??
      hint,
  });
}
// The text in kept values counts towards a part's capacity. This many characters cost as much as one token.
const CHARACTERS_PER_TOKEN = 16;

/** Returns how much of a part's capacity, which is measured in tokens, a kept value takes up. */
function costOf(value: unknown): number {
  if (typeof value === 'string') return value.length / CHARACTERS_PER_TOKEN;
  if (value === null || typeof value !== 'object') return 0;
  if (ArrayBuffer.isView(value)) return isList(value) ? value.length : 0;
  let cost = 0;
  for (const item of Object.values(value)) cost += 1 + costOf(item);
  return cost;
}
