// Reads Parquet files, page by page. Of each column that is read, one page is in memory, or a piece of a long page.
import { badFile, cannotRead, errorAt, type ReadRows } from '../source.js';
import { type Cells, columnsToRead, tableRow } from '../table.js';
import { Budget } from './budget.js';
import { columnReader } from './column.js';
import { ParquetFile, type RowGroup } from './file.js';
import { LeafReader } from './leaf.js';
import { Malformed } from './malformed.js';
import { leavesOf, type Node } from './schema.js';

const ROWS_PER_BLOCK = 64;
const VALUES_PER_BLOCK = 2 ** 17;

/** Reads a Parquet file. */
export const readRows: ReadRows = async function* (name, names, onBytes, limits) {
  let file: ParquetFile | undefined;
  try {
    file = new ParquetFile(name, limits.copy);
    const { size } = file;
    const wanted = columnsToRead(
      name,
      file.columns.map(({ element }) => element.name),
      names,
    );
    const columns = file.columns.filter(({ element }) => wanted.includes(element.name));
    if (new Set(wanted).size < columns.length)
      throw badFile(name, { expected: 'different names of columns', received: 'a name twice' });
    file.checkClaims(columns.flatMap(leavesOf), limits);
    const budget = new Budget(size, limits);
    let leaves: LeafReader[];
    const open = (group: RowGroup) => (leaf: Node) => {
      const reader = new LeafReader(file!, group.chunkOf(leaf), limits, budget);
      leaves.push(reader);
      return reader;
    };
    const [from, to] = limits.piece?.groups ?? [0, file.groups.length];
    const before = file.groups.slice(0, from).reduce((sum, group) => sum + group.rows, 0);
    const groups = file.groups.slice(from, to);
    const bytes = limits.piece ? limits.piece.end - limits.piece.start : size;
    const rows = groups.reduce((sum, group) => sum + group.rows, 0);
    let row = before + 1;
    for (const group of groups) {
      leaves = [];
      const readers = columns.map((column) => columnReader(column, limits, open(group)));
      for (let left = group.rows; left > 0; ) {
        for (const leaf of leaves) await leaf.prepare();
        const block: Cells[] = [];
        for (let values = 0; left > 0 && block.length < ROWS_PER_BLOCK && values < VALUES_PER_BLOCK; left--) {
          const cells = readers.map((reader, i) => [columns[i]!.element.name, reader.read()] as const);
          for (const [, value] of cells) values += (value as ArrayLike<unknown> | null)?.length ?? 1;
          block.push(cells);
        }
        const first = row;
        row += block.length;
        yield block.map((cells, i) => tableRow(cells, names, limits, { file: name, row: first + i }));
        onBytes((bytes * block.length) / rows);
      }
      for (const reader of readers) reader.end();
    }
  } catch (error) {
    if (error instanceof Malformed) throw errorAt({ file: name }, 'ERR_INVALID_INPUT', error.details);
    throw cannotRead(name, error);
  } finally {
    await file?.unpacked.close();
    file?.close();
  }
};
