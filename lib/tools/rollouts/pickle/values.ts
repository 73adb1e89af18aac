// The values that a pickle becomes. A tuple is an array, a dict is a Map, and None is null. What is large stays in the
// file until it is used: long texts, bytes, and lists of numbers.
import type { Bytes } from '../bytes.js';
import type { FileBudget } from '../file-budget.js';
import { numberOrText } from '../values.js';

/** A text that stays in the file. */
export class LongText {
  readonly bytes: Bytes;

  /** @param bytes the text in UTF-8. */
  constructor(bytes: Bytes) {
    this.bytes = bytes;
  }

  toString(): string {
    return Buffer.from(this.bytes.read()).toString();
  }
}

/** Consecutive numbers in a pickle: the bytes of the opcodes that push them. */
export interface StoredNumbers {
  bytes: Bytes;
  count: number;
}

// A number in an array, with the room that an array leaves when it grows.
const KEPT_BYTES = 16;

/** A list or a set. */
export class PyList {
  length = 0;
  readonly #contents: (unknown[] | StoredNumbers)[] = [];

  push(items: readonly unknown[]): void {
    const last = this.#contents.at(-1);
    this.length += items.length;
    if (!Array.isArray(last)) this.#contents.push([...items]);
    else for (const item of items) last.push(item);
  }

  /** Adds numbers that stay in the file. */
  pushStored(numbers: StoredNumbers): void {
    this.length += numbers.count;
    this.#contents.push(numbers);
  }

