// Reads the rows of Parquet files.
import { badFile, cannotRead, errorAt, type ReadRows } from '../source.js';
import { type Cells, columnsToRead, tableRow } from '../table.js';
import { Budget } from './budget.js';
import { ColumnReader } from './column.js';
import { ParquetFile } from './file.js';
import { Malformed } from './malformed.js';

const ROWS_PER_BLOCK = 64;

/** Reads a Parquet file. */
export const readRows: ReadRows = async function* (name, names, onBytes, limits) {
  let file: ParquetFile | undefined;
  try {
    file = new ParquetFile(limits.copy ?? name);
    const { size } = file;
    const all = file.columns.map(({ element }) => element.name);
    const wanted = columnsToRead(name, all, names);
    const columns = file.columns.filter(({ element }) => wanted.includes(element.name));
    if (new Set(wanted).size < columns.length)
      throw badFile(name, { expected: 'different names of columns', received: 'a name twice' });
    file.checkClaims(
      columns.flatMap((column) => column.leaves),
      limits,
    );
    const budget = new Budget(size, limits);
    const [from, to] = limits.range?.groups ?? [0, file.groups.length];
    const groups = file.groups.slice(from, to);
    const bytes = limits.range ? limits.range.end - limits.range.start : size;
    const rows = groups.reduce((sum, group) => sum + group.rows, 0);
    let row = file.groups.slice(0, from).reduce((sum, group) => sum + group.rows, 1);
    for (const group of groups) {
      const readers = columns.map((column) => new ColumnReader(file!, column, group, limits, budget));
      for (let left = group.rows; left > 0; ) {
        let count = Math.min(left, ROWS_PER_BLOCK);
        for (const reader of readers) count = Math.min(count, await reader.prepare());
        if (count === 0) throw wrongRows(group.rows, 'fewer');
        const block = Array.from(
          { length: count },
          (): Cells => readers.map((reader) => [reader.name, reader.take()]),
        );
        left -= count;
        const first = row;
        row += count;
        yield block.map((cells, i) => tableRow(cells, names, limits, { file: name, row: first + i }, all));
        onBytes((bytes * count) / rows);
      }
      for (const reader of readers) if ((await reader.prepare()) > 0) throw wrongRows(group.rows, 'more');
    }
  } catch (error) {
    if (error instanceof Malformed) throw errorAt({ file: name }, 'ERR_INVALID_INPUT', error.details);
    throw cannotRead(name, error);
  } finally {
    file?.close();
  }
};

function wrongRows(rows: number, received: string): Malformed {
  return new Malformed(`${rows} rows, as the row group states`, received);
}
