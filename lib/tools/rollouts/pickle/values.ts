// The values that a pickle becomes. A tuple is an array, a dict is a Map, and None is null. What is large stays in the
// file until it is used: long texts, bytes, and lists of numbers.
import type { Bytes } from '../bytes.js';
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

/**
 * Converts a value to what JSON can hold. Objects become their state. Returns undefined for a value that contains itself,
 * is nested too deeply, or has more items than `budget` allows: shared items count each time.
 * @param budget the largest number of items, or of characters of text.
 */
export function plainOf(value: unknown, budget: number): unknown {
  let left = budget;
  const failed = Symbol('failed');
  const convert = (item: unknown, depth: number): unknown => {
    if (--left < 0 || depth > MAX_DEPTH) throw failed;
    if (item === null || typeof item === 'number' || typeof item === 'boolean' || typeof item === 'string')
      return item;
    if (item instanceof LongText) {
      left -= item.bytes.size;
      if (left < 0) throw failed;
      return item.toString();
    }
    if (item instanceof PyList) {
      if (item.length > left) throw failed;
      return item.items().map((each) => convert(each, depth + 1));
    }
    if (Array.isArray(item)) return item.map((each) => convert(each, depth + 1));
    if (item instanceof Map) {
      const entries = [...item].map(([key, each]) => [String(key), convert(each, depth + 1)] as const);
      return fromEntries(entries);
    }
    if (item instanceof Instance) return convert(item.state ?? null, depth + 1);
    return null;
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
