// Reads pickles without running anything. It knows the opcodes that today's picklers write. A name of a module is looked
// up in a list (globals.ts), never imported. A class that is not there makes opaque values.
import type { Bytes } from '../bytes.js';
import type { FileBudget } from '../file-budget.js';
import { badFile } from '../source.js';
import { Cursor, MAX_NAME } from './cursor.js';
import { Global, globalOf } from './globals.js';
import { Stack } from './stack.js';
import {
  BadObject,
  type Buildable,
  Instance,
  integerOf,
  LongText,
  Opaque,
  PLAIN_SIZES,
  PyList,
  plainValue,
  type StoredNumbers,
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
 * @throws LossError `ERR_INVALID_INPUT` if it is malformed, too large, or names what only a program needs. The message
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
// What objects take in memory, in bytes, with room for what V8 adds.
const DICT_BYTES = 192;
const LIST_BYTES = 128;
const OBJECT_BYTES = 160;
const TUPLE_BYTES = 48;
const TEXT_BYTES = 64;
const ITEM_BYTES = 16;
const ENTRY_BYTES = 64;
// What an opcode takes, compared with the copy of a byte.
const WORK_PER_OPCODE = 64;

class Machine {
  readonly #cursor: Cursor;
  readonly #context: PickleContext;
  readonly #budget: FileBudget;
  readonly #stack = new Stack();

  constructor(bytes: Bytes, context: PickleContext, start: number) {
    this.#cursor = new Cursor(bytes, start);
    this.#context = context;
    this.#budget = bytes.budget;
  }

  *run(): Generator<void, Unpickled> {
    for (;;) {
      const found = this.#runChunk();
      if (found) return found;
      yield;
    }
  }

  /** Executes the opcodes up to the end of the chunk. Returns the value of the pickle if it ends before. */
  #runChunk(): Unpickled | undefined {
    const cursor = this.#cursor;
    let opcodes = 0;
    try {
      do {
        opcodes++;
        const opcode = cursor.opcode();
        if (opcode === STOP) return { value: this.#stack.last(), end: cursor.position };
        const size = PLAIN_SIZES[opcode]!;
        if (size >= 0) {
          const at = cursor.take(size);
          this.#stack.push(plainValue(opcode, cursor.view, at));
          continue;
        }
        if (opcode !== APPENDS && opcode !== TUPLE && opcode !== FRAME) this.#stack.endPlain();
        this.#execute(opcode);
      } while (!cursor.isAtEndOfChunk);
    } catch (error) {
      if (!(error instanceof BadObject)) throw error;
      throw cursor.error(error.expected, error.received);
    } finally {
      // The opcodes of a pickle inside of another one can be executed again and again.
      if (this.#context.depth > 0) this.#budget.work(WORK_PER_OPCODE * opcodes);
    }
    return undefined;
  }

  #execute(opcode: number): void {
    switch (opcode) {
      case 0x80: {
        const version = this.#cursor.byte();
        if (version < 2 || version > 5) throw new BadObject('protocol 2 to 5', String(version));
        break;
      }
      case FRAME:
        this.#cursor.length(8);
        break;
      case 0x28: // MARK
        if (!this.#appendNumbersAhead()) this.#stack.mark(this.#cursor.position);
        break;
      case 0x30: // POP
        this.#stack.pop();
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
        this.#pushNew(new Map(), DICT_BYTES);
        break;
      case 0x5d: // EMPTY_LIST
      case 0x8f: // EMPTY_SET
        this.#pushNew(new PyList(), LIST_BYTES);
        break;
      case 0x91: {
        // FROZENSET
        const { items } = this.#popMark();
        const set = new PyList();
        set.push(items);
        this.#pushNew(set, LIST_BYTES + ITEM_BYTES * items.length);
        break;
      }
      case 0x29: // EMPTY_TUPLE
        this.#pushTuple([]);
        break;
      case 0x85: // TUPLE1, TUPLE2, TUPLE3
      case 0x86:
      case 0x87:
        this.#pushTuple(this.#stack.popSeveral(opcode - 0x84));
        break;
      case TUPLE: {
        const { items, stored } = this.#popMark();
        if (!stored || items.length < MAX_SHORT_TUPLE) this.#pushTuple(items);
        else {
          const list = new PyList();
          list.pushStored(stored);
          this.#pushNew(list, LIST_BYTES);
        }
        break;
      }

      case 0x61: // APPEND
        this.#append([this.#stack.pop()]);
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
        this.#setItems(this.#stack.popSeveral(2));
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
        this.#memoize();
        break;
      case 0x68: // BINGET
        this.#stack.recall(this.#cursor.byte());
        break;
      case 0x6a: // LONG_BINGET
        this.#stack.recall(this.#cursor.uint32());
        break;

      case 0x63: // GLOBAL
        this.#pushGlobal(this.#cursor.line(), this.#cursor.line());
        break;
      case 0x93: {
        // STACK_GLOBAL
        const [module, name] = this.#stack.popSeveral(2).map(shortText);
        if (module === undefined || name === undefined)
          throw new BadObject('the names of a module and a class', 'other values');
        this.#pushGlobal(module, name);
        break;
      }
      case 0x52: // REDUCE
        this.#reduce();
        break;
      case 0x81: // NEWOBJ
        this.#newObject(false);
        break;
      case 0x92: // NEWOBJ_EX
        this.#newObject(true);
        break;
      case 0x62: // BUILD
        this.#build();
        break;
      case 0x51: {
        // BINPERSID
        const { persistent } = this.#context;
        if (!persistent) throw new BadObject('a pickle by itself', 'a reference to data outside of it');
        this.#pushNew(persistent(this.#stack.pop()), OBJECT_BYTES);
        break;
      }
      default:
        throw new BadObject('an opcode of plain data', nameOf(opcode));
    }
  }

  // --- the stack

  #pushNew(value: unknown, bytes: number): void {
    this.#budget.hold(bytes);
    this.#stack.push(value);
  }

  #pushTuple(items: unknown[]): void {
    this.#pushNew(items, TUPLE_BYTES + (items.length * ITEM_BYTES) / 2);
  }

  /** Returns the values after the last mark, and, if they all are plain ones, the place that they are at in the file. */
  #popMark(): { items: unknown[]; stored?: StoredNumbers } {
    const { items, position, isPlain } = this.#stack.popMark();
    if (!isPlain || items.length < MIN_STORED) return { items };
    const { bytes, opcodeAt } = this.#cursor;
    return { items, stored: { bytes: bytes.slice(position, opcodeAt - position), count: items.length } };
  }

  #memoize(index?: number): void {
    this.#budget.hold(ITEM_BYTES);
    this.#stack.memoize(index);
  }

  // --- containers

  #append(items: unknown[], stored?: StoredNumbers): void {
    const list = this.#stack.top();
    if (list instanceof Opaque) return;
    if (!(list instanceof PyList)) throw new BadObject('a list to append to', 'another value');
    this.#budget.hold(stored ? LIST_BYTES : ITEM_BYTES * (1 + items.length));
    if (stored) list.pushStored(stored);
    else list.push(items);
  }

  /**
   * Appends the numbers that come next to the list on the stack, without putting them there first. Returns whether they
   * are many, and followed by the opcode that appends them.
   */
  #appendNumbersAhead(): boolean {
    const list = this.#stack.peek();
    if (!(list instanceof PyList)) return false;
    const { count, size, next } = this.#cursor.plainAhead();
    if (next !== APPENDS || count < MIN_STORED) return false;
    this.#append([], { bytes: this.#cursor.skip(size), count });
    this.#cursor.opcode();
    return true;
  }

  #setItems(items: unknown[]): void {
    const target = this.#stack.top();
    if (target instanceof Opaque) return;
    const entries = target instanceof Instance ? target.entries : target;
    if (!(entries instanceof Map)) throw new BadObject('a dict to set items of', 'another value');
    if (items.length % 2 !== 0) throw new BadObject('keys and values', 'a key without a value');
    this.#budget.hold((ENTRY_BYTES * items.length) / 2);
    for (let i = 0; i < items.length; i += 2) entries.set(keyOf(items[i]), items[i + 1]);
  }

  // --- objects

  #pushGlobal(module: string, name: string): void {
    const found = globalOf(module, name);
    if (!found)
      throw badFile(this.#cursor.bytes.file, {
        expected: 'a pickle of data',
        received: `the function ${module}.${name} at byte ${this.#cursor.place}`,
        hint: 'The pickle was read without running anything in it. Python would run it',
      });
    this.#pushNew(found, OBJECT_BYTES + module.length + name.length);
  }

  #reduce(): void {
    const [callable, args] = this.#stack.popSeveral(2);
    if (callable instanceof Opaque) {
      this.#pushNew(callable, ITEM_BYTES);
      return;
    }
    if (!(callable instanceof Global) || !callable.call)
      throw new BadObject('a function of the known ones', nameIn(callable));
    if (!Array.isArray(args)) throw new BadObject(`the arguments of ${callable.name}`, 'another value');
    const context = { ...this.#context, budget: this.#budget };
    this.#pushNew(callable.call(args, context), DICT_BYTES);
  }

  /** @param keywords whether the opcode has keyword arguments too. */
  #newObject(keywords: boolean): void {
    const [type, args] = this.#stack.popSeveral(keywords ? 3 : 2);
    if (type instanceof Opaque) {
      this.#pushNew(type, ITEM_BYTES);
      return;
    }
    if (keywords || !(type instanceof Global) || !type.create)
      throw new BadObject('a class of the known ones', nameIn(type));
    if (!Array.isArray(args) || args.length > 0)
      throw new BadObject(`no arguments for ${type.name}`, 'some, or another value');
    this.#pushNew(type.create(), 2 * DICT_BYTES);
  }

  #build(): void {
    const state = this.#stack.pop();
    const target = this.#stack.top();
    if (target instanceof Opaque) return;
    if (!isBuildable(target)) throw new BadObject('an object of a known class', 'another value');
    target.build(state);
  }

  // --- the arguments of opcodes

  #pushInteger(size: number): void {
    if (size > MAX_INTEGER_BYTES)
      throw new BadObject(`integers of at most ${MAX_INTEGER_BYTES} bytes`, `${size}`);
    this.#pushNew(integerOf(this.#cursor.read(size)), TEXT_BYTES);
  }

  #pushText(size: number): void {
    if (size > MAX_SHORT_TEXT) {
      this.#pushNew(new LongText(this.#cursor.skip(size)), OBJECT_BYTES);
      return;
    }
    this.#pushNew(this.#cursor.read(size).toString(), TEXT_BYTES);
  }

  #pushBytes(size: number): void {
    this.#pushNew(this.#cursor.skip(size), OBJECT_BYTES);
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
  151: 'NEXT_BUFFER',
  152: 'READONLY_BUFFER',
  50: 'DUP',
};

function nameOf(opcode: number): string {
  return REFUSED[opcode] ?? `0x${opcode.toString(16).padStart(2, '0')}`;
}

function nameIn(value: unknown): string {
  return value instanceof Global ? value.name : 'another value';
}

/** Returns a text as a string, unless it is longer than a name; undefined for another value. */
function shortText(value: unknown): string | undefined {
  if (value instanceof LongText && value.bytes.size <= MAX_NAME) return value.toString();
  return typeof value === 'string' ? value : undefined;
}

/** Returns what stands for the key of a dict: texts and numbers themselves. No other key is turned into text. */
function keyOf(key: unknown): unknown {
  if (key === null || typeof key === 'number' || typeof key === 'boolean') return key;
  return shortText(key) ?? new Opaque('dict with a key that is neither a text nor a number');
}