  /** Returns all items. The caller must check the length first. */
  items(): unknown[] {
    const items: unknown[] = [];
    for (const some of this.#contents) forEach(some, (item) => items.push(item));
    return items;
  }

  /** Returns all items, and keeps them in memory. Further calls return the same array, which must not be changed. */
  kept(): readonly unknown[] {
    for (const some of this.#contents)
      if (!Array.isArray(some)) some.bytes.budget.hold(KEPT_BYTES * some.count);
    if (this.#contents.length !== 1 || !Array.isArray(this.#contents[0]))
      this.#contents.splice(0, Number.POSITIVE_INFINITY, this.items());
    return this.#contents[0] as unknown[];
  }

  /**
   * Returns all items, if they are numbers that stay in the file, but for a few: None is NaN, and True is 1. Otherwise
   * returns undefined. The caller must check the length first.
   */
  numbers(): Float64Array | undefined {
    if (this.#contents.every((some) => Array.isArray(some))) return undefined;
    const numbers = new Float64Array(this.length);
    let at = 0;
    let isOther = false;
    for (const some of this.#contents)
      forEach(some, (item) => {
        if (typeof item === 'number') numbers[at] = item;
        else if (typeof item === 'boolean' || item === null)
          numbers[at] = item === null ? Number.NaN : Number(item);
        else isOther = true;
        at++;
      });
    return isOther ? undefined : numbers;
  }
}

/** An object of a class. What its state means depends on the class. */
export class Instance {
  /** The class: module and name. */
  readonly name: string;
  /** The entries, for a class that is derived from dict. */
  readonly entries = new Map<unknown, unknown>();
  state: unknown;

  constructor(name: string) {
    this.name = name;
  }

  build(state: unknown): void {
    this.state = state;
  }
}

/**
 * An object of a class that is not known, such as datetime.datetime, or the class itself. Only the name is kept. It may be
 * anywhere in a file, but not in a column that is read.
 */
export class Opaque {
  /** The class: module and name. */
  readonly name: string;

  constructor(name: string) {
    this.name = name;
  }
}

/** Returns a value from a file as a part of an error message. */
export function shown(value: unknown): string {
  if (value instanceof Opaque) return `a Python object, ${value.name}`;
  const isShort = typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean';
  return isShort ? String(value).slice(0, 40) : 'another value';
}

/** A builder throws this about arguments that it cannot take. The reader of the pickle adds the place. */
export class BadObject extends Error {
  readonly expected: string;
  readonly received: string;

  constructor(expected: string, received: string) {
    super(`expected ${expected}, got ${received}`);
    this.expected = expected;
    this.received = received;
  }
}

/** An object to which BUILD gives a state. */
export interface Buildable {
  build(state: unknown): void;
}

/** The lengths of the arguments of the opcodes that push numbers, truth values and None; −1 for other opcodes. */
export const PLAIN_SIZES = new Int8Array(256).fill(-1);
PLAIN_SIZES[0x4e] = 0; // NONE
PLAIN_SIZES[0x88] = 0; // NEWTRUE
PLAIN_SIZES[0x89] = 0; // NEWFALSE
PLAIN_SIZES[0x4b] = 1; // BININT1
PLAIN_SIZES[0x4d] = 2; // BININT2
PLAIN_SIZES[0x4a] = 4; // BININT
PLAIN_SIZES[0x47] = 8; // BINFLOAT

/** Returns the value that an opcode of {@link PLAIN_SIZES} pushes. */
export function plainValue(opcode: number, view: DataView, at: number): number | boolean | null {
  switch (opcode) {
    case 0x4b:
      return view.getUint8(at);
    case 0x4d:
      return view.getUint16(at, true);
    case 0x4a:
      return view.getInt32(at, true);
    case 0x47:
      return view.getFloat64(at);
    case 0x4e:
      return null;
    default:
      return opcode === 0x88;
  }
}

// A frame may begin between two numbers. It says how many bytes a reader can load at once.
const FRAME = 0x95;
const FRAME_BYTES = 8;

/** Calls `visit` with each item of a part of a list. */
function forEach(range: unknown[] | StoredNumbers, visit: (item: unknown) => void): void {
  if (Array.isArray(range)) {
    for (const item of range) visit(item);
    return;
  }
  const view = new DataView(range.bytes.read().buffer);
  const { byteLength } = view;
  for (let at = 0; at < byteLength; ) {
    const opcode = view.getUint8(at++);
    if (opcode === FRAME) at += FRAME_BYTES;
    else {
      visit(plainValue(opcode, view, at));
      at += PLAIN_SIZES[opcode]!;
    }
  }
}

/** Returns the integer of these bytes in two's complement, little-endian; as text if a number cannot hold it exactly. */
export function integerOf(bytes: Uint8Array): number | string {
  let value = 0n;
  for (let i = bytes.length - 1; i >= 0; i--) value = (value << 8n) | BigInt(bytes[i]!);
  return numberOrText(BigInt.asIntN(8 * bytes.length, value));
}

const MAX_DEPTH = 32;
const ITEM_BYTES = 16;

/**
 * Converts a value to what JSON can hold. Objects become their state. Returns undefined for a value that contains itself,
 * is nested too deeply, or takes more than `most` bytes: shared items count each time.
 * @param most the largest size, where an item takes 16 bytes and a character one.
 * @param budget that of the file.
 * @param mayBeOpaque whether values that JSON does not have become null.
 * @throws BadObject for such a value otherwise.
 */
export function plainOf(value: unknown, most: number, budget: FileBudget, mayBeOpaque: boolean): unknown {
  let left = most;
  const failed = Symbol('failed');
  const take = (bytes: number) => {
    left -= bytes;
    if (left < 0) throw failed;
    budget.work(bytes);
  };
  const opaque = (item: unknown) => {
    if (!mayBeOpaque) throw new BadObject('numbers or text', shown(item));
    return null;
  };
  const convert = (item: unknown, depth: number): unknown => {
    if (depth > MAX_DEPTH) throw failed;
    take(ITEM_BYTES);
    if (item === null || typeof item === 'number' || typeof item === 'boolean' || typeof item === 'string')
      return item;
    if (item instanceof LongText) {
      take(item.bytes.size);
      return item.toString();
    }
    if (item instanceof PyList) {
      if (ITEM_BYTES * item.length > left) throw failed;
      return item.items().map((each) => convert(each, depth + 1));
    }
    if (Array.isArray(item)) return item.map((each) => convert(each, depth + 1));
    if (item instanceof Map) {
      const entries: [string, unknown][] = [];
      for (const [key, each] of item)
        if (key instanceof Opaque) opaque(key);
        else entries.push([String(key), convert(each, depth + 1)]);
      return fromEntries(entries);
    }
    if (item instanceof Instance) return convert(item.state ?? null, depth + 1);
    return opaque(item);
  };
  try {
    return convert(value, 0);
  } catch (error) {
    if (error === failed) return undefined;
    throw error;
  }
}

function fromEntries(entries: readonly (readonly [string, unknown])[]): Record<string, unknown> {
  const made = Object.create(null) as Record<string, unknown>;
  for (const [key, value] of entries) made[key] = value;
  return made;
}
