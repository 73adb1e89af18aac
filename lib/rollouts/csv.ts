// Reads CSV (RFC 4180) with a header line. Commas, semicolons or tabs separate the cells. Quotes enclose a cell that
// contains a separator, a quote or a line break. A cell holds a list as JSON text.
//
// DuckDB's CSV reader is not used, for three reasons. It cannot report the line of a malformed row that it skips. It
// buffers 2,048 rows of text however long they are. And it guesses separators and quotes even if the file is broken.
import type { ColumnNames } from './column-names.js';
import type { RolloutColumn } from './columns.js';
import { parseJson } from './json-lines.js';
import { readRecords, type TextRecord } from './records.js';
import { errorAt, type FileRow, type Place, type ReadRows } from './source.js';

/** Reads a CSV file. Skips blank lines. An empty cell counts as absent. */
export const readCsv: ReadRows = async function* (file, names, onBytes) {
  const table = new Table(file, names);
  for await (const records of readRecords(file, 'line outside of quotes', onBytes))
    yield table.rowsOf(records);
};

interface Header {
  delimiter: string;
  columns: { name: string; column: RolloutColumn | undefined }[];
}

/** Turns the records of a CSV file into rows. The first record is the header. */
class Table {
  readonly #file: string;
  readonly #names: ColumnNames;
  #header: Header | undefined;

  constructor(file: string, names: ColumnNames) {
    this.#file = file;
    this.#names = names;
  }

  *rowsOf(records: Iterable<TextRecord>): Generator<FileRow> {
    for (const { text, line } of records) {
      const place = { file: this.#file, line };
      const header = this.#header;
      if (!header) this.#header = readHeader(text, this.#names, place);
      else yield { place, read: () => readRow(text, header, place) };
    }
  }
}

function readHeader(text: string, names: ColumnNames, place: Place): Header {
  // No column name is expected to contain a separator, so one that occurs in the header separates the file's cells.
  const delimiter = [',', ';', '\t'].find((delimiter) => text.includes(delimiter)) ?? ',';
  const columns = cellsOf(text, delimiter, place).map((cell) => {
    const name = cell.trim();
    return { name, column: names.columnOf(name) };
  });
  const repeated = columns.find(({ name }, i) => columns.findIndex((other) => other.name === name) < i);
  if (repeated)
    throw errorAt(place, 'ERR_INVALID_INPUT', {
      expected: 'a header that names each column once',
      received: `${repeated.name} twice`,
    });
  return { delimiter, columns };
}

function readRow(text: string, { delimiter, columns }: Header, place: Place): Record<string, unknown> {
  const cells = cellsOf(text, delimiter, place);
  if (cells.length !== columns.length)
    throw errorAt(place, 'ERR_SHAPE_MISMATCH', {
      expected: `${columns.length} cells, as in the header`,
      received: String(cells.length),
      hint:
        cells.length > columns.length
          ? 'Put quotes around a cell that contains a comma, such as a list'
          : undefined,
    });
  const row: Record<string, unknown> = {};
  columns.forEach(({ name, column }, i) => {
    const cell = cells[i]!;
    if (cell !== '') row[name] = column ? valueOfCell(cell, name, column, place) : cell;
  });
  return row;
}

function cellsOf(text: string, delimiter: string, place: Place): string[] {
  if (!text.includes('"')) return text.split(delimiter);
  const cells: string[] = [];
  for (let start = 0; ; ) {
    if (text[start] === '"') {
      let end = text.indexOf('"', start + 1);
      while (end >= 0 && text[end + 1] === '"') end = text.indexOf('"', end + 2);
      if (end < 0 || (end + 1 < text.length && text[end + 1] !== delimiter))
        throw errorAt(place, 'ERR_INVALID_INPUT', {
          expected: `a quote inside a cell to be written twice`,
          received: `a single one in cell ${cells.length + 1}`,
        });
      cells.push(text.slice(start + 1, end).replaceAll('""', '"'));
      if (end + 1 === text.length) return cells;
      start = end + 2;
    } else {
      const end = text.indexOf(delimiter, start);
      cells.push(text.slice(start, end < 0 ? undefined : end));
      if (end < 0) return cells;
      start = end + 1;
    }
  }
}

function valueOfCell(cell: string, name: string, column: RolloutColumn, place: Place): unknown {
  // An id becomes a number only if the number is written exactly like the cell. '007' stays text, unlike the id 7.
  if (column === 'task_id' || column === 'run_id') return String(Number(cell)) === cell ? Number(cell) : cell;
  // Python writes True and False with a capital letter.
  if (column === 'expert' && /^(?:true|false)$/i.test(cell)) return cell.toLowerCase() === 'true';
  return parseJson(cell, 'a number or a list as JSON text', place, name);
}
