/**
 * Values that a caller may hand over by mistake or by malice. Each is described by a recipe of plain data, so that a
 * case can be printed, shrunk, committed and made again, even where the value itself could not be.
 */
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { DeviceBatch } from '../../lib/index.js';

// biome-ignore lint/suspicious/noExplicitAny: the point of it
export type Anything = any;

/** What hostile values throw: nothing else may be the cause of a LossError but what the engine says of such values. */
export class Hostile extends Error {}

const TYPES = [
  'Float32Array',
  'Float64Array',
  'Uint8Array',
  'Uint8ClampedArray',
  'Uint16Array',
  'Int32Array',
  'Uint32Array',
  'Int8Array',
  'BigInt64Array',
] as const;
const MEMORIES = [
  'plain',
  'offset',
  'shared',
  'growable',
  'resizable',
  'tracking',
  'shrunk',
  'detached',
] as const;
const TWISTS = [
  'none',
  'own length',
  'throwing length',
  'longer length',
  'own buffer',
  'own constructor',
  'nameless constructor',
  'own iterator',
  'prototype only',
  'foreign realm',
  'no prototype',
] as const;
const ARRAY_TWISTS = [
  'none',
  'holes',
  'cyclic',
  'throwing item',
  'own methods',
  'throwing methods',
  'own iterator',
  'species',
  'prototype changed',
  'frozen',
] as const;
const PROXY_MODES = ['transparent', 'throws', 'revoked', 'lies', 'huge length'] as const;
const ACCESSES = ['value', 'getter', 'throws', 'throws later', 'changes', 'detaches', 'inherited'] as const;

export type Access = (typeof ACCESSES)[number];
export type ProxyMode = (typeof PROXY_MODES)[number];
export type Recipe =
  | { kind: 'plain'; value: null | boolean | number | string }
  | { kind: 'odd'; name: string }
  | {
      kind: 'typed';
      type: (typeof TYPES)[number];
      length: number;
      memory: (typeof MEMORIES)[number];
      twist: (typeof TWISTS)[number];
    }
  | { kind: 'array'; items: Recipe[]; twist: (typeof ARRAY_TWISTS)[number] }
  | { kind: 'half'; data: Recipe; dtype: Recipe }
  | { kind: 'object'; entries: { key: string; value: Recipe; access: Access }[] }
  | { kind: 'proxy'; of: Recipe; mode: ProxyMode; after: number };

const FOREIGN = runInNewContext('globalThis') as typeof globalThis;

const MANY = Array.from({ length: 1e5 }, () => 1);

function raise(): never {
  throw new Hostile('of the caller');
}

/** Throws what no one expects to be thrown: nothing at all. */
function raiseNothing(): never {
  throw undefined;
}

class Own {
  readonly #secret = 1;
  get secret(): number {
    return this.#secret;
  }
}

