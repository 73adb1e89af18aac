// Assembles the values of a column of a row group: lists of numbers, values without parts, or nested values.
import { tooManyTokens } from '../limits.js';
import type { RowLimits } from '../source.js';
import { BadCell } from '../table.js';
import type { Budget } from './budget.js';
import { converterOf } from './convert.js';
import type { ParquetFile, RowGroup } from './file.js';
import { ChunkReader } from './pages.js';
import { type Row, rowsOf, wrongLevels } from './row-entries.js';
import { listOf, mapOf, type Node } from './schema.js';

/** The rows of a stored column: where they come from, those that are in memory, and the index of the next one. */
interface Leaf {
  node: Node;
  source: AsyncGenerator<Row[], void>;
  rows: Row[];
  next: number;
}

/** A column of a row group, which is read row by row. */
export class ColumnReader {
  readonly name: string;
  readonly #column: Node;
  readonly #limits: RowLimits;
  readonly #leaves: readonly Leaf[];

  constructor(file: ParquetFile, column: Node, group: RowGroup, limits: RowLimits, budget: Budget) {
    this.name = column.element.name;
    this.#column = column;
    this.#limits = limits;
    this.#leaves = column.leaves.map((node) => {
      const chunk = new ChunkReader(file, group.chunkOf(node), converterOf(node.element, limits), budget);
      const source = rowsOf(chunk.entries(), node.definition, limits.maxRowTokens);
      return { node, source, rows: [], next: 0 };
    });
  }

  /** Decodes more rows if none is in memory. Returns how many can be taken, or 0 at the end. */
  async prepare(): Promise<number> {
    const ready: number[] = [];
    for (const leaf of this.#leaves) {
      while (leaf.next === leaf.rows.length) {
        const { value } = await leaf.source.next();
        if (!value) break;
        leaf.rows = value;
        leaf.next = 0;
      }
      ready.push(leaf.rows.length - leaf.next);
    }
    const least = Math.min(...ready);
    if (least === 0 && Math.max(...ready) > 0) throw wrongLevels();
    return least;
  }

  /** Returns the value of the next row, which must be in memory. One that exceeds a limit is a BadCell. */
  take(): unknown {
    const rows = new Map<Node, Row>();
    let entries = 0;
    for (const leaf of this.#leaves) {
      const row = leaf.rows[leaf.next++]!;
      rows.set(leaf.node, row);
      entries = Math.max(entries, row.length);
    }
    if (entries > this.#limits.maxRowTokens) return new BadCell(tooManyTokens(this.#limits, entries));
    const value = read(this.#column, rows);
    let flaw: BadCell | undefined;
    for (const row of rows.values()) {
      if (!row.isAtEnd) throw wrongLevels();
      flaw ??= row.flaw;
    }
    return flaw ?? value;
  }
}

/** The entries of each stored column that belong to a row. */
type Rows = ReadonlyMap<Node, Row>;

/**
 * Reads the value of a node.
 * @param isItem whether the node is repeated, and an element of the list is meant.
 */
function read(node: Node, rows: Rows, isItem = false): unknown {
  if (node.element.repetition_type === 'REPEATED' && !isItem)
    return readList(node, node.definition - 1, rows, () => read(node, rows, true));
  const list = listOf(node);
  if (list) {
    const { repeated, item } = list;
    const values = item.leaf >= 0 && item.repetition === 1 ? rows.get(item)!.all() : undefined;
    return values ?? readList(repeated, node.definition, rows, () => read(item, rows, item === repeated));
  }
  const map = mapOf(node);
  if (map) {
    const [key, value] = map.children as [Node, Node];
    const entry = () => [String(read(key, rows)), read(value, rows)] as const;
    const entries = readList(map, node.definition, rows, entry);
    return entries && Object.fromEntries(entries);
  }
  if (node.leaf >= 0) return rows.get(node)!.next();
  if (rows.get(node.leaves[0]!)!.definition < node.definition) return absent(node, rows, null);
  return Object.fromEntries(node.children.map((child) => [child.element.name, read(child, rows)]));
}

/** @param definition the definition level from which on the list is not null. */
function readList<T>(repeated: Node, definition: number, rows: Rows, item: () => T): T[] | null {
  const some = repeated.leaves.map((leaf) => rows.get(leaf)!);
  const [first] = some as [Row];
  const level = first.definition;
  if (level < repeated.definition) return absent(repeated, rows, level < definition ? null : []);
  const items: T[] = [];
  do {
    items.push(item());
    if (some.some(({ repetition }) => repetition !== first.repetition)) throw wrongLevels();
  } while (first.repetition === repeated.repetition);
  return items;
}

/** Reads the entries of a value that is null or empty. */
function absent<T>(node: Node, rows: Rows, value: T): T {
  for (const leaf of node.leaves) rows.get(leaf)!.next();
  return value;
}
