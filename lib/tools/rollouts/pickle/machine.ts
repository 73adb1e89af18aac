// Reads pickles without running anything. It knows the opcodes that today's picklers of plain data write. A name of a
// module is looked up in a list (globals.ts), never imported; a name that is not there is an error.
import type { Bytes } from '../bytes.js';
import { badFile } from '../source.js';
import { Cursor, MAX_NAME } from './cursor.js';
import { Global, globalOf } from './globals.js';
import {
  BadObject,
  type Buildable,
  Instance,
  integerOf,
  LongText,
  PLAIN_SIZES,
  PyList,
  plainValue,
} from './values.js';

/** What a pickle needs from the file that holds it. */
export interface PickleContext {
  /** Returns the object that an id stands for: a storage of a torch file. Without it, such ids are errors. */
  persistent?: (id: unknown) => unknown;
  /**
   * Reads a torch file inside of the pickle.
   * @param depth how many files hold it.
   */
  nested(bytes: Bytes, depth: number): unknown;
  /** How many files hold this pickle, one inside the other. */
  depth: number;
}

/** The value of a pickle, and where the pickle ends. */
export interface Unpickled {
  value: unknown;
  end: number;
}

/** Whether bytes begin like a pickle of protocol 2 to 5. */
export function isPickle(head: Uint8Array): boolean {
  return head[0] === 0x80 && head[1]! >= 2 && head[1]! <= 5;
}

/**
 * Reads the pickle that begins at `start`.
 * @throws LossError `ERR_INVALID_INPUT` if it is malformed, too large, or names anything but known classes. The message
 * gives the place as a byte of the file.
 */
export function unpickle(bytes: Bytes, context: PickleContext, start = 0): Unpickled {
  const slices = unpickleInSlices(bytes, context, start);
  for (;;) {
    const { done, value } = slices.next();
    if (done) return value;
  }
}

/** Does the same as {@link unpickle}, a chunk of the file in each slice. */
export function unpickleInSlices(
  bytes: Bytes,
  context: PickleContext,
  start = 0,
): Generator<void, Unpickled> {
  if (context.depth > MAX_FILES)
    throw badFile(bytes.file, {
      expected: `at most ${MAX_FILES} pickles one inside the other`,
      received: `another one at byte ${bytes.start + start}`,
    });
  return new Machine(bytes, context, start).run();
}

// A pickle of a DataProto holds a torch file, whose pickle may hold a tensor as a torch file of its own.
const MAX_FILES = 3;
// Longer texts and bytes stay in the file.
const MAX_SHORT_TEXT = 64;
// Fewer numbers in a row take less memory as an array.
const MIN_STORED = 16;
const MAX_INTEGER_BYTES = 64;
// These limits bound the memory that a pickle can take. A cost of 1 stands for about 16 bytes, so that all objects take
// less than 200 MB. Ten tensors for each of several thousand rollouts fit.
const MAX_COST = 3 * 2 ** 22;
const MAX_STACK = 1 << 21;
const MAX_MARKS = 1 << 14;
const MAX_MEMO = 1 << 22;
const DICT_COST = 12;
const LIST_COST = 8;
const OBJECT_COST = 10;
const ENTRY_COST = 2;
const TUPLE_COST = 3;
const TEXT_COST = 4;

/** A mark on the stack: the height of the stack, the place after the opcode, and whether only plain values follow. */
interface Mark {
  height: number;
  position: number;
  isPlain: boolean;
}

class Machine {
  readonly #cursor: Cursor;
  readonly #context: PickleContext;
  readonly #stack: unknown[] = [];
  readonly #marks: Mark[] = [];
  // Picklers number their memo from 0, so that the indices are dense. Others are in the map.
  readonly #memo: unknown[] = [];
  readonly #sparseMemo = new Map<number, unknown>();
  #cost = 0;

  constructor(bytes: Bytes, context: PickleContext, start: number) {
    this.#cursor = new Cursor(bytes, start);
    this.#context = context;
  }

  *run(): Generator<void, Unpickled> {
    const cursor = this.#cursor;
    for (;;) {
      if (cursor.isAtEndOfChunk) yield;
      const opcode = cursor.opcode();
      if (opcode === STOP) return this.#finish();
      const size = PLAIN_SIZES[opcode]!;
      if (size >= 0) {
        const at = cursor.take(size);
        this.#push(plainValue(opcode, cursor.view, at));
        continue;
      }
      const mark = this.#marks.at(-1);
      if (mark && opcode !== APPENDS && opcode !== TUPLE && opcode !== FRAME) mark.isPlain = false;
      this.#execute(opcode);
    }
  }

