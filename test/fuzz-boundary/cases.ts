/**
 * The cases of the boundary fuzzer. A case takes valid arguments of one public function, replaces some parts of them
 * with hostile values, and calls the function. The case passes if the call returns a result or throws a LossError.
 */
import { inspect, types } from 'node:util';
import fc from 'fast-check';
import { LossError } from '../../lib/index.js';
import { anyText, type Tampering, tamper, tampering } from './losses.js';
import { type Anything, Hostile, isThrown, LONG, MOST_CHARACTERS, THROWN, throwing } from './odd-values.js';
import { access, proxyMode, recipe } from './recipes.js';
import { KEYS, type Target, targets } from './targets.js';
import { type Access, behindProxy, build, type ProxyMode, place, type Recipe } from './values.js';

export type Spoil =
  /** Replaces the whole argument at `index` with a hostile value. */
  | { what: 'argument'; index: number; value: Recipe }
  /** Replaces a property of an argument. `access` says what happens when the function reads the property. */
  | { what: 'key'; index: number; key: string; value: Recipe; access: Access }
  | { what: 'proxy'; index: number; mode: ProxyMode; after: number }
  /** Changes numbers of a program, which is the argument at `index`. */
  | { what: 'program'; index: number; how: Tampering }
  /** Adds a property to Object.prototype during the call, so that every object seems to have it. */
  | { what: 'pollution'; key: string; value: Recipe }
  /** Overwrites or resizes the arrays in the arguments while an asynchronous call is running. */
  | { what: 'meanwhile'; does: 'write' | 'shrink' | 'grow' };

export interface Case {
  target: string;
  spoils: Spoil[];
  /** What hostile values throw; an error by default. */
  throws?: string;
}

// Keys that are too long for the description of a case, by the names that describe them.
const LONG_KEYS: Readonly<Record<string, string>> = {
  'many letters': 'x'.repeat(LONG),
  'many underscores': '_'.repeat(LONG),
};

