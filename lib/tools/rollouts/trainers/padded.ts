// Batches of tensors with one row for each rollout, padded to the same length: verl, ROLL and SkyRL have them.
import { itemsOf, opaqueOf, tensorOf } from '../pickle/globals.js';
import { BadObject } from '../pickle/values.js';
import type { Elements } from '../tensor/dtype.js';
import { Jagged, type Strided } from '../torch/strided.js';
import { type Dump, type DumpColumn, lengthOf, numberOf } from './dump.js';

/** Tensors, one for each row. */
export class TensorRows {
  readonly tensors: readonly Strided[];

  constructor(tensors: readonly Strided[]) {
    this.tensors = tensors;
  }

  get length(): number {
    return this.tensors.length;
  }

  at(row: number): Strided {
    return this.tensors[row]!;
  }
}

/** A batch as a trainer has it. */
export interface PaddedBatch {
  /** Tensors by their names in the file. Those that are null, or no tensors, are left out. */
  tensors: ReadonlyMap<unknown, unknown>;
  /** Lists with one item for each row, by their names in the file. */
  others?: ReadonlyMap<unknown, unknown>;
  /** The names in the file of rollout columns. The first name that the file has counts. */
  mapping: Readonly<Record<string, readonly string[]>>;
  /** On which side of a response its padding is. */
  paddingAt: 'left' | 'right';
  /** The number of rows; by default all rows of the tensors. */
  rows?: number;
  /** Columns that are computed from others. They come first. */
  computed?: (
    cells: (name: string, row: number) => Strided | undefined,
  ) => Readonly<Record<string, DumpColumn>>;
}

type Rows = Strided | Jagged | TensorRows;

const MASKS = ['response_mask', 'loss_mask', 'action_mask'];
const MAX_TOKENS_OF_MASK = 2 ** 22;

/**
 * Returns the rows of a batch, without their padding. Tensors that are as wide as the responses lose their padding, and
 * others, such as the prompts, keep it. attention_mask, which begins with the prompt, becomes that of the response.
 */
export function paddedDump({ tensors, others, mapping, paddingAt, rows, computed }: PaddedBatch): Dump {
  const all = new Map<string, Rows>();
  for (const [name, value] of tensors) {
    const found = value instanceof Jagged || value instanceof TensorRows ? value : tensorOf(value);
    if (typeof name === 'string' && found && (!isStrided(found) || found.shape.length > 0))
      all.set(name, found);
  }
  const [reference] = ['responses', ...MASKS, ...Object.values(mapping).flat()].flatMap(
    (name) => all.get(name) ?? [],
  );
  if (!reference) throw new BadObject('tensors of responses', 'none');
  const count = rows ?? rowCount(reference);
  if (count > rowCount(reference)) throw new BadObject(`${count} rows`, String(rowCount(reference)));
  const width = isStrided(reference) ? reference.shape[1] : undefined;
  const rangeOf = ranges(all, width, paddingAt);
  const cells = (name: string, row: number): Strided | undefined => {
    const found = all.get(name);
    if (!found) return undefined;
    if (rowCount(found) <= row)
      throw new BadObject(`at least ${row + 1} rows of ${name}`, String(rowCount(found)));
    const whole = found.at(row);
    if (whole.shape.length !== 1) return whole;
    const prompt = name === 'attention_mask' && width !== undefined ? whole.shape[0]! - width : 0;
    const value = prompt > 0 ? whole.slice(prompt, whole.shape[0]!) : whole;
    if (prompt <= 0 && isStrided(found) && found.shape[1] !== width) return value;
    const [from, to] = rangeOf(row);
    if (to > value.shape[0]!)
      throw new BadObject(`at least ${to} elements of ${name}`, String(value.shape[0]));
    return value.slice(from, to);
  };

  const columns = new Map<string, DumpColumn>(Object.entries(computed?.(cells) ?? {}));
  const add = (name: string, column: DumpColumn) => {
    if (!columns.has(name)) columns.set(name, column);
  };
  for (const [ours, theirs] of Object.entries(mapping)) {
    const name = theirs.find((candidate) => all.has(candidate));
    if (name !== undefined) add(ours, (row) => cells(name, row));
  }
  const lists = new Map<string, readonly unknown[]>();
  for (const [name, value] of others ?? []) {
    if (typeof name !== 'string' || opaqueOf(value)) continue;
    const length = lengthOf(value) ?? itemsOf(value)?.length;
    if (length !== rowCount(reference)) continue;
    const column: DumpColumn = (row) => {
      const tensor = tensorOf(value);
      if (tensor) return tensor.at(row);
      const list = lists.get(name) ?? itemsOf(value)!;
      lists.set(name, list);
      return list[row];
    };
    for (const [ours, theirs] of Object.entries(mapping)) if (theirs.includes(name)) add(ours, column);
    add(name, column);
  }
  // A column that is read must not be missing without a word.
  for (const [name, value] of [...tensors, ...(others ?? [])]) {
    const opaque = opaqueOf(value);
    if (typeof name !== 'string' || !opaque) continue;
    for (const [ours, theirs] of Object.entries(mapping)) if (theirs.includes(name)) add(ours, () => opaque);
    add(name, () => opaque);
  }
  for (const name of all.keys()) add(name, (row) => cells(name, row));
  return {
    rows: count,
    columns,
    tokens: (row) => {
      const [from, to] = rangeOf(row);
      return to - from;
    },
  };
}