  #finish(): Unpickled {
    if (this.#stack.length !== 1 || this.#marks.length > 0)
      throw this.#cursor.error('one value at the end', `${this.#stack.length}`);
    return { value: this.#stack[0], end: this.#cursor.position };
  }

  #execute(opcode: number): void {
    switch (opcode) {
      case 0x80: {
        const version = this.#cursor.byte();
        if (version < 2 || version > 5) throw this.#cursor.error('protocol 2 to 5', String(version));
        break;
      }
      case FRAME:
        this.#cursor.length(8);
        break;
      case 0x28: // MARK
        if (this.#marks.length === MAX_MARKS)
          throw this.#cursor.error(`at most ${MAX_MARKS} open containers`, 'more');
        if (this.#appendNumbersAhead()) break;
        this.#marks.push({ height: this.#stack.length, position: this.#cursor.position, isPlain: true });
        break;
      case 0x30: // POP
        this.#pop();
        break;

      case 0x8a: // LONG1
        this.#pushInteger(this.#cursor.byte());
        break;
      case 0x8b: // LONG4
        this.#pushInteger(this.#cursor.length(4));
        break;
      case 0x8c: // SHORT_BINUNICODE
        this.#pushText(this.#cursor.length(1));
        break;
      case 0x58: // BINUNICODE
        this.#pushText(this.#cursor.length(4));
        break;
      case 0x8d: // BINUNICODE8
        this.#pushText(this.#cursor.length(8));
        break;
      case 0x43: // SHORT_BINBYTES
        this.#pushBytes(this.#cursor.length(1));
        break;
      case 0x42: // BINBYTES
        this.#pushBytes(this.#cursor.length(4));
        break;
      case 0x8e: // BINBYTES8
      case 0x96: // BYTEARRAY8
        this.#pushBytes(this.#cursor.length(8));
        break;

      case 0x7d: // EMPTY_DICT
        this.#pushNew(new Map(), DICT_COST);
        break;
      case 0x5d: // EMPTY_LIST
      case 0x8f: // EMPTY_SET
        this.#pushNew(new PyList(), LIST_COST);
        break;
      case 0x91: {
        // FROZENSET
        const { items } = this.#popMark();
        const set = new PyList();
        set.push(items);
        this.#pushNew(set, LIST_COST + items.length);
        break;
      }
      case 0x29: // EMPTY_TUPLE
        this.#pushTuple([]);
        break;
      case 0x85: // TUPLE1, TUPLE2, TUPLE3
      case 0x86:
      case 0x87:
        this.#pushTuple(this.#popSeveral(opcode - 0x84));
        break;
      case TUPLE: {
        const { items, stored } = this.#popMark();
        if (!stored || items.length < MAX_SHORT_TUPLE) this.#pushTuple(items);
        else {
          const list = new PyList();
          list.pushStored(stored);
          this.#pushNew(list, LIST_COST);
        }
        break;
      }

      case 0x61: // APPEND
        this.#append([this.#pop()]);
        break;
      case APPENDS: {
        const { items, stored } = this.#popMark();
        this.#append(items, stored);
        break;
      }
      case 0x90: // ADDITEMS
        this.#append(this.#popMark().items);
        break;
      case 0x73: // SETITEM
        this.#setItems(this.#popSeveral(2));
        break;
      case 0x75: // SETITEMS
        this.#setItems(this.#popMark().items);
        break;

      case 0x71: // BINPUT
        this.#memoize(this.#cursor.byte());
        break;
      case 0x72: // LONG_BINPUT
        this.#memoize(this.#cursor.uint32());
        break;
      case 0x94: // MEMOIZE
        this.#memoize(this.#memo.length + this.#sparseMemo.size);
        break;
      case 0x68: // BINGET
        this.#recall(this.#cursor.byte());
        break;
      case 0x6a: // LONG_BINGET
        this.#recall(this.#cursor.uint32());
        break;

      case 0x63: // GLOBAL
        this.#pushGlobal(this.#cursor.line(), this.#cursor.line());
        break;
      case 0x93: {
        // STACK_GLOBAL
        const [module, name] = this.#popSeveral(2);
        if (typeof module !== 'string' || typeof name !== 'string')
          throw this.#cursor.error('the names of a module and a class', 'other values');
        this.#pushGlobal(module, name);
        break;
      }
      case 0x52: // REDUCE
        this.#reduce();
        break;
      case 0x81: // NEWOBJ
        this.#newObject();
        break;
      case 0x62: // BUILD
        this.#build();
        break;
      case 0x51: {
        // BINPERSID
        const { persistent } = this.#context;
        if (!persistent) throw this.#cursor.error('a pickle by itself', 'a reference to data outside of it');
        this.#pushNew(
          this.#located(() => persistent(this.#pop())),
          OBJECT_COST,
        );
        break;
      }
      default:
        throw this.#cursor.error('an opcode of plain data', nameOf(opcode));
    }
  }

  // --- the stack

  #push(value: unknown): void {
    if (this.#stack.length === MAX_STACK)
      throw this.#cursor.error(`at most ${MAX_STACK} values at once`, 'more');
    this.#stack.push(value);
  }

  #pushNew(value: unknown, cost: number): void {
    this.#spend(cost);
    this.#push(value);
  }

