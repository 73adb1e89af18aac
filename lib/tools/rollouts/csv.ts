// Reads CSV (RFC 4180) with a header line. Commas, semicolons or tabs separate the cells. Quotes enclose a cell that
// contains a separator, a quote or a line break. A cell holds a list as JSON text.
import { COMMA, QUOTE } from './ascii.js';
import type { ColumnNames } from './column-names.js';
import { isIdColumn, type RolloutColumn } from './columns.js';
import { parseJson } from './json-value.js';
import { checkUtf8, readRecords, type TextRecord } from './records.js';
import type { RowLimits } from './source.js';
import { emptyRow, errorAt, type FileRow, type Place, type ReadRows } from './source.js';

/** Reads a CSV file. Skips blank lines. An empty cell counts as absent. */
export const readCsv: ReadRows = async function* (file, names, onBytes, settings) {
  const table = new Table(names, settings);
  for await (const records of readRecords(file, 'line outside of quotes', onBytes, settings))
    yield table.rowsOf(records);
};

interface HeaderColumn {
  name: string;
  column: RolloutColumn | undefined;
  /** Whether the column's cells are needed. Other cells are not decoded. */
  isRead: boolean;
}

interface Header {
  /** The byte that separates cells. */
  delimiter: number;
  columns: HeaderColumn[];
}

// A limit on the memory of the header. Tables of rollouts have far fewer columns.
const MAX_COLUMNS = 10_000;

/** Turns the records of a CSV file into rows. The first record is the header. */
class Table {
  readonly #names: ColumnNames;
  readonly #limits: RowLimits;
  #header: Header | undefined;

  constructor(names: ColumnNames, limits: RowLimits) {
    this.#names = names;
    this.#limits = limits;
  }

  *rowsOf(records: Iterable<TextRecord>): Generator<FileRow> {
    for (const { place, bytes } of records) {
      const header = this.#header;
      if (!header) this.#header = readHeader(bytes(), this.#names, place);
      else yield { place, read: () => readRow(bytes(), header, place, this.#limits) };
    }
  }
}

function readHeader(line: Buffer, names: ColumnNames, place: Place): Header {
  // No column name is expected to contain a separator, so one that occurs in the header separates the file's cells.
  const delimiter = [...Buffer.from(',;\t')].find((delimiter) => line.includes(delimiter)) ?? COMMA;
  const columns = new Map<string, HeaderColumn>();
  for (const cell of cellsOf(line, delimiter, place)) {
    const name = textOf(cell).trim();
    if (columns.has(name))
      throw errorAt(place, 'ERR_INVALID_INPUT', {
        expected: 'a header that names each column once',
        received: `${name} twice`,
      });
    columns.set(name, { name, column: names.columnOf(name), isRead: names.isRead(name) });
    if (columns.size > MAX_COLUMNS)
      throw errorAt(place, 'ERR_INVALID_INPUT', {
        expected: `at most ${MAX_COLUMNS} columns`,
        received: 'more',
      });
  }
  return { delimiter, columns: [...columns.values()] };
}

function readRow(
  line: Buffer,
  { delimiter, columns }: Header,
  place: Place,
  limits: RowLimits,
): Record<string, unknown> {
  const cells: Cell[] = [];
  let count = 0;
  for (const cell of cellsOf(line, delimiter, place)) if (count++ < columns.length) cells.push(cell);
  if (count !== columns.length)
    throw errorAt(place, 'ERR_SHAPE_MISMATCH', {
      expected: `${columns.length} cells, as in the header`,
      received: String(count),
      hint:
        count > columns.length ? 'Put quotes around a cell that contains a comma, such as a list' : undefined,
    });
  const row = emptyRow();
  columns.forEach((column, i) => {
    const cell = cells[i]!;
    if (cell.start < cell.end)
      row[column.name] = column.isRead ? valueOfCell(cell, column, place, limits) : undefined;
  });
  return row;
}

/** The place of a cell's content in its record. */
interface Cell {
  line: Buffer;
  start: number;
  end: number;
  isQuoted: boolean;
}

/** Yields the cells of a record in order. */
function* cellsOf(line: Buffer, delimiter: number, place: Place): Generator<Cell> {
  let cells = 0;
  for (let start = 0; ; cells++) {
    const isQuoted = line[start] === QUOTE;
    if (isQuoted) start++;
    const end = isQuoted ? closingQuote(line, start) : placeOf(delimiter, line, start);
    const next = isQuoted ? end + 1 : end;
    if (end < 0 || (next < line.length && line[next] !== delimiter))
      throw errorAt(place, 'ERR_INVALID_INPUT', {
        expected: `a quote inside a cell to be written twice`,
        received: `a single one in cell ${cells + 1}`,
      });
    yield { line, start, end, isQuoted };
    if (next === line.length) return;
    start = next + 1;
  }
}

/** Returns the first place at or after `from` that has the byte, or the end of the record. */
function placeOf(byte: number, line: Buffer, from: number): number {
  const place = line.indexOf(byte, from);
  return place < 0 ? line.length : place;
}

/** Returns the place of the first quote at or after `from` that is not written twice; -1 if none is. */
function closingQuote(line: Buffer, from: number): number {
  let quote = line.indexOf(QUOTE, from);
  while (quote >= 0 && line[quote + 1] === QUOTE) quote = line.indexOf(QUOTE, quote + 2);
  return quote;
}

function textOf({ line, start, end, isQuoted }: Cell): string {
  const text = line.toString('utf8', start, end);
  return isQuoted && text.includes('"') ? text.replaceAll('""', '"') : text;
}

function valueOfCell(
  cell: Cell,
  { name: key, column }: HeaderColumn,
  place: Place,
  limits: RowLimits,
): unknown {
  const text = textOf(cell);
  if (isIdColumn(column)) {
    checkUtf8(cell.line.subarray(cell.start, cell.end), place, key);
    return idOf(text);
  }
  if (!column) return text;
  // Python writes True and False with a capital letter.
  if (column === 'expert' && /^(?:true|false)$/i.test(text)) return text.toLowerCase() === 'true';
  return parseJson(text, { place, key, expected: 'a number or a list as JSON text', limits });
}

/**
 * Returns the id in a cell. It is a number only if the number is written exactly like the cell, so '007' stays text,
 * unlike the id 7. Integers that a float64 cannot hold exactly stay text as well.
 */
function idOf(text: string): number | string {
  const number = Number(text);
  return String(number) === text && Math.abs(number) <= Number.MAX_SAFE_INTEGER ? number : text;
}