const byName = new Map(targets.map((target) => [target.name, target]));
const keyOf = (target: Target) => {
  // Keys of this function's own arguments are drawn more often than keys of other functions.
  const own = target
    .valid()
    .flatMap((given) => (given && typeof given === 'object' ? Object.keys(given) : []));
  return fc.oneof(
    { arbitrary: fc.constantFrom(...(own.length > 0 ? own : KEYS)), weight: 3 },
    { arbitrary: fc.constantFrom(...KEYS, ...Object.keys(LONG_KEYS)), weight: 2 },
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

/** Draws a random case of one of the targets. */
export const caseOf = (among: readonly Target[]): fc.Arbitrary<Case> =>
  fc.constantFrom(...among).chain((target) =>
    fc.record({
      target: fc.constant(target.name),
      spoils: fc.array(spoilOf(target), { minLength: 1, maxLength: 3 }),
      throws: fc.constantFrom(...Object.keys(THROWN)),
    }),
  );

const textCase: fc.Arbitrary<Case> = anyText.map((value) => ({
  target: 'a loss of lossFromExpression',
  spoils: [{ what: 'argument', index: 0, value: { kind: 'plain', value } }],
}));

const programCase: fc.Arbitrary<Case> = fc
  .tuple(
    fc.constantFrom(...[...byName.keys()].filter((name) => name.startsWith('the program of '))),
    fc.array(
      fc.record({ what: fc.constant('program' as const), index: fc.nat({ max: 1 }), how: tampering }),
      { minLength: 1, maxLength: 2 },
    ),
  )
  .map(([target, spoils]) => ({ target, spoils }));

/** Draws a random case of any target. The texts and programs of losses have cases of their own. */
export const anyCase: fc.Arbitrary<Case> = fc.oneof(
  { arbitrary: caseOf(targets), weight: 7 },
  { arbitrary: textCase, weight: 1 },
  { arbitrary: programCase, weight: 2 },
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

// Messages of the exceptions that V8 and Node throw for hostile values. If a LossError has a cause with another
// message, the package has a bug.
const ENGINE_WORDS = [
  /revoked/,
  /proxy|'(get|has|ownKeys|getPrototypeOf|getOwnPropertyDescriptor)' on/i,
  /Cannot convert a (Symbol|BigInt)|Cannot convert object to primitive|Cannot mix BigInt|to a BigInt/,
  /(Receiver|this) .*(typed array|incompatible|Class|must be)|incompatible receiver|not a typed array|Illegal invocation/i,
  /Cannot (read|access) private|private (member|field|method)/,
  /must be an instance of|Value of "this"/,
  /detached|out of bounds|out-of-bounds/,
  /is not the array it should be|is missing|offsets/, // thrown by native code if an array changed after it was checked
  /is not (iterable|a function|an object|a constructor)|object is not iterable|Iterator result/,
  /Invalid (typed array|array) length|Array buffer allocation failed|Invalid string length/,
  /Maximum call stack|alias|YAML|Excessive/i,
  /Class constructor .* cannot be invoked|Class extends/,
  /CreateListFromArrayLike|requires that the property of the first argument/,
];

/** Returns whether the cause of a LossError may come from the caller's values, not from a bug of the package. */
function isOfCaller(cause: unknown): boolean {
  if (cause === undefined || isThrown(cause) || cause instanceof Hostile) return true;
  if (cause instanceof LossError) return isOfCaller(cause.cause);
  if (cause instanceof Error && cause.name === 'YAMLParseError') return true;
  if (cause instanceof Error) return ENGINE_WORDS.some((words) => words.test(cause.message));
  return typeof cause === 'object'; // the reason why a device is unavailable
}

function judge(error: unknown, { spoils }: Case): void {
  if (!(error instanceof LossError)) throw new Error(`expected a LossError, got ${inspect(error)}`);
  if (!CODES.includes(error.code))
    throw new Error(`expected a documented code, got ${error.code}`, { cause: error });
  if (error.message.length > MOST_CHARACTERS)
    throw new Error(`expected a short message, got ${error.message.length} characters`, { cause: error });
  // If Object.prototype was polluted, any code may have read a hostile value, so every cause is accepted.
  const polluted = spoils.some(({ what }) => what === 'pollution');
  if (error.code !== 'ERR_ABORTED' && !polluted && !isOfCaller(error.cause))
    throw new Error(`expected a cause in the caller's values, got ${inspect(error.cause)}`, {
      cause: error,
    });
}

function checkResult(result: Anything): void {
  if (result === null || typeof result !== 'object' || !Object.hasOwn(result, 'metrics')) return;
  for (const [name, value] of Object.entries(result.metrics))
    if (typeof value !== 'number')
      throw new Error(`metric ${name}: expected a number, got a ${typeof value}`);
  if (Object.hasOwn(result, 'loss') && typeof result.loss !== 'number')
    throw new Error(`loss: expected a number, got a ${typeof result.loss}`);
}

/**
 * Runs a case.
 * @throws Error if the call neither returns a result nor throws a LossError
 */
export async function run(one: Case): Promise<void> {
  const target = byName.get(one.target);
  if (!target) throw new Error(`target: expected a public function, got ${one.target}`);
  throwing(one.throws ?? 'an error');
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
      case 'program': {
        const { how } = spoil;
        given[spoil.index][how.array] = tamper(given[spoil.index][how.array], how);
        break;
      }
      case 'pollution':
        if (!(spoil.key in Object.prototype) && !(spoil.key in LONG_KEYS))
          pollution.push([spoil.key, build(spoil.value)]);
        break;
      case 'meanwhile':
        meanwhile = MEANWHILE[spoil.does];
    }
  }
  try {
    const outcome = whilePolluted(pollution, () => target.call(given));
    if (meanwhile) forEachArray(given, meanwhile);
    // A function may return one of its arguments, such as a checked configuration. This is not a result to check.
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
    place(object, LONG_KEYS[key] ?? key, built, access);
  } catch {
    // The property cannot be set, because the object is frozen or behind a proxy. So the object is hostile already.
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
          // The array throws when it is touched, so it is hostile already.
        }
  }
}
