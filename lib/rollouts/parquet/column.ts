// Assembles the values of a column: a list of numbers, a value without parts, or a nested value.
import { maxTextBytes, type RowLimits, textTooLong, tooManyTokens } from '../limits.js';
import { BadCell } from '../table.js';
import { isNumeric, meaningOf } from './convert.js';
import type { LeafReader } from './leaf.js';
import { Malformed } from './malformed.js';
import { leavesOf, listOf, mapOf, type Node } from './schema.js';

/** A column of a row group, which is read row by row. */
export interface ColumnReader {
  /** Returns the value of the next row. One that exceeds a limit is a BadCell. */
  read(): unknown;
  /** Checks that all rows were read. */
  end(): void;
}

/** Returns a reader of a column. `open` opens one of the stored columns of which it consists. */
export function columnReader(
  column: Node,
  limits: RowLimits,
  open: (leaf: Node) => LeafReader,
): ColumnReader {
  const leaves = new Map(leavesOf(column).map((leaf) => [leaf, open(leaf)]));
  const [first] = leaves.values() as Iterable<LeafReader>;
  const end = () => {
    for (const leaf of leaves.values()) leaf.end();
  };
  const list = listOf(column);
  if (list && list.item.leaf >= 0 && list.item.repetition === 1 && isNumeric(meaningOf(list.item.element))) {
    const read = () => {
      first!.beginRow();
      const { definition } = first!;
      if (definition >= list.repeated.definition) return first!.numbers(list.repeated.definition, limits);
      first!.skip();
      return definition < column.definition ? null : [];
    };
    return { read, end };
  }
  const size = new Size(limits);
  const part = partOf(column, leaves, size);
  const read = () => {
    for (const leaf of leaves.values()) leaf.beginRow();
    size.begin();
    const value = part.read();
    return size.flaw ?? value;
  };
  return { read, end };
}

/** Measures the value of a row. When it exceeds a limit, the rest of it is read but not kept. */
class Size {
  /** What is wrong with the value; undefined if nothing is. */
  flaw: BadCell | undefined;
  readonly #limits: RowLimits;
  #bytes = 0;
  #values = 0;

  constructor(limits: RowLimits) {
    this.#limits = limits;
  }

  begin(): void {
    this.#bytes = 0;
    this.#values = 0;
    this.flaw = undefined;
  }

  add(value: unknown): void {
    if (value instanceof BadCell) this.flaw ??= value;
    this.#bytes += typeof value === 'string' ? value.length : BYTES_PER_VALUE;
    this.#values++;
    if (this.flaw) return;
    const { maxRowTokens } = this.#limits;
    if (this.#values > maxRowTokens) this.flaw = new BadCell(tooManyTokens(this.#limits, 'more'));
    else if (this.#bytes > maxTextBytes(this.#limits))
      this.flaw = new BadCell(textTooLong(this.#limits, this.#bytes));
  }
}

const BYTES_PER_VALUE = 24;

/** A part of a nested value. */
interface Part {
  read(): unknown;
  /** The stored columns of which the part consists. */
  leaves: readonly LeafReader[];
}

/** @param isItem whether the node is an element of a list whose repeated node it is itself. */
function partOf(node: Node, readers: ReadonlyMap<Node, LeafReader>, size: Size, isItem = false): Part {
  const list = listOf(node);
  const map = mapOf(node);
  if (!isItem && node.element.repetition_type === 'REPEATED')
    return listPart(node.definition - 1, node, partOf(node, readers, size, true), size);
  if (list) {
    const item = partOf(list.item, readers, size, list.item === list.repeated);
    return listPart(node.definition, list.repeated, item, size);
  }
  if (map) {
    const [key, value] = map.children.map((child) => partOf(child, readers, size)) as [Part, Part];
    const entry = {
      read: () => [String(key.read()), value.read()],
      leaves: [...key.leaves, ...value.leaves],
    };
    const entries = listPart(node.definition, map, entry, size);
    const read = () => {
      const pairs = entries.read() as [string, unknown][] | null;
      return pairs && Object.fromEntries(pairs);
    };
    return { read, leaves: entry.leaves };
  }
  if (node.leaf >= 0) {
    const leaf = readers.get(node)!;
    const read = () => {
      if (size.flaw) return leaf.skip();
      const value = leaf.next();
      size.add(value);
      return value;
    };
    return { read, leaves: [leaf] };
  }
  const parts = node.children.map((child) => [child.element.name, partOf(child, readers, size)] as const);
  const leaves = parts.flatMap(([, part]) => part.leaves);
  const read = () => {
    if (leaves[0]!.definition < node.definition) return absent(leaves, null);
    return Object.fromEntries(parts.map(([name, part]) => [name, part.read()]));
  };
  return { read, leaves };
}

/** @param definition the definition level from which on the list is not null. */
function listPart(definition: number, repeated: Node, item: Part, size: Size): Part {
  const { leaves } = item;
  const [first] = leaves as [LeafReader];
  const read = () => {
    const level = first.definition;
    if (level < repeated.definition) return absent(leaves, level < definition ? null : []);
    const items: unknown[] = [];
    do {
      const value = item.read();
      if (!size.flaw) items.push(value);
      const isAligned = leaves.every(({ repetition }) => repetition === first.repetition);
      if (!isAligned) throw new Malformed({ expected: 'lists of equal lengths', received: 'others' });
    } while (first.repetition === repeated.repetition);
    return items;
  };
  return { read, leaves };
}

/** Reads the entries of a part that is null or empty. */
function absent<T>(leaves: readonly LeafReader[], value: T): T {
  for (const leaf of leaves) leaf.skip();
  return value;
}