// Values of which each is one of its kind. A name stands in recipes, so it stays.
const ODD: Record<string, () => Anything> = {
  undefined: () => undefined,
  NaN: () => Number.NaN,
  Infinity: () => Number.POSITIVE_INFINITY,
  '-Infinity': () => Number.NEGATIVE_INFINITY,
  '-0': () => -0,
  '0n': () => 0n,
  '2n**64n': () => 2n ** 64n,
  symbol: () => Symbol('name'),
  'Symbol.iterator': () => Symbol.iterator,
  'arrow function': () => () => 1,
  'throwing function': () => raise,
  class: () => class Given {},
  'throwing class': () =>
    class Throwing {
      constructor() {
        raise();
      }
      static defaultArgs(): Record<string, unknown> {
        return {
          get clip_range() {
            return raise();
          },
        };
      }
    },
  'empty object': () => ({}),
  'null-prototype object': () => Object.create(null),
  'object of a nameless class': () => Object.create({ constructor: { name: Symbol('none') } }),
  'object with a throwing constructor': () =>
    Object.defineProperty({}, 'constructor', { get: raise, enumerable: true }),
  'object with a throwing toString': () => ({ toString: raise, valueOf: raise, toJSON: raise }),
  'object with a throwing toPrimitive': () => ({ [Symbol.toPrimitive]: raise }),
  'object that throws undefined': () => ({
    get shape() {
      return raiseNothing();
    },
  }),
  'object of private fields': () => new Own(),
  'proxy of private fields': () => new Proxy(new Own(), {}),
  'throwing iterator': () => ({ [Symbol.iterator]: raise }),
  'iterator that throws later': () => ({
    *[Symbol.iterator]() {
      yield { tokens: 1, rows: 1, columns: 1 };
      raise();
    },
  }),
  'iterator of nothing': () => ({ [Symbol.iterator]: () => ({ next: () => 5 }) }),
  'iterator that is no function': () => ({ [Symbol.iterator]: 5 }),
  thenable: () =>
    Object.defineProperty({}, 'then', { value: (resolve: (value: unknown) => void) => resolve(1) }),
  'throwing thenable': () => Object.defineProperty({}, 'then', { get: raise }),
  Date: () => new Date(Number.NaN),
  RegExp: () => /x/g,
  Map: () => new Map([['shape', [2, 3]]]),
  Set: () => new Set([1]),
  WeakMap: () => new WeakMap(),
  Promise: () => Promise.resolve(1),
  'rejected promise': () => {
    const promise = Promise.reject(new Hostile());
    promise.catch(() => {});
    return promise;
  },
  Error: () => new Hostile(),
  DataView: () => new DataView(new ArrayBuffer(24)),
  ArrayBuffer: () => new ArrayBuffer(24),
  SharedArrayBuffer: () => new SharedArrayBuffer(24),
  'detached ArrayBuffer': () => {
    const buffer = new ArrayBuffer(24);
    structuredClone(buffer, { transfer: [buffer] });
    return buffer;
  },
  'WebAssembly.Memory': () => new Float32Array(new WebAssembly.Memory({ initial: 1 }).buffer, 0, 6),
  'WebAssembly.Memory, grown': () => {
    const memory = new WebAssembly.Memory({ initial: 1, maximum: 4 });
    const view = new Float32Array(memory.buffer, 0, 6);
    memory.grow(1);
    return view;
  },
  Buffer: () => Buffer.from([1, 1, 1, 1, 1, 1]),
  'array of length 2**32 - 1': () => new Array(2 ** 32 - 1),
  'array of length 1e5': () => MANY.slice(),
  'nested arrays': () => [
    [1, 2, 3],
    [4, 5, 6],
  ],
  'ragged arrays': () => [[1, 2, 3], [4]],
  'deep arrays': () => {
    let deep: unknown[] = [];
    for (let i = 0; i < 50_000; i++) deep = [deep];
    return deep;
  },
  'array-like of length 2**53': () => ({ length: 2 ** 53 - 1 }),
  'array-like of length 1e12': () => ({ length: 1e12, 0: 1 }),
  'array-like of length 6': () => ({ length: 6, 0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1 }),
  'array-like with a throwing length': () => ({
    get length() {
      return raise();
    },
  }),
  'array-like of a negative length': () => ({ length: -1 }),
  'array-like of length NaN': () => ({ length: Number.NaN }),
  'arguments object': () =>
    (function given(..._given: unknown[]) {
      // biome-ignore lint/complexity/noArguments: a real one
      return arguments;
    })(1, 1),
  'symbols in an array': () => [Symbol('a'), Symbol('b')],
  'bigints in an array': () => [2n, 3n],
  'shape of 2**53': () => [2 ** 53 - 1, 2 ** 53 - 1],
  'shape of 2**53 empty rows': () => [2 ** 53 - 1, 0],
  'shape of 2**31 empty rows': () => [2 ** 31, 0],
  'shape of no rows of 2**53': () => [0, 2 ** 53 - 1],
  'shape of 2**40 rows': () => [2 ** 40, 2 ** 40],
  'shape [3, 2]': () => [3, 2],
  'shape with holes': () => new Array(2),
  'shape of fractions': () => [2.5, 3],
  'offsets [0, 3, 6]': () => Int32Array.of(0, 3, 6),
  'offsets up to 2**31 - 1': () => Int32Array.of(0, 2 ** 31 - 1, 2 ** 31 - 1),
  'offsets that fall': () => Int32Array.of(0, 2 ** 31 - 1, -(2 ** 31)),
  'offsets with a hole': () => {
    const offsets: number[] = [0];
    offsets[2] = 6;
    return offsets;
  },
  'offsets of nothing': () => new Int32Array(0),
  AbortSignal: () => new AbortController().signal,
  'aborted AbortSignal': () => AbortSignal.abort(new Hostile()),
  'AbortSignal aborted with undefined': () => AbortSignal.abort(undefined),
  'AbortSignal in name': () => Object.create(AbortSignal.prototype),
  'AbortSignal with throwing methods': () =>
    Object.defineProperties(new AbortController().signal, {
      addEventListener: { value: raise },
      removeEventListener: { value: raise },
    }),
  'AbortSignal behind a proxy': () => new Proxy(new AbortController().signal, {}),
  'DeviceBatch in name': () => Object.create(DeviceBatch.prototype),
  'DeviceBatch behind a proxy': () => new Proxy(Object.create(DeviceBatch.prototype), {}),
  counts: () => ({ tokens: 6, rows: 2 }),
  'counts of everything': () => ({
    tokens: 1e308,
    rows: 1e308,
    columns: 1e308,
    expert: { tokens: 0, rows: 0 },
  }),
  'counts of nothing': () => ({ tokens: 0, rows: 0, columns: 0, expert: { tokens: 0, rows: 0 } }),
  'counts of bigints': () => ({ tokens: 6n, rows: 2n, columns: 3n }),
  'list of counts': () => [{ tokens: 6, rows: 2, columns: 3 }],
  'list of bigint counts': () => [{ tokens: 6n, rows: 2n, columns: 3n }],
  'string of a million': () => 'x'.repeat(1e6),
  'lone surrogate': () => '\ud800',
  'YAML alias without an anchor': () => '*a',
  'YAML of many laughs': () =>
    `a: &a [x, x, x, x, x, x, x, x, x]\n${Array.from({ length: 9 }, (_, i) => {
      const [name, before] = [String.fromCharCode(98 + i), String.fromCharCode(97 + i)];
      return `${name}: &${name} [${Array(9).fill(`*${before}`).join(', ')}]`;
    }).join('\n')}`,
  'YAML a thousand brackets deep': () => '['.repeat(20_000),
  'YAML of an odd tag': () => 'algorithm: !!js/function "() => 1"',
  'YAML that merges': () => 'algorithm:\n  <<: 5\n  algorithm_type: ppo',
  'YAML of several documents': () => 'a: 1\n---\nb: 2',
  'deep object': () => {
    let deep = {};
    for (let i = 0; i < 50_000; i++) deep = { algorithm: deep };
    return deep;
  },
  'cyclic object': () => {
    const cyclic: Record<string, unknown> = {};
    cyclic.algorithm = cyclic;
    cyclic.policy_loss_fn_args = cyclic;
    return cyclic;
  },
};

