/**
 * A case: one public function, its arguments spoilt in some places; and what must come of it, a result or a LossError.
 */
import { types } from 'node:util';
import fc from 'fast-check';
import { LossError } from '../../lib/index.js';
import { KEYS, type Target, targets } from './targets.js';
import {
  type Access,
  type Anything,
  access,
  behindProxy,
  build,
  Hostile,
  type ProxyMode,
  place,
  proxyMode,
  type Recipe,
  recipe,
} from './values.js';

export type Spoil =
  /** The argument itself is another. */
  | { what: 'argument'; index: number; value: Recipe }
  /** Something that it holds is another, or is come by otherwise. */
  | { what: 'key'; index: number; key: string; value: Recipe; access: Access }
  | { what: 'proxy'; index: number; mode: ProxyMode; after: number }
  /** Every object seems to have it, for the length of the call. */
  | { what: 'pollution'; key: string; value: Recipe }
  /** The caller goes on writing into its arrays, or resizing them, while they are read. */
  | { what: 'meanwhile'; does: 'write' | 'shrink' | 'grow' };

export interface Case {
  target: string;
  spoils: Spoil[];
}

const byName = new Map(targets.map((target) => [target.name, target]));
const keyOf = (target: Target) => {
  // The target's own keys more often than those of others.
  const own = target
    .valid()
    .flatMap((given) => (given && typeof given === 'object' ? Object.keys(given) : []));
  return fc.oneof(
    { arbitrary: fc.constantFrom(...(own.length > 0 ? own : KEYS)), weight: 3 },
    { arbitrary: fc.constantFrom(...KEYS), weight: 2 },
  );
};

function spoilOf(target: Target): fc.Arbitrary<Spoil> {
  const key = keyOf(target);
  const index = fc.nat({ max: Math.max(0, target.valid().length - 1) });
  return fc.oneof(
    { arbitrary: fc.record({ what: fc.constant('argument' as const), index, value: recipe }), weight: 3 },
    {
      arbitrary: fc.record({ what: fc.constant('key' as const), index, key, value: recipe, access }),
      weight: 6,
    },
    {
      arbitrary: fc.record({
        what: fc.constant('proxy' as const),
        index,
        mode: proxyMode,
        after: fc.integer({ min: 0, max: 40 }),
      }),
      weight: 2,
    },
    { arbitrary: fc.record({ what: fc.constant('pollution' as const), key, value: recipe }), weight: 1 },
    {
      arbitrary: fc.record({
        what: fc.constant('meanwhile' as const),
        does: fc.constantFrom('write' as const, 'shrink' as const, 'grow' as const),
      }),
      weight: 1,
    },
  );
}

/** Cases of all functions. */
export const anyCase: fc.Arbitrary<Case> = fc
  .constantFrom(...targets)
  .chain((target) =>
    fc
      .array(spoilOf(target), { minLength: 1, maxLength: 3 })
      .map((spoils) => ({ target: target.name, spoils })),
  );

const CODES: readonly string[] = [
  'ERR_MISSING_INPUT',
  'ERR_SHAPE_MISMATCH',
  'ERR_INVALID_INPUT',
  'ERR_INVALID_OPTION',
  'ERR_UNKNOWN_NAME',
  'ERR_DEVICE_UNAVAILABLE',
  'ERR_OUT_OF_MEMORY',
  'ERR_ABORTED',
];

// What the engine says of values that are not what they seem. Any other TypeError behind a LossError is a fault of the
// package's own that was mistaken for one of the caller's.
const ENGINE_WORDS = [
  /revoked/,
  /proxy|'(get|has|ownKeys|getPrototypeOf|getOwnPropertyDescriptor)' on/i,
  /Cannot convert a (Symbol|BigInt)|Cannot convert object to primitive|Cannot mix BigInt|to a BigInt/,
  /(Receiver|this) .*(typed array|incompatible|Class|must be)|incompatible receiver|not a typed array|Illegal invocation/i,
  /Cannot (read|access) private|private (member|field|method)/,
  /must be an instance of|Value of "this"/,
  /detached|out of bounds|out-of-bounds/,
  /is not the array it should be|is missing|offsets/, // native code's, of arrays that changed after they were looked at
  /is not (iterable|a function|an object|a constructor)|object is not iterable|Iterator result/,
  /Invalid (typed array|array) length|Array buffer allocation failed|Invalid string length/,
  /Maximum call stack|alias|YAML|Excessive/i,
  /Class constructor .* cannot be invoked|Class extends/,
  /CreateListFromArrayLike|requires that the property of the first argument/,
];

