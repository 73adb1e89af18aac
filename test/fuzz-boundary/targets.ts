/**
 * The targets of the boundary fuzzer. A target is a public function of the package with valid arguments, some parts of
 * which the fuzzer replaces with hostile values. The functions are found in the package's exports: plain functions,
 * constructors, static methods, and methods of objects and registries. It is an error if arguments.ts has no arguments
 * for a function. So no new function can be forgotten.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { types } from 'node:util';
import { fromTrinityArgs } from '../../lib/base/options.js';
import * as api from '../../lib/index.js';
import { requiredArgs } from '../support/draw-arguments.js';
import {
  COLUMNS,
  CONSTRUCTORS,
  CONTROLLER,
  column,
  complete,
  config,
  FUNCTIONS,
  METHODS,
  OF_LOGITS,
  ofVocabulary,
  options,
  ROWS,
  rewarded,
  TOKENS,
  whole,
} from './arguments.js';
import { hiddenOfTokens, ofRows, rowsAndGradients, teacherOfTokens } from './logits.js';
import { ofLosses } from './losses.js';
import type { Anything } from './odd-values.js';

export interface Target {
  /** The name of the function, for example `PPOPolicyLossFn#compute`. */
  name: string;
  /** Makes new valid arguments for one call. */
  valid(): Anything[];
  call(given: readonly Anything[]): unknown;
  /** Undoes the global changes that a call may have made. */
  restore?(): void;
}

/** Constructors of exported classes that the fuzzer does not call, with the reason. */
export const EXEMPT: Readonly<Record<string, string>> = {
  'AdvantageFn constructor': 'internal: called by the subclasses, which are targets',
  'AlgorithmRegistry constructor': 'internal: its only instance is exported',
  'AlgorithmType constructor': 'algorithms have no instances',
  'ColumnLossFn constructor': 'internal: called by the subclasses, which are targets',
  'CorrectionFn constructor': 'internal: called by the subclasses, which are targets',
  'DeviceBatch constructor': 'internal: called by upload()',
  'DeviceGradient constructor': 'internal: called by compute()',
  'EntropyLossFn constructor': 'internal: called by the subclasses, which are targets',
  'LossError constructor': 'thrown by the package, not called by users',
  'KLFn constructor': 'internal: called by the subclasses, which are targets',
  'Objective constructor': 'internal: called by objective()',
  'LogitsLossFn constructor': 'internal: called by the subclasses, which are targets',
  'PolicyLossFn constructor': 'internal: called by the subclasses, which are targets',
  'Registry constructor': 'internal: its instances are exported',
  'RewardLossFn constructor': 'internal: called by the subclasses, which are targets',
  'ValueLossFn constructor': 'internal: called by the subclasses, which are targets',
};

/**
 * Names of the methods that are marked `@internal` in lib/. They are not fuzzed, because the package calls them only
 * with checked arguments.
 */
const INTERNAL = new Set(internalMethods());

