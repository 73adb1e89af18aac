// What the checks have measured of the rows of a shard, as JSON can hold it. An examination into which the rows of all shards
// are replayed, in order, has the findings of one that has examined all rows itself.
import { LossError } from '../../base/errors.js';
import { encodeNumbers, type Fields } from '../parts/fields.js';
import { Growing } from '../parts/growing.js';
import { renumber } from '../parts/merge-counts.js';
import { idsFrom, idsToJson } from '../parts/part-data.js';
import type { IdColumn } from '../rollouts/columns.js';
import type { Place, RolloutColumn, RolloutPart } from '../rollouts/index.js';
import type { Check, Numbers } from './check.js';
import { measureRows, NEEDED, type RowSink, runnable } from './measure.js';
import { RowTable } from './row-table.js';

const uint32 = () => new Growing((length) => new Uint32Array(length));
const float64 = () => new Growing((length) => new Float64Array(length));

/** The indices of the rows that a check has measured, and the numbers of these rows, one row after another. */
interface Measured {
  rows: Uint32Array;
  numbers: Float64Array;
}

// JSON is a single text, whose length V8 limits.
const MOST_NUMBERS = 2 ** 25;

/** Measures rows. Call `add()` for every part, then `toJson()`. */
export class RowMeasurer implements RowSink {
  readonly #columns = new Set<RolloutColumn>();
  readonly #table = new RowTable();
  readonly #checks = new Map<
    Check,
    { rows: ReturnType<typeof uint32>; numbers: ReturnType<typeof float64> }
  >();
  readonly #most: number;
  #tokens = 0;
  #numbers = 0;
  #last: RolloutPart | undefined;

  /** @param most the largest number of numbers to keep. */
  constructor(most = MOST_NUMBERS) {
    this.#most = most;
  }

  /**
   * Adds a part of the rows. The parts must be added in order.
   * @throws LossError `ERR_OUT_OF_MEMORY` for too many rows.
   */
  add(part: RolloutPart): void {
    this.#last = part;
    measureRows(part, this);
  }

  beginPart(columns: readonly RolloutColumn[], tokens: number): void {
    for (const column of columns) this.#columns.add(column);
    this.#tokens += tokens;
  }

  row(place: Place, group: number, run: number): void {
    this.#table.add(place, group, run);
  }