// Names and numbers that mean something to some function, or nearly do.
const WORDS = [
  '',
  'ppo',
  'grpo',
  'verl',
  'tinker',
  'none',
  'k2',
  'default',
  'token-mean',
  'seq-mean-token-sum',
  'float16',
  'bfloat16',
  'float32',
  'float8',
  'cpu',
  'cuda',
  'cuda:0',
  'cuda:99999999999',
  '__proto__',
  'constructor',
  'toString',
  'length',
  'two-side',
  'balance',
  'batch',
  'train',
  'both',
  'algorithm_type: grpo',
  ': : :',
  '\u0000',
];
const NUMBERS = [
  0,
  1,
  2,
  3,
  6,
  -1,
  0.5,
  1.5,
  2 ** 31,
  2 ** 31 - 1,
  -(2 ** 31),
  2 ** 32,
  2 ** 53,
  2 ** 53 - 1,
  5e-324,
  1e-300,
  1e308,
  -1e308,
  3.4e38,
  16_777_217,
];

const { recipe: recipeOf } = fc.letrec<{ recipe: Recipe; leaf: Recipe }>((tie) => ({
  leaf: fc.oneof(
    fc
      .constantFrom(...WORDS, ...NUMBERS, null, true, false)
      .map((value) => ({ kind: 'plain' as const, value })),
    {
      arbitrary: fc.constantFrom(...Object.keys(ODD)).map((name) => ({ kind: 'odd' as const, name })),
      weight: 3,
    },
    {
      arbitrary: fc.record({
        kind: fc.constant('typed' as const),
        type: fc.constantFrom(...TYPES),
        length: fc.constantFrom(0, 1, 2, 3, 5, 6, 6, 6, 7),
        memory: fc.constantFrom(...MEMORIES),
        twist: fc.oneof({ arbitrary: fc.constant('none' as const), weight: 6 }, fc.constantFrom(...TWISTS)),
      }),
      weight: 3,
    },
  ),
  recipe: fc.oneof(
    { withCrossShrink: true, maxDepth: 2 },
    { arbitrary: tie('leaf'), weight: 6 },
    fc.record({
      kind: fc.constant('array' as const),
      items: fc.array(tie('recipe'), { maxLength: 6 }),
      twist: fc.constantFrom(...ARRAY_TWISTS),
    }),
    fc.record({ kind: fc.constant('half' as const), data: tie('recipe'), dtype: tie('leaf') }),
    fc.record({
      kind: fc.constant('object' as const),
      entries: fc.array(
        fc.record({
          key: fc.constantFrom(
            'shape',
            'data',
            'dtype',
            'length',
            'tokens',
            'rows',
            'expert',
            'backend',
            'algorithm',
            'clip_range',
            '0',
          ),
          value: tie('recipe'),
          access: fc.constantFrom(...ACCESSES),
        }),
        { maxLength: 3 },
      ),
    }),
    fc.record({
      kind: fc.constant('proxy' as const),
      of: tie('recipe'),
      mode: fc.constantFrom(...PROXY_MODES),
      after: fc.integer({ min: 0, max: 12 }),
    }),
  ),
}));