  #pushTuple(items: unknown[]): void {
    this.#pushNew(items, TUPLE_COST + items.length / 2);
  }

  /** Counts what a value takes of the memory that a pickle may have. */
  #spend(cost: number): void {
    this.#cost += cost;
    if (this.#cost > MAX_COST) throw this.#cursor.error('fewer objects', 'more than fit into memory');
  }

  #pop(): unknown {
    if (this.#stack.length === (this.#marks.at(-1)?.height ?? 0))
      throw this.#cursor.error('a value on the stack', 'none');
    return this.#stack.pop();
  }

  #popSeveral(count: number): unknown[] {
    if (this.#stack.length - count < (this.#marks.at(-1)?.height ?? 0))
      throw this.#cursor.error(`${count} values on the stack`, 'fewer');
    return this.#stack.splice(this.#stack.length - count);
  }

  /** Returns the values after the last mark, and, if they all are plain ones, the place that they are at in the file. */
  #popMark() {
    const mark = this.#marks.pop();
    if (!mark) throw this.#cursor.error('a mark on the stack', 'none');
    const items = this.#stack.splice(mark.height);
    const isStored = mark.isPlain && items.length >= MIN_STORED;
    const size = this.#cursor.opcodeAt - mark.position;
    return {
      items,
      stored: isStored
        ? { bytes: this.#cursor.bytes.slice(mark.position, size), count: items.length }
        : undefined,
    };
  }

  #top(): unknown {
    if (this.#stack.length === (this.#marks.at(-1)?.height ?? 0))
      throw this.#cursor.error('a value on the stack', 'none');
    return this.#stack.at(-1);
  }

  // --- containers

  #append(items: unknown[], stored?: { bytes: Bytes; count: number }): void {
    const list = this.#top();
    if (!(list instanceof PyList)) throw this.#cursor.error('a list to append to', 'another value');
    this.#spend(stored ? LIST_COST : 1 + items.length);
    if (stored) list.pushStored(stored);
    else list.push(items);
  }

  /**
   * Appends the numbers that come next to the list on the stack, without putting them there first. Returns whether they
   * are many, and followed by the opcode that appends them.
   */
  #appendNumbersAhead(): boolean {
    const list = this.#stack.at(-1);
    if (!(list instanceof PyList)) return false;
    const { count, size, next } = this.#cursor.plainAhead();
    if (next !== APPENDS || count < MIN_STORED) return false;
    this.#append([], { bytes: this.#cursor.skip(size), count });
    this.#cursor.opcode();
    return true;
  }

  #setItems(items: unknown[]): void {
    const target = this.#top();
    const entries = target instanceof Instance ? target.entries : target;
    if (!(entries instanceof Map)) throw this.#cursor.error('a dict to set items of', 'another value');
    if (items.length % 2 !== 0) throw this.#cursor.error('keys and values', 'a key without a value');
    this.#spend(ENTRY_COST * items.length);
    for (let i = 0; i < items.length; i += 2) entries.set(items[i], items[i + 1]);
  }

  #memoize(index: number): void {
    const value = this.#top();
    this.#spend(1);
    if (this.#memo.length + this.#sparseMemo.size >= MAX_MEMO)
      throw this.#cursor.error(`at most ${MAX_MEMO} shared values`, 'more');
    if (index < this.#memo.length) this.#memo[index] = value;
    else if (index === this.#memo.length) this.#memo.push(value);
    else this.#sparseMemo.set(index, value);
  }

  #recall(index: number): void {
    if (index < this.#memo.length) this.#push(this.#memo[index]);
    else if (this.#sparseMemo.has(index)) this.#push(this.#sparseMemo.get(index));
    else throw this.#cursor.error('a value that was memoized', `memo ${index}`);
  }

  // --- objects

  #pushGlobal(module: string, name: string): void {
    const found = globalOf(module, name);
    if (!found)
      throw badFile(this.#cursor.bytes.file, {
        expected: 'plain data, tensors, and classes of known trainers',
        received: `${describeName(`${module}.${name}`)} at byte ${this.#cursor.place}`,
        hint: 'The pickle was read without running anything in it',
      });
    this.#pushNew(found, 1);
  }

  #reduce(): void {
    const [callable, args] = this.#popSeveral(2);
    if (!(callable instanceof Global) || !callable.call)
      throw this.#cursor.error('a function of the known ones', this.#nameOf(callable));
    if (!Array.isArray(args)) throw this.#cursor.error(`the arguments of ${callable.name}`, 'another value');
    const { call } = callable;
    this.#pushNew(
      this.#located(() => call(args, this.#context)),
      DICT_COST,
    );
  }

  #newObject(): void {
    const [type, args] = this.#popSeveral(2);
    if (!(type instanceof Global) || !type.create)
      throw this.#cursor.error('a class of the known ones', this.#nameOf(type));
    if (!Array.isArray(args) || args.length > 0)
      throw this.#cursor.error(`no arguments for ${type.name}`, 'some, or another value');
    this.#pushNew(type.create(), 2 * DICT_COST);
  }

  #build(): void {
    const state = this.#pop();
    const target = this.#top();
    if (!isBuildable(target)) throw this.#cursor.error('an object of a known class', 'another value');
    this.#located(() => target.build(state));
  }

  #nameOf(value: unknown): string {
    return value instanceof Global ? describeName(value.name) : 'another value';
  }

  /** Runs a builder, which throws a {@link BadObject} where its arguments are wrong. */
  #located<T>(act: () => T): T {
    try {
      return act();
    } catch (error) {
      if (!(error instanceof BadObject)) throw error;
      throw this.#cursor.error(error.expected, error.received);
    }
  }

  // --- the arguments of opcodes

  #pushInteger(size: number): void {
    if (size > MAX_INTEGER_BYTES)
      throw this.#cursor.error(`integers of at most ${MAX_INTEGER_BYTES} bytes`, `${size}`);
    this.#push(integerOf(this.#cursor.read(size)));
  }

  #pushText(size: number): void {
    if (size > MAX_SHORT_TEXT) {
      this.#pushNew(new LongText(this.#cursor.skip(size)), OBJECT_COST);
      return;
    }
    this.#pushNew(this.#cursor.read(size).toString(), TEXT_COST);
  }

  #pushBytes(size: number): void {
    this.#pushNew(this.#cursor.skip(size), OBJECT_COST);
  }
}

const STOP = 0x2e;
const TUPLE = 0x74;
const APPENDS = 0x65;
const FRAME = 0x95;
// A tuple of fewer numbers is an array, as the shape of a tensor is.
const MAX_SHORT_TUPLE = 64;

function isBuildable(value: unknown): value is Buildable {
  return (
    typeof value === 'object' && value !== null && typeof (value as Partial<Buildable>).build === 'function'
  );
}

/** The opcodes that run code or take data from outside, and those of old protocols. */
const REFUSED: Readonly<Record<number, string>> = {
  105: 'INST',
  111: 'OBJ',
  130: 'EXT1',
  131: 'EXT2',
  132: 'EXT4',
  80: 'PERSID',
  146: 'NEWOBJ_EX',
  151: 'NEXT_BUFFER',
  152: 'READONLY_BUFFER',
  50: 'DUP',
};

function nameOf(opcode: number): string {
  return REFUSED[opcode] ?? `0x${opcode.toString(16).padStart(2, '0')}`;
}

function describeName(name: string): string {
  return name.length > MAX_NAME ? `${name.slice(0, MAX_NAME)}…` : name;
}
