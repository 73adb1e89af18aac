/**
 * Makes hostile values, which a caller might pass by mistake or on purpose. A recipe describes each value as plain
 * data. So a case can be printed, shrunk and repeated, even if the value itself could not.
 */
import { runInNewContext } from 'node:vm';
import { type Anything, ODD, raise } from './odd-values.js';

export const TYPES = [
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
export const MEMORIES = [
  'plain',
  'offset',
  'shared',
  'growable',
  'resizable',
  'tracking',
  'shrunk',
  'detached',
] as const;
export const TWISTS = [
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
export const ARRAY_TWISTS = [
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
export const PROXY_MODES = ['transparent', 'throws', 'revoked', 'lies', 'huge length', 'endless'] as const;
export const ACCESSES = [
  'value',
  'getter',
  'throws',
  'throws later',
  'changes',
  'detaches',
  'inherited',
] as const;

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

/** Makes a new value according to a recipe. */
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

/**
 * Puts a value behind a proxy that misbehaves as `mode` says. In the modes 'throws' and 'lies', the proxy first handles
 * `after` operations correctly. Returns primitives unchanged.
 */
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
      get: (target, key) => (key === 'length' ? LENGTH : Reflect.get(target, key)),
    });
  if (mode === 'endless') return endless(of);
  let operations = 0;
  const traps = ['get', 'has', 'ownKeys', 'getOwnPropertyDescriptor', 'getPrototypeOf'] as const;
  const handler: Record<string, (...given: Anything[]) => unknown> = {};
  for (const trap of traps)
    handler[trap] = (...given) => {
      if (operations++ < after) return (Reflect[trap] as Anything)(...given);
      // If this wrong answer breaks a rule that proxies must obey, V8 throws a TypeError.
      return mode === 'throws' ? raise() : Symbol('lie');
    };
  return new Proxy(of, handler);
}

const LENGTH = 2 ** 53 - 1;
// No function reads more elements of a list whose length it cannot check.
const MOST_READS = 200_000;

// Repeats the first element of an array without end. Reading it without end is an error that the caller did not throw.
function endless(of: Anything): Anything {
  let reads = 0;
  return new Proxy(of, {
    has: () => true,
    get: (target, key) => {
      if (key === 'length') return LENGTH;
      if (typeof key === 'symbol' || !/^\d+$/.test(key)) return Reflect.get(target, key);
      if (reads++ > MOST_READS) throw new Error('elements were read without end');
      return Reflect.get(target, 0);
    },
  });
}

/** Defines a property of an object. `how` says what happens when the property is read. */
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
      // Reading this property detaches the memory of the object's other arrays.
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

/** Detaches the memory of all typed arrays in an object's properties, as a transfer to another thread would. */
export function detachAll(object: Anything): void {
  for (const [, { value }] of Object.entries(Object.getOwnPropertyDescriptors(object))) {
    const array = value?.data ?? value;
    if (ArrayBuffer.isView(array) && array.buffer instanceof ArrayBuffer && array.buffer.byteLength > 0)
      structuredClone(array.buffer, { transfer: [array.buffer] });
  }
}