/** Whether a LossError's cause is the caller's own doing. */
function isOfCaller(cause: unknown): boolean {
  if (cause === undefined || cause instanceof Hostile) return true;
  if (cause instanceof LossError) return isOfCaller(cause.cause);
  if (cause instanceof Error && cause.name === 'YAMLParseError') return true;
  if (cause instanceof Error) return ENGINE_WORDS.some((words) => words.test(cause.message));
  return typeof cause === 'object'; // an obstacle, of devices
}

function judge(error: unknown, { spoils }: Case): void {
  if (!(error instanceof LossError))
    throw new Error(`no LossError: ${error instanceof Error ? error.stack : String(error)}`, {
      cause: error,
    });
  if (!CODES.includes(error.code)) throw new Error(`a LossError of code ${error.code}`, { cause: error });
  // Where every object has what nobody gave it, anything may have been read.
  const polluted = spoils.some(({ what }) => what === 'pollution');
  if (error.code !== 'ERR_ABORTED' && !polluted && !isOfCaller(error.cause))
    throw new Error(`a fault inside: ${(error.cause as Error)?.stack ?? String(error.cause)}`, {
      cause: error,
    });
}

function checkResult(result: Anything): void {
  if (result === null || typeof result !== 'object' || !Object.hasOwn(result, 'metrics')) return;
  for (const [name, value] of Object.entries(result.metrics))
    if (typeof value !== 'number') throw new Error(`metric ${name} is a ${typeof value}`);
  if (Object.hasOwn(result, 'loss') && typeof result.loss !== 'number')
    throw new Error(`loss is a ${typeof result.loss}`);
}

/**
 * Runs a case.
 * @throws Error where it gives neither a result nor a LossError.
 */
export async function run(one: Case): Promise<void> {
  const target = byName.get(one.target);
  if (!target) throw new Error(`there is no function ${one.target}`);
  const given = target.valid();
  const pollution: [key: string, value: unknown][] = [];
  let meanwhile: ((array: Anything) => void) | undefined;
  for (const spoil of one.spoils) {
    switch (spoil.what) {
      case 'argument':
        given[spoil.index] = build(spoil.value);
        break;
      case 'key':
        spoilKey(given[spoil.index], spoil);
        break;
      case 'proxy':
        given[spoil.index] = behindProxy(given[spoil.index], spoil.mode, spoil.after);
        break;
      case 'pollution':
        if (!(spoil.key in Object.prototype)) pollution.push([spoil.key, build(spoil.value)]);
        break;
      case 'meanwhile':
        meanwhile = MEANWHILE[spoil.does];
    }
  }
  try {
    const outcome = whilePolluted(pollution, () => target.call(given));
    if (meanwhile) forEachArray(given, meanwhile);
    // What came in and goes out again, as a configuration that has been checked, is the caller's.
    if (!given.includes(outcome)) checkResult(types.isPromise(outcome) ? await outcome : outcome);
  } catch (error) {
    judge(error, one);
  } finally {
    target.restore?.();
  }
}

function spoilKey(object: Anything, { key, value, access }: Spoil & { what: 'key' }): void {
  if (object === null || typeof object !== 'object') return;
  const built = build(value);
  try {
    place(object, key, built, access);
  } catch {
    // Frozen, or behind a proxy: what can be spoilt no more has been spoilt enough.
  }
}

function whilePolluted<T>(pollution: readonly [key: string, value: unknown][], act: () => T): T {
  const shared = { configurable: true, writable: true, enumerable: false };
  for (const [key, value] of pollution) Object.defineProperty(Object.prototype, key, { ...shared, value });
  try {
    return act();
  } finally {
    for (const [key] of pollution) delete (Object.prototype as Anything)[key];
  }
}

const MEANWHILE: Record<'write' | 'shrink' | 'grow', (array: Anything) => void> = {
  write: (array) => array.fill(array instanceof Uint8Array ? 0 : Number.NaN),
  shrink: ({ buffer }) => buffer.resizable && buffer.resize(0),
  grow: ({ buffer }) => buffer.resizable && buffer.resize(buffer.maxByteLength),
};

function forEachArray(given: readonly Anything[], act: (array: Anything) => void): void {
  for (const value of given) {
    if (value === null || typeof value !== 'object' || types.isProxy(value) || Array.isArray(value)) continue;
    for (const [, descriptor] of Object.entries(Object.getOwnPropertyDescriptors(value)))
      if (ArrayBuffer.isView(descriptor.value))
        try {
          act(descriptor.value);
        } catch {
          // An array that throws when it is touched.
        }
  }
}