function isStrided(rows: Rows): rows is Strided {
  return 'shape' in rows;
}

function rowCount(rows: Rows): number {
  return isStrided(rows) ? rows.shape[0]! : rows.length;
}

/** Returns a function that gives the first and the last column of a row's response. */
function ranges(
  all: ReadonlyMap<string, Rows>,
  width: number | undefined,
  paddingAt: 'left' | 'right',
): (row: number) => readonly [number, number] {
  const mask = MASKS.flatMap((name) => all.get(name) ?? [])[0];
  const attention = all.get('attention_mask');
  let last: { row: number; range: readonly [number, number] } | undefined;
  const find = (row: number): readonly [number, number] => {
    if (width === undefined)
      return [0, lengthOf((mask ?? all.get('responses') ?? [...all.values()][0]!).at(row))!];
    if (paddingAt === 'left') {
      const values = mask ? readMask(mask.at(row), 0, width) : [];
      let first = 0;
      while (first < values.length && values[first] === 0) first++;
      return [first, width];
    }
    const whole = attention && isStrided(attention) ? attention.shape[1] : undefined;
    if (whole !== undefined && whole >= width)
      return [0, endOf(readMask(attention!.at(row), whole - width, whole))];
    return [0, mask ? endOf(readMask(mask.at(row), 0, width)) : width];
  };
  return (row) => {
    if (last?.row !== row) last = { row, range: find(row) };
    return last.range;
  };
}

function readMask(mask: Strided, from: number, to: number): Elements {
  if (mask.shape.length !== 1 || mask.shape[0]! < to || to - from > MAX_TOKENS_OF_MASK)
    throw new BadObject(`a mask of ${to} tokens`, `shape [${mask.shape.join(', ')}]`);
  return mask.slice(from, to).values();
}

function endOf(mask: Elements): number {
  let end = mask.length;
  while (end > 0 && mask[end - 1] === 0) end--;
  return end;
}

/** Returns the sum of a row's values; undefined without them. */
export function sumOf(values: Strided | undefined): number | undefined {
  if (!values) return undefined;
  if (values.shape.length === 0) return numberOf(values);
  const [length] = values.shape;
  if (length! > MAX_TOKENS_OF_MASK)
    throw new BadObject(`at most ${MAX_TOKENS_OF_MASK} values`, String(length));
  let sum = 0;
  for (const value of values.values()) sum += Number(value);
  return sum;
}
