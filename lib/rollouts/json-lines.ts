// Reads JSON lines: each line is one object, which is one row.
import { describeValue } from '../core/errors.js';
import { isBlank, OPEN_BRACE } from './ascii.js';
import type { ColumnNames } from './column-names.js';
import { COLUMNS, isIdColumn } from './columns.js';
import { JsonObjectReader } from './json-object.js';
import { arrayHint, exactNumber, type JsonContext, parseJson } from './json-value.js';
import { checkUtf8, readRecords, type TextRecord } from './records.js';
import { emptyRow, errorAt, type FileRow, type Place, type ReadRows, type ReadSettings } from './source.js';

/** Reads a file of JSON lines. Skips blank lines. If a key occurs twice in a row, warns and takes the last value. */
export const readJsonLines: ReadRows = async function* (file, names, onBytes, settings) {
  const reader = new RowReader(names, settings);
  for await (const records of readRecords(file, 'line', onBytes, settings)) yield rowsOf(records, reader);
};

function* rowsOf(records: Iterable<TextRecord>, reader: RowReader): Generator<FileRow> {
  for (const { place, bytes } of records) yield { place, read: () => reader.read(bytes(), place) };
}

/** Turns lines into rows. Parses only the values of the columns that are read. */
class RowReader {
  readonly #entries = new JsonObjectReader();
  readonly #names: ColumnNames;
  readonly #settings: ReadSettings;

  constructor(names: ColumnNames, settings: ReadSettings) {
    this.#names = names;
    this.#settings = settings;
  }

  read(line: Buffer, place: Place): Record<string, unknown> {
    if (!beginsObject(line)) throw this.#notAnObject(line, place);
    try {
      return this.#readObject(line, place);
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      const received = `text that does not parse (${error.message})`;
      throw errorAt(place, 'ERR_INVALID_INPUT', { expected: EXPECTED, received }, error);
    }
  }

  #readObject(line: Buffer, place: Place): Record<string, unknown> {
    const entries = this.#entries;
    const row = emptyRow();
    entries.begin(line);
    while (entries.next()) {
      const { key } = entries;
      if (key in row)
        this.#settings.warn(place, { key, expected: 'one value', received: 'two' }, 'The last one counts');
      row[key] = this.#names.isRead(key) ? this.#value(line, place) : undefined;
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
    return typeof parsed === 'number' ? exactNumber(value) : parsed;
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

function beginsObject(line: Buffer): boolean {
  let at = 0;
  while (isBlank(line[at])) at++;
  return line[at] === OPEN_BRACE;
}

const EXPECTED = 'a JSON object';
