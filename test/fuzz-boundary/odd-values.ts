/** Hostile values, each with a name: odd objects, numbers, arrays, signals and YAML texts, and what they throw. */
import { DeviceBatch } from '../../lib/index.js';

// biome-ignore lint/suspicious/noExplicitAny: hostile values have any type
export type Anything = any;

/** The most characters of an error's message. Some messages list all keys that a function has. */
export const MOST_CHARACTERS = 10_000;
/** So many characters that no message may repeat them. */
export const LONG = MOST_CHARACTERS + 2000;

/** An exception that hostile values throw when they are used. */
export class Hostile extends Error {}

const explode = () => {
  throw new Hostile('thrown while an exception was read');
};
const EXPLOSIVE: ProxyHandler<object> = Object.fromEntries(
  ['get', 'has', 'ownKeys', 'getOwnPropertyDescriptor', 'getPrototypeOf'].map((trap) => [trap, explode]),
);
const defined = (name: string, descriptor: PropertyDescriptor) =>
  Object.defineProperty(new Hostile(), name, descriptor);

/** Functions that make what hostile values throw, by its name. Bug reports contain these names too. */
export const THROWN: Record<string, () => Anything> = {
  'an error': () => new Hostile('thrown by the caller'),
  'an error with a throwing message': () => defined('message', { get: explode }),
  'an error with throwing members': () =>
    ['name', 'code', 'cause', 'stack', 'at', 'option'].reduce(
      (error, name) => Object.defineProperty(error, name, { get: explode }),
      defined('message', { value: { toString: explode } }),
    ),
  'a TypeError with a throwing message': () =>
    Object.defineProperty(defined('name', { value: 'TypeError' }), 'message', { get: explode }),
  'an error behind a throwing prototype': () =>
    Object.setPrototypeOf(new Hostile(), new Proxy({}, EXPLOSIVE)),
  'an error without a prototype': () => Object.setPrototypeOf(new Hostile(), null),
  'a proxy of an error': () => new Proxy(new Hostile(), {}),
  'a proxy that throws': () => new Proxy(new Hostile(), EXPLOSIVE),
  'a revoked proxy': () => {
    const { proxy, revoke } = Proxy.revocable({}, {});
    revoke();
    return proxy;
  },
  'an object without a prototype': () => Object.create(null),
  'a symbol': () => Symbol('thrown'),
  nothing: () => undefined,
};

let makeThrown = THROWN['an error']!;
const wereThrown = new Set<unknown>();

/** Chooses what raise() throws, and forgets what it threw before. */
export function throwing(name: string): void {
  makeThrown = THROWN[name]!;
  wereThrown.clear();
}

/** Returns whether an exception is one that the caller threw. Reads nothing of it. */
export function isThrown(error: unknown): boolean {
  return wereThrown.has(error);
}

const MANY = Array.from({ length: 1e5 }, () => 1);

/** Throws an exception, as the caller's own code might do. */
export function raise(): never {
  const thrown = makeThrown();
  wereThrown.add(thrown);
  throw thrown;
}

/** Throws undefined. */
function raiseNothing(): never {
  throw undefined;
}

class Own {
  readonly #secret = 1;
  get secret(): number {
    return this.#secret;
  }
}

/**
 * Functions that make the hostile values, by the name of the value. Bug reports contain these names, so a name must not
 * change.
 */
export const ODD: Record<string, () => Anything> = {
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
  '2n**1000000n': () => 2n ** 1_000_000n,
  'symbol of a long name': () => Symbol('x'.repeat(LONG)),
  'object of a class with a long name': () => Object.create({ constructor: { name: 'x'.repeat(LONG) } }),
  'object of long keys': () => ({ ['x'.repeat(LONG)]: 1, ['_'.repeat(LONG)]: 1 }),
  'long string': () => 'x'.repeat(LONG),
  'YAML of quotation marks': () => '"'.repeat(LONG),
  'YAML of many keys': () => Array.from({ length: 10_000 }, (_, i) => `${i.toString(36)}:`).join('\n'),
  'error with a long message': () => new Hostile('x'.repeat(LONG)),
  'interpolation of spaces': () => `\${a,${' '.repeat(1e6)}`,
  'interpolation of a long path': () => `\${${'a.'.repeat(5e5)}a}`,
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