/** Recipes of all kinds. */
export const recipe: fc.Arbitrary<Recipe> = recipeOf;
export const access: fc.Arbitrary<Access> = fc.constantFrom(...ACCESSES);
export const proxyMode: fc.Arbitrary<ProxyMode> = fc.constantFrom(...PROXY_MODES);

/** The value of a recipe, a new one each time. */
export function build(of: Recipe): Anything {
  switch (of.kind) {
    case 'plain':
      return of.value;
    case 'odd':
      return ODD[of.name]!();
    case 'typed':
      return buildTyped(of);
    case 'array':
      return buildArray(of);
    case 'half':
      return { data: build(of.data), dtype: build(of.dtype) };
    case 'object': {
      const object = {};
      for (const entry of of.entries) place(object, entry.key, build(entry.value), entry.access);
      return object;
    }
    case 'proxy':
      return behindProxy(build(of.of), of.mode, of.after);
  }
}

function buildTyped({ type, length, memory, twist }: Recipe & { kind: 'typed' }): Anything {
  const realm = twist === 'foreign realm' ? FOREIGN : globalThis;
  const Type = (realm as Anything)[type] as Float32ArrayConstructor;
  const size = Type.BYTES_PER_ELEMENT;
  const bytes = size * length;
  const array = ((): Anything => {
    switch (memory) {
      case 'plain':
        return new Type(length);
      case 'offset':
        return new Type(new realm.ArrayBuffer(bytes + 4 * size), 3 * size, length);
      case 'shared':
        return new Type(new realm.SharedArrayBuffer(bytes) as Anything);
      case 'growable': {
        const buffer = new (realm.SharedArrayBuffer as Anything)(bytes, { maxByteLength: bytes + 8 * size });
        const tracking = new Type(buffer);
        buffer.grow(bytes + 8 * size);
        return tracking;
      }
      case 'resizable':
        return new Type(new (realm.ArrayBuffer as Anything)(bytes, { maxByteLength: 2 * bytes }), 0, length);
      case 'tracking':
        return new Type(new (realm.ArrayBuffer as Anything)(bytes, { maxByteLength: 2 * bytes }));
      case 'shrunk': {
        const buffer = new (realm.ArrayBuffer as Anything)(bytes, { maxByteLength: 2 * bytes });
        const whole = new Type(buffer, 0, length);
        buffer.resize(Math.floor(length / 2) * size);
        return whole;
      }
      case 'detached': {
        const whole = new Type(length);
        structuredClone(whole.buffer, { transfer: [whole.buffer] });
        return whole;
      }
    }
  })();
  const define = (key: string | symbol, descriptor: PropertyDescriptor) =>
    Object.defineProperty(array, key, { configurable: true, ...descriptor });
  switch (twist) {
    case 'own length':
      return define('length', { value: 6 });
    case 'throwing length':
      return define('length', { get: raise });
    case 'longer length': {
      class Longer extends (Type as Anything) {
        get length() {
          return 6;
        }
      }
      return Object.setPrototypeOf(array, Longer.prototype);
    }
    case 'own buffer':
      define('byteLength', { get: raise });
      return define('buffer', { get: raise });
    case 'own constructor':
      return define('constructor', { get: raise });
    case 'nameless constructor':
      return define('constructor', { value: undefined });
    case 'own iterator':
      return define(Symbol.iterator, { value: raise });
    case 'prototype only':
      return Object.create(Type.prototype);
    case 'no prototype':
      return Object.setPrototypeOf(array, null);
    default:
      return array;
  }
}