  measured(check: Check, numbers: Numbers): void {
    const known = this.#checks.get(check) ?? { rows: uint32(), numbers: float64() };
    this.#checks.set(check, known);
    known.rows.push(this.#table.length - 1);
    known.numbers.append(numbers);
    this.#numbers += numbers.length + 1;
    if (this.#numbers > this.#most)
      throw new LossError('ERR_OUT_OF_MEMORY', {
        expected: 'fewer rows in a shard that is computed for a report',
        received: `${this.#table.length} rows or more`,
        hint: (spell) => `Plan with a smaller ${spell('shardSize')}`,
      });
  }

  /** Returns the rows as an object that JSON can hold. */
  toJson(): object {
    const { length, files, columns } = this.#table;
    const { fileNumbers, numbers, counted, groups, runs } = columns;
    const ids = (column: IdColumn, ofRows: Float64Array) => ({
      numbers: Int32Array.from(ofRows),
      ids: this.#last!.idsOf(column),
    });
    return {
      rows: length,
      tokens: this.#tokens,
      columns: [...this.#columns],
      files,
      fileNumbers: encodeNumbers(fileNumbers),
      numbers: encodeNumbers(numbers),
      counted: encodeNumbers(counted),
      ...(hasIds(groups) && { groups: idsToJson(ids('task_id', groups)) }),
      ...(hasIds(runs) && { runs: idsToJson(ids('run_id', runs)) }),
      checks: Object.fromEntries(
        [...this.#checks].map(([{ name }, { rows, numbers }]) => [
          name,
          {
            count: rows.length,
            ...(rows.length < length && { rows: encodeNumbers(rows.values) }),
            numbers: encodeNumbers(numbers.values),
          },
        ]),
      ),
    };
  }
}

function hasIds(numbers: Float64Array): boolean {
  return numbers.length > 0 && !Number.isNaN(numbers[0]);
}

/** Replays the measured rows of all shards, which must be added in order. */
export class RowReplay {
  readonly #sink: RowSink;
  readonly #groups = new Map<number | string, number>();
  readonly #runs = new Map<number | string, number>();

  constructor(sink: RowSink) {
    this.#sink = sink;
  }

  /**
   * Replays what toJson() returned.
   * @throws LossError `ERR_INVALID_INPUT` if a field is not as expected.
   */
  add(fields: Fields, maxRows: number): void {
    const rows = fields.count('rows', maxRows);
    const columns = fields.list('columns', (item, name) => item.choice(name, NEEDED));
    const places = placesFrom(fields, rows);
    const groups = numbersOf(fields, 'groups', rows, this.#groups);
    const runs = numbersOf(fields, 'runs', rows, this.#runs);
    const checks = runnable(columns);
    const given = fields.object('checks');
    const cursors = given.keys.map((name) => {
      const check = checks.find((each) => each.name === name);
      if (!check) throw fields.error('checks', 'checks for these columns', `'${name.slice(0, 80)}'`);
      return new Cursor(check, measuredFrom(given.object(name), rows));
    });
    this.#sink.beginPart(columns, fields.count('tokens'));
    for (let row = 0; row < rows; row++) {
      this.#sink.row(places(row), groups(row), runs(row));
      for (const cursor of cursors) cursor.replay(row, this.#sink);
    }
  }
}

/** The rows of a check, one after another. */
class Cursor {
  readonly #check: Check;
  readonly #measured: Measured;
  readonly #width: number;
  #at = 0;

  constructor(check: Check, measured: Measured) {
    this.#check = check;
    this.#measured = measured;
    this.#width = measured.numbers.length / Math.max(measured.rows.length, 1);
  }

  replay(row: number, sink: RowSink): void {
    const { rows, numbers } = this.#measured;
    if (rows[this.#at] !== row) return;
    const start = this.#at++ * this.#width;
    sink.measured(this.#check, numbers.subarray(start, start + this.#width));
  }
}

function measuredFrom(fields: Fields, all: number): Measured {
  const count = fields.count('count', all);
  const rows = fields.has('rows')
    ? fields.uint32('rows', count)
    : Uint32Array.from({ length: count }, (_, i) => i);
  if (!fields.has('rows') && count !== all)
    throw fields.error('rows', 'the rows that were measured', 'nothing');
  if (rows.some((row, i) => row >= all || row <= (rows[i - 1] ?? -1)))
    throw fields.error('rows', `ascending numbers below ${all}`, 'others');
  const numbers = fields.float64('numbers');
  if (count === 0 ? numbers.length > 0 : numbers.length % count !== 0)
    throw fields.error('numbers', 'equally many numbers per row', `${numbers.length} for ${count} rows`);
  return { rows, numbers };
}

/** Returns a function that returns the place of a row. */
function placesFrom(fields: Fields, rows: number): (row: number) => Place {
  const files = fields.texts('files');
  const fileNumbers = fields.uint32('fileNumbers', rows);
  const numbers = fields.float64('numbers', rows);
  const counted = fields.uint8('counted', rows);
  if (fileNumbers.some((number) => number >= files.length))
    throw fields.error('fileNumbers', `numbers below ${files.length}`, 'others');
  return (row) => RowTable.place(files[fileNumbers[row]!]!, numbers[row]!, counted[row]!);
}

/**
 * Returns a function that returns the number of a row's id, among the ids of all shards.
 * @param known the numbers of the ids of the shards before.
 */
function numbersOf(
  fields: Fields,
  key: string,
  rows: number,
  known: Map<number | string, number>,
): (row: number) => number {
  if (!fields.has(key)) return () => Number.NaN;
  const numbers = renumber(idsFrom(fields.object(key), rows), known);
  return (row) => numbers[row]!;
}
