// Reads JSON lines: each line is one object, which is one row.
import { describeValue, LossError } from '../../base/errors.js';
import { isBlank, OPEN_BRACE } from './ascii.js';
import type { ColumnNames } from './column-names.js';
import { COLUMNS, isIdColumn } from './columns.js';
import { JsonObjectReader } from './json-object.js';
import { arrayHint, exactNumber, type JsonContext, parseJson } from './json-value.js';
import { checkUtf8, readRecords, type TextRecord } from './records.js';
import type { RowLimits } from './source.js';
import {
  emptyRow,
  errorAt,
  type FileRow,
  type Place,
  type ReadRows,
  type ReadSettings,
  type RowValues,
} from './source.js';
import { type LineLayout, layoutOf } from './trainers/lines.js';

/**
 * Reads a file of JSON lines: the package's own, or a trainer's. Skips blank lines. If a key occurs twice in a row, warns
 * and takes the last value.
 */
export const readJsonLines: ReadRows = async function* (file, names, onBytes, settings) {
  const reader = new RowReader(names, settings);
  for await (const records of readRecords(file, 'line', onBytes, settings, settings.range))
    yield rowsOf(records, reader);
};

/** Returns whether each line of a file is a row, as its first line shows. The lines of trainers can be several rows. */
export async function hasPlainLines(file: string, limits: RowLimits): Promise<boolean> {
  for await (const records of readRecords(file, 'line', () => {}, limits))
    for (const { place, bytes } of records) {
      const keys = keysOf(new JsonObjectReader(), bytes);
      return keys !== undefined && layoutOf(keys, place) === undefined;
    }
  return false;
}

function* rowsOf(records: Iterable<TextRecord>, reader: RowReader): Generator<FileRow> {
  for (const { place, bytes } of records) yield* reader.rowsIn(bytes, place);
}

// The layout is looked for in at most this many lines that are malformed.
const MOST_MALFORMED = 100;

/** Turns lines into rows. Parses only the values of the columns that are read. */
class RowReader {
  readonly #entries = new JsonObjectReader();
  readonly #names: ColumnNames;
  readonly #settings: ReadSettings;
  // A trainer's layout, which the first line that is an object shows. The keys to parse are those of its columns to read.
  #isRecognised: boolean;
  #malformed = 0;
  #layout: LineLayout | undefined;
  #layoutKeys = new Set<string>();

  constructor(names: ColumnNames, settings: ReadSettings) {
    this.#names = names;
    this.#settings = settings;
    // Only a file of plain lines is read in ranges.
    this.#isRecognised = settings.range !== undefined;
  }

  /**
   * Returns the rows of a line: one, unless the trainer writes all rows into one line.
   * @throws LossError if the lines are no rollouts.
   */
  rowsIn(bytes: () => Buffer, place: Place): Iterable<FileRow> {
    if (!this.#isRecognised) this.#recognise(bytes, place);
    const layout = this.#layout;
    if (!layout) return [{ place, read: () => this.read(bytes(), place) }];
    if (layout.isTransposed) return this.#transposed(bytes, place, layout);
    const read = () => this.#mapped(this.read(bytes(), place), layout);
    return [{ place, read }];
  }

  #recognise(bytes: () => Buffer, place: Place): void {
    const keys = keysOf(this.#entries, bytes);
    this.#isRecognised = keys !== undefined || ++this.#malformed === MOST_MALFORMED;
    if (!keys) return;
    const layout = layoutOf(keys, place);
    if (!layout) return;
    this.#layout = layout;
    this.#layoutKeys = new Set(layout.needs);
    for (const [ours, theirs] of Object.entries(layout.columns))
      if (this.#names.isRead(ours)) this.#layoutKeys.add(theirs);
  }

  /** Returns a row with a trainer's values under the names of columns, in addition to their own names. */
  #mapped(values: RowValues, layout: LineLayout): RowValues {
    return Object.assign(values, layout.row(values, layout.columns));
  }

  /** Returns the rows of a line that has a list for each column. */
  #transposed(bytes: () => Buffer, place: Place, layout: LineLayout): FileRow[] {
    const lists = this.read(bytes(), place);
    const [first] = layout.needs.map((key) => lists[key]);
    const count = Array.isArray(first) ? first.length : 0;
    return Array.from({ length: count }, (_, i) => ({
      place: { ...place, row: i + 1 },
      read: () => {
        const row = emptyRow();
        for (const [key, list] of Object.entries(lists)) row[key] = Array.isArray(list) ? list[i] : list;
        return this.#mapped(row, layout);
      },
    }));
  }

  read(line: Buffer, place: Place): RowValues {
    if (!beginsObject(line)) throw this.#notAnObject(line, place);
    try {
      return this.#readObject(line, place);
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      const received = `text that does not parse (${error.message})`;
      throw errorAt(place, 'ERR_INVALID_INPUT', { expected: EXPECTED, received }, error);
    }
  }

  #readObject(line: Buffer, place: Place): RowValues {
    const entries = this.#entries;
    const row = emptyRow();
    entries.begin(line);
    while (entries.next()) {
      const { key } = entries;
      if (key in row)
        this.#settings.warn(place, { key, expected: 'one value', received: 'two' }, 'The last one counts');
      if (this.#layoutKeys.has(key)) row[key] = this.#trainersValue(line, place);
      else row[key] = this.#names.isRead(key) ? this.#value(line, place) : undefined;
    }
    return row;
  }

  /** Parses the value of the current entry. */
  #value(line: Buffer, place: Place): unknown {
    const { key, value, start, end } = this.#entries;
    const column = this.#names.columnOf(key);
    const expected = column ? COLUMNS[column].expected : 'a JSON value';
    const context: JsonContext = { place, key, expected, limits: this.#settings };
    if (column && !isIdColumn(column)) return parseJson(value, context);
    // Only ids and columns to keep can hold text.
    const text = line.subarray(start, end);
    if (column) checkUtf8(text, place, key);
    const parsed = parseJson(text.toString(), context);
    // Without a digit, it is NaN or infinite.
    return typeof parsed === 'number' && /\d/.test(value) ? exactNumber(value) : parsed;
  }

  /** Parses the value of the current entry, of a trainer's key. */
  #trainersValue(line: Buffer, place: Place): unknown {
    const { key, value, start, end } = this.#entries;
    const json = value.includes('"') ? line.toString('utf8', start, end) : value;
    return parseJson(json, { place, key, expected: 'a JSON value', limits: this.#settings });
  }

  #notAnObject(line: Buffer, place: Place): Error {
    const json = line.toString();
    const value = parseJson(json, { place, expected: EXPECTED, limits: this.#settings });
    return errorAt(place, 'ERR_INVALID_INPUT', {
      expected: EXPECTED,
      received: describeValue(value),
      hint: arrayHint(json, place),
    });
  }
}

/** Returns the keys of a line; undefined if it is malformed, which its row reports. */
function keysOf(entries: JsonObjectReader, bytes: () => Buffer): string[] | undefined {
  const keys: string[] = [];
  try {
    entries.begin(bytes());
    while (entries.next()) keys.push(entries.key);
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof LossError) return undefined;
    throw error;
  }
  return keys;
}

function beginsObject(line: Buffer): boolean {
  let at = 0;
  while (isBlank(line[at])) at++;
  return line[at] === OPEN_BRACE;
}

const EXPECTED = 'a JSON object';