function internalMethods(): string[] {
  const lib = new URL('../../lib/', import.meta.url);
  return readdirSync(lib, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts'))
    .flatMap((file) => [
      ...readFileSync(new URL(file, lib), 'utf8').matchAll(
        /@internal(?:(?!\*\/)[\s\S])*\*\/\s*(?:(?:static|override|abstract|async|readonly|get)\s+)*\*?(\w+)[(<:]/g,
      ),
    ])
    .map(([, name]) => name!);
}

const isClass = (value: unknown) =>
  typeof value === 'function' && /^class\b/.test(Function.prototype.toString.call(value));

// Objects of the JavaScript language, whose members are not targets.
const LANGUAGE: readonly object[] = [Object.prototype, Function.prototype, Error, Error.prototype];

/** Yields the name of each function and accessor of an object and its prototypes, and whether it is a function. */
function* membersOf(object: object): Generator<[name: string, isFunction: boolean]> {
  const seen = new Set<string>(['constructor']);
  for (let at = object; !LANGUAGE.includes(at); at = Object.getPrototypeOf(at)) {
    for (const [name, { value, get }] of Object.entries(Object.getOwnPropertyDescriptors(at))) {
      if (seen.has(name) || (typeof value !== 'function' && !get)) continue;
      seen.add(name);
      yield [name, typeof value === 'function'];
    }
  }
}

function argumentsOf(name: string, among: Record<string, () => Anything[]>): () => Anything[] {
  const found = among[name];
  if (!found) throw new Error(`${name}: expected its arguments in arguments.ts, got none`);
  return found;
}

/** Yields a target for each public method and accessor of an object. The targets' names begin with `owner`. */
function* methods(
  owner: string,
  object: Anything,
  restore?: () => void,
  given: Record<string, () => Anything[]> = {},
): Generator<Target> {
  for (const [name, isFunction] of membersOf(object)) {
    if (INTERNAL.has(name)) continue;
    // A loss that reads the whole batch refuses parts.
    if (name === 'merge' && object.readsWholeBatch === true) continue;
    const what = `${owner}${name}`;
    if (!isFunction) yield { name: what, valid: () => [], call: () => object[name] };
    else {
      const valid = argumentsOf(name, { ...METHODS, ...given });
      yield { name: what, valid, call: (args) => object[name](...args), ...(restore && { restore }) };
    }
  }
}

type Registered = {
  names(): string[];
  get(name: string): unknown;
  register(name: string, of: Anything, options?: { replace: boolean }): void;
};
const REGISTRIES: readonly api.Registry<unknown>[] = Object.values<unknown>(api).filter(
  (value) => value instanceof api.Registry,
);

/** Makes an instance of a class as a user would. Returns undefined if users cannot make one. */
function objectOf(cls: Anything): Anything {
  for (const registry of REGISTRIES)
    for (const name of registry.names())
      if (registry.get(name) === cls)
        // The batches here have two rows, and not three.
        return registry.create(name, {
          ...requiredArgs(cls.declaration),
          ...(name === 'trl/tpo' && { tpo_alpha: 0 }),
        });
  if (cls === api.Objective)
    return api.ALGORITHM_TYPE.get('grpo').objective({ kl_loss_fn_args: { kl_coef: 0.1 } });
  if (cls === api.KeyMapper) return new api.KeyMapper({ log_prob: 'logprob' });
  return undefined;
}

function* ofClass(name: string, cls: Anything): Generator<Target> {
  if (!(`${name} constructor` in EXEMPT) && !(cls.prototype instanceof api.AlgorithmType)) {
    const valid =
      CONSTRUCTORS[name] ??
      (() => [fromTrinityArgs({ ...cls.defaultArgs(), ...requiredArgs(cls.declaration) })]);
    yield { name: `new ${name}`, valid, call: (given) => new cls(...given) };
  }
  const restoreMappers = () => {
    for (const [backend, mapper] of MAPPERS) api.KeyMapper.register(backend, mapper, { replace: true });
  };
  if (cls === api.KeyMapper)
    yield* methods(`${name}.`, cls, restoreMappers, {
      get: () => ['verl'],
      register: () => ['fuzzed', new api.KeyMapper({ a: 'logprob' }), { replace: true }],
    });
  else yield* methods(`${name}.`, cls);
  const object = objectOf(cls);
  // The gradient of rewards has no 16 bits.
  const ofRewards = { computeSync: () => [whole(), { grad: true }] };
  const given = {
    ...mergeOf(object),
    ...(object instanceof api.RewardLossFn && ofRewards),
    ...(object instanceof api.LogitsLossFn && OF_LOGITS),
  };
  if (object) yield* methods(`${name}#`, object, undefined, given);
}

/** Returns the arguments of the methods that merge parts: one part, which the object computes, and its counts. */
function mergeOf(object: Anything): Record<string, () => Anything[]> {
  const batch = object instanceof api.LogitsLossFn ? ofVocabulary : whole;
  const merged = (compute: string) => () => {
    const { part } = object[compute](batch(), { part: true });
    return [[part], object.countSync(batch())];
  };
  return { merge: merged('computeSync'), mergeKlLoss: merged('calculateKlLossSync') };
}

const MAPPERS = api.KeyMapper.names().map((backend) => [backend, api.KeyMapper.get(backend)] as const);

function* ofRegistry(name: string, registry: Registered): Generator<Target> {
  const known = registry.names().map((key) => [key, registry.get(key)] as const);
  const restore = () => {
    for (const [key, cls] of known) registry.register(key, cls, { replace: true });
  };
  const [first] = registry.names() as [string];
  yield* methods(`${name}.`, registry, restore, {
    get: () => [first],
    create: () => [first, {}, { backend: 'verl' }],
    register: () => [`fuzzed ${name}`, registry.get(first), { replace: true }],
  });
}

/** Yields targets for the objectives of all algorithms, because their functions read different columns. */
function* ofAlgorithms(): Generator<Target> {
  for (const name of api.ALGORITHM_TYPE.names()) {
    const objective = api.ALGORITHM_TYPE.get(name).objective();
    for (const [method, batch] of [
      ['compute', rewarded],
      ['computeSync', rewarded],
      ['count', rewarded],
    ] as const)
      yield {
        name: `${name}'s objective#${method}`,
        valid: () => [batch(), { grad: true, seed: 1 }],
        call: (given) => (objective[method] as Anything)(...given),
      };
  }
}

// Valid arguments of the methods of batches and gradients on a device.
const ON_DEVICE: Record<string, () => Anything[]> = {
  update: () => [
    { logprob: column(-2), advantages: column(1), values: column(0.5) },
    { backend: 'verl', signal: CONTROLLER.signal, stream: 0n },
  ],
  has: () => ['logprob'],
  toHost: () => [],
  ipcHandle: () => [],
  dispose: () => [],
};

/** Returns whether the calls of a target need a CUDA device. */
export const needsDevice = ({ name }: Target) =>
  /^(upload|trimDevice|allocPinned|Device\w+#.*|.* a pointer)$/.test(name);

// Defines a property, unless the fuzzer has replaced the object.
function define(object: Anything, key: string, value: unknown): void {
  if (object !== null && typeof object === 'object' && !types.isProxy(object))
    Reflect.defineProperty(object, key, { value });
}

// Fuzzes the members of a column that is a pointer. The pointer itself is that of a gradient, unless it is replaced.
const ofPointer = (
  name: string,
  more: () => Anything[],
  use: (resident: api.DeviceBatch, column: Anything, ...more: readonly Anything[]) => Promise<unknown>,
): Target => ({
  name,
  valid: () => [{ dtype: 'float32', device: 'cuda:0', shape: [ROWS, COLUMNS] }, ...more()],
  async call([column, ...others]) {
    using resident = await api.upload(whole() as Anything, 'cuda');
    const { deviceGrad } = await new api.SFTLossFn().compute(resident, { grad: 'device' });
    using grad = deviceGrad!;
    define(column, 'pointer', grad.pointer);
    await use(resident, column, ...others);
  },
});

const POINTERS: readonly Target[] = [
  ofPointer(
    'DeviceBatch#update of a pointer',
    () => [],
    (resident, column) => resident.update({ logprob: column }),
  ),
  ofPointer(
    'logprobs of a pointer',
    () => [{ ...ofRows(), device: 'cuda:0', stream: 0n }],
    (_, logits, options) => api.logprobs(logits, options),
  ),
  ofPointer(
    'logprobsBackward of a pointer',
    () => [{ ...rowsAndGradients(), device: 'cuda:0', stream: 0n }],
    (_, logits, options) => api.logprobsBackward(logits, options),
  ),
  ofPointer(
    'logprobsBackward to a pointer',
    () => [{ ...rowsAndGradients(), device: 'cuda:0', stream: 0n }],
    (_, out, options) => {
      define(options, 'out', out);
      return api.logprobsBackward(column(1), options);
    },
  ),
];

// Each call uploads a batch first, and computes a gradient of it on the device.
function* onDevice(): Generator<Target> {
  for (const cls of [api.DeviceBatch, api.DeviceGradient])
    for (const [name, isFunction] of membersOf(cls.prototype)) {
      if (INTERNAL.has(name)) continue;
      yield {
        name: `${cls.name}#${name}`,
        valid: isFunction ? argumentsOf(name, ON_DEVICE) : () => [],
        async call(given) {
          using resident = await api.upload(whole() as Anything, 'cuda');
          const { deviceGrad } = await new api.SFTLossFn().compute(resident, { grad: 'shareable' });
          using grad = deviceGrad!;
          const object = (cls === api.DeviceBatch ? resident : grad) as Anything;
          return isFunction ? await object[name](...given) : object[name];
        },
      };
    }
}

/** All targets. */
export const targets: readonly Target[] = [...walk()];

function* walk(): Generator<Target> {
  const threads = api.devices()[0].threads;
  for (const [name, value] of Object.entries(api)) {
    if (isClass(value)) yield* ofClass(name, value);
    else if (typeof value === 'function')
      yield {
        name,
        valid: argumentsOf(name, FUNCTIONS),
        call: (given) => (value as Anything)(...given),
        ...(name === 'setThreads' && { restore: () => api.setThreads(threads) }),
      };
    else if (typeof value === 'object' && 'names' in value) yield* ofRegistry(name, value as Registered);
    else throw new Error(`${name}: expected a class, a function or a registry`);
  }
  yield* ofAlgorithms();
  yield* onDevice();
  yield* POINTERS;
  yield* ofLosses(whole, complete, TOKENS);
}

/** The keys that any function reads in its arguments. */
export const KEYS: readonly string[] = [
  ...new Set([
    ...Object.keys(whole()),
    ...Object.keys(hiddenOfTokens(TOKENS)),
    ...Object.keys(teacherOfTokens(TOKENS)),
    ...['tokenWeights', 'pairIds', 'refLogps', 'klRefLogps', 'klEstimate', 'answerMask'],
    ...['gradLogits', 'gradHidden', 'gradWeight', 'gradBias'],
    'cuSeqlens',
    'cu_seqlens',
    'old_log_probs',
    'rollout_log_probs',
    'response_mask',
    'token_level_scores',
    'repeats',
    'counts',
    'part',
    'advantage',
    ...Object.keys(options()),
    ...Object.keys(rowsAndGradients()),
    'tokenIds',
    'offsets',
    'out',
    'returns',
    'normalizer',
    'lossAggMode',
    'algorithm',
    'algorithm_type',
    'kl_penalty_fn',
    'mode',
    'synchronizer',
    ...Object.keys(config()),
    ...REGISTRIES.flatMap((registry) => registry.names().map((name) => registry.get(name).defaultArgs()))
      .flatMap((args) => Object.keys(args))
      .flatMap((key) => [key, ...Object.keys(fromTrinityArgs({ [key]: 0 }))]),
  ]),
];
