// CSV as RFC 4180 has it, with a header: cells between commas, semicolons or tabs; a cell that holds one of them, a
// quote or a line end stands in quotes. Lists are JSON text in a cell.
//
// It is read here and not by DuckDB, which can name no row number for a row that it leaves out as malformed, holds 2,048
// rows of text at once, however long, and sniffs dialects from broken files.
import type { ColumnNames } from './column-names.js';
import type { RolloutColumn } from './columns.js';
import { parseJson } from './json-lines.js';
import { readRecords, type TextRecord } from './records.js';
import { at, type FileRow, type Place, type ReadRows } from './source.js';

/** Reads CSV. Blank lines are skipped, and an empty cell is as if it were not there. */
export const readCsv: ReadRows = async function* (file, names, onBytes) {
  const table = new Table(file, names);
  for await (const records of readRecords(file, 'line outside of quotes', onBytes))
    yield table.rowsOf(records);
};

interface Header {
  delimiter: string;
  columns: { name: string; column: RolloutColumn | undefined }[];
}

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
  // Names of columns hold none of these.
  const delimiter = [',', ';', '\t'].find((delimiter) => text.includes(delimiter)) ?? ',';
  const columns = cellsOf(text, delimiter, place).map((cell) => {
    const name = cell.trim();
    return { name, column: names.columnOf(name) };
  });
  const twice = columns.find(({ name }, i) => columns.findIndex((other) => other.name === name) < i);
  if (twice)
    throw at(
      place,
      'ERR_INVALID_INPUT',
      `expected a header that names each column once, and ${twice.name} comes twice`,
    );
  return { delimiter, columns };
}

function readRow(text: string, { delimiter, columns }: Header, place: Place): Record<string, unknown> {
  const cells = cellsOf(text, delimiter, place);
  if (cells.length !== columns.length)
    throw at(
      place,
      'ERR_SHAPE_MISMATCH',
      `expected ${columns.length} cells, as the header has, and ${cells.length} came` +
        (cells.length > columns.length ? '; a cell with a comma in it, as a list, must stand in quotes' : ''),
    );
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
        throw at(
          place,
          'ERR_INVALID_INPUT',
          `expected a quote within a cell to be written twice, and it is not, in cell ${cells.length + 1}`,
        );
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
  // A name is a number where JSON would have it so, and where that is all of it: 007 is not 7.
  if (column === 'task_id' || column === 'run_id') return String(Number(cell)) === cell ? Number(cell) : cell;
  // As Python and others write them.
  if (column === 'expert' && /^(?:true|false)$/i.test(cell)) return cell.toLowerCase() === 'true';
  return parseJson(cell, `a number or a list as JSON text in the column ${name}`, place);
}