function buildArray({ items, twist }: Recipe & { kind: 'array' }): Anything {
  const array: Anything[] = items.map(build);
  const methods = [
    'some',
    'every',
    'map',
    'flat',
    'forEach',
    'slice',
    'filter',
    'entries',
    'join',
    'toString',
  ];
  switch (twist) {
    case 'holes':
      array.length += 3;
      break;
    case 'cyclic':
      array.push(array);
      break;
    case 'throwing item':
      Object.defineProperty(array, String(array.length), { get: raise, enumerable: true });
      break;
    case 'own methods':
      for (const name of methods) Object.defineProperty(array, name, { value: 5 });
      break;
    case 'throwing methods':
      for (const name of methods) Object.defineProperty(array, name, { value: raise });
      break;
    case 'own iterator':
      Object.defineProperty(array, Symbol.iterator, { value: raise });
      break;
    case 'species':
      Object.defineProperty(array, 'constructor', { value: { [Symbol.species]: raise } });
      break;
    case 'prototype changed':
      Object.setPrototypeOf(array, null);
      break;
    case 'frozen':
      Object.freeze(array);
      break;
  }
  return array;
}

/** The value behind a proxy, which throws or lies after so many operations. A primitive has none and stays as it is. */
export function behindProxy(of: Anything, mode: ProxyMode, after: number): Anything {
  if (of === null || (typeof of !== 'object' && typeof of !== 'function')) return of;
  if (mode === 'revoked') {
    const { proxy, revoke } = Proxy.revocable(of, {});
    revoke();
    return proxy;
  }
  if (mode === 'transparent') return new Proxy(of, {});
  if (mode === 'huge length')
    return new Proxy(of, {
      get: (target, key) => (key === 'length' ? 2 ** 53 - 1 : Reflect.get(target, key)),
    });
  let operations = 0;
  const traps = ['get', 'has', 'ownKeys', 'getOwnPropertyDescriptor', 'getPrototypeOf'] as const;
  const handler: Record<string, (...given: Anything[]) => unknown> = {};
  for (const trap of traps)
    handler[trap] = (...given) => {
      if (operations++ < after) return (Reflect[trap] as Anything)(...given);
      // A lie that breaks a proxy's invariants is a TypeError of the engine's.
      return mode === 'throws' ? raise() : Symbol('lie');
    };
  return new Proxy(of, handler);
}

/** Puts a value in an object's place, to be come by in a certain way. */
export function place(object: Anything, key: string, value: Anything, how: Access): void {
  let reads = 0;
  const define = (get: () => unknown) =>
    Object.defineProperty(object, key, { get, enumerable: true, configurable: true });
  switch (how) {
    case 'value':
      Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true });
      break;
    case 'getter':
      define(() => value);
      break;
    case 'throws':
      define(raise);
      break;
    case 'throws later':
      define(() => (reads++ === 0 ? value : raise()));
      break;
    case 'changes': {
      const { value: before } = Object.getOwnPropertyDescriptor(object, key) ?? {};
      define(() => (reads++ === 0 ? before : value));
      break;
    }
    case 'detaches': {
      // Looking at one array takes the memory of the others away.
      const { value: before } = Object.getOwnPropertyDescriptor(object, key) ?? {};
      define(() => {
        detachAll(object);
        return before;
      });
      break;
    }
    case 'inherited':
      delete object[key];
      Object.setPrototypeOf(object, { [key]: value });
      break;
  }
}

/** Takes the memory of all arrays in an object away. */
export function detachAll(object: Anything): void {
  for (const [, { value }] of Object.entries(Object.getOwnPropertyDescriptors(object))) {
    const array = value?.data ?? value;
    if (ArrayBuffer.isView(array) && array.buffer instanceof ArrayBuffer && array.buffer.byteLength > 0)
      structuredClone(array.buffer, { transfer: [array.buffer] });
  }
}
