// The names in modules that pickles use, and what they build. Nothing else is built, and nothing is imported.
import { Bytes } from '../bytes.js';
import type { FileBudget } from '../file-budget.js';
import { DTYPE_NAMES, dtypeNamed, Storage, Strided } from '../torch/strided.js';
import { rebuildConsolidated } from '../torch/tensordict.js';
import { arrayFromBuffer, NumpyArray, NumpyDtype, scalarOf } from './numpy.js';
import { BadObject, Instance, LongText, Opaque, PyList } from './values.js';

/** What a function of a pickle may use: see PickleContext. */
interface CallContext {
  nested(bytes: Bytes, depth: number): unknown;
  depth: number;
  budget: FileBudget;
}

/** What a name stands for: a class, a function or a value. */
export class Global {
  readonly name: string;
  /** Builds what the function returns. */
  readonly call?: (args: readonly unknown[], context: CallContext) => unknown;
  /** Makes an object of the class, without its state. */
  readonly create?: () => unknown;
  /** What an element type or a type of storages stands for: a key of DTYPES. */
  readonly dtype?: string;

  constructor(name: string, does: Pick<Global, 'call' | 'create' | 'dtype'> = {}) {
    this.name = name;
    Object.assign(this, does);
  }
}

/**
 * Returns what a name stands for: an opaque value if it is not in the list, and undefined if it only serves to run a
 * program. A name with a dot, which is that of an attribute, is not in the list.
 */
export function globalOf(module: string, name: string): Global | Opaque | undefined {
  const whole = `${module}.${name}`;
  const known = name.includes('.') ? undefined : GLOBALS.get(whole);
  if (known) return known;
  const [top] = module.split('.', 1);
  if (PROGRAMS.has(top!) || (/^(__builtin__|builtins)$/.test(module) && PROGRAM_BUILTINS.has(name)))
    return undefined;
  return new Opaque(whole);
}

// Nothing of these would run, and no list of them can be complete. Who gets such a file should learn what it is. Python
// itself writes getattr for some enumerations.
const PROGRAMS = new Set('os posix nt subprocess runpy importlib pty ctypes code webbrowser'.split(' '));
const PROGRAM_BUILTINS = new Set(
  '__import__ apply breakpoint compile eval exec execfile input open'.split(' '),
);

const GLOBALS = new Map<string, Global>();

function define(names: readonly string[], does?: Pick<Global, 'call' | 'create' | 'dtype'>): void {
  for (const name of names) GLOBALS.set(name, new Global(name, does));
}

const RECORDS = [
  'trinity.common.experience.Experience',
  'trinity.common.experience.EID',
  'trinity.common.experience.CustomField',
  'verl.protocol.DataProto',
  'roll.distributed.scheduler.protocol.DataProto',
];
const SKYRL = ['skyrl.backends.skyrl_train.training_batch', 'skyrl_train.training_batch'];
for (const module of SKYRL) RECORDS.push(`${module}.TrainingInputBatch`, `${module}.TensorList`);
for (const name of RECORDS) define([name], { create: () => new Instance(name) });
define(
  SKYRL.map((module) => `${module}._rebuild_tensor_batch`),
  {
    call([type, state]) {
      if (!(type instanceof Global)) throw new BadObject('the class of a batch', 'another value');
      const batch = new Instance(type.name);
      batch.build(state);
      return batch;
    },
  },
);

define(['torch._utils._rebuild_tensor_v2'], {
  call([storage, offset, shape, strides]) {
    if (storage instanceof Opaque) return storage;
    if (!(storage instanceof Storage) || !Array.isArray(shape) || !Array.isArray(strides))
      throw new BadObject('storage, offset, shape and strides of a tensor', 'other values');
    return new Strided(storage, offset as number, shape, strides);
  },
});
define(['torch._utils._rebuild_parameter'], { call: ([data]) => data });
define(['torch.storage._load_from_bytes'], {
  call([bytes], { nested, depth }) {
    if (!(bytes instanceof Bytes)) throw new BadObject('the bytes of a torch file', 'another value');
    return nested(bytes, depth);
  },
});
const STORAGES: Readonly<Record<string, string>> = {
  Float: 'F32',
  Double: 'F64',
  Half: 'F16',
  BFloat16: 'BF16',
  Long: 'I64',
  Int: 'I32',
  Short: 'I16',
  Char: 'I8',
  Byte: 'U8',
  Bool: 'BOOL',
};
for (const [type, dtype] of Object.entries(STORAGES)) define([`torch.${type}Storage`], { dtype });
define(['torch.storage.UntypedStorage'], { dtype: 'U8' });
for (const name of DTYPE_NAMES) define([`torch.${name}`], { dtype: dtypeNamed(name) });
define(['torch.Size'], { call: ([sizes]) => sizes });
define(['torch.device'], { call: ([type]) => type });

define(['tensordict._reductions._rebuild_tensordict_files_consolidated'], { call: rebuildConsolidated });
define(['tensordict._td.TensorDict']);
define(['tensordict._reductions._make_td'], {
  call([, state]) {
    const tensors = state instanceof Map ? state.get('_tensordict') : undefined;
    if (!(tensors instanceof Map)) throw new BadObject('the tensors of a TensorDict', 'another value');
    return tensors;
  },
});

// Their items follow. A defaultdict also has a function that makes missing items.
define(['collections.OrderedDict', 'collections.defaultdict'], { call: () => new Map() });
// Protocols 2 and 3 make a set of a list.
for (const module of ['builtins', '__builtin__'])
  define([`${module}.set`, `${module}.frozenset`], {
    call: ([items]) => (items instanceof PyList ? items : new Opaque(`${module}.set`)),
  });
define(['_codecs.encode'], {
  call([text, encoding], { budget }) {
    const isKnown = encoding === 'latin1' || encoding === 'latin-1';
    if (!isKnown || !(typeof text === 'string' || text instanceof LongText))
      throw new BadObject('text in Latin-1', 'another value');
    if (text instanceof LongText && text.bytes.size > MAX_ENCODED)
      throw new BadObject(`at most ${MAX_ENCODED} bytes of text`, String(text.bytes.size));
    const array = Buffer.from(String(text), 'latin1');
    budget.hold(array.length);
    return Bytes.ofArray('text in Latin-1', array, budget);
  },
});
const MAX_ENCODED = 1 << 24;

/** A file in memory. */
class PyBytesIo {
  bytes: Bytes | undefined;

  build(state: unknown): void {
    const [bytes] = Array.isArray(state) ? state : [];
    if (!(bytes instanceof Bytes)) throw new BadObject('the bytes of a file', 'another value');
    this.bytes = bytes;
  }
}
define(['_io.BytesIO'], { create: () => new PyBytesIo() });

define(['numpy.ndarray']);
define(['numpy.dtype'], { call: ([type]) => new NumpyDtype(type) });
for (const module of ['numpy.core', 'numpy._core']) {
  define([`${module}.multiarray._reconstruct`], { call: () => new NumpyArray() });
  define([`${module}.multiarray.scalar`], { call: scalarOf });
  define([`${module}.numeric._frombuffer`], { call: arrayFromBuffer });
}

/** Returns the bytes that a value holds: of itself, or of a file in memory; undefined if it holds none. */
export function bytesOf(value: unknown): Bytes | undefined {
  if (value instanceof PyBytesIo) return value.bytes;
  return value instanceof Bytes ? value : undefined;
}

/** Returns the items of a list, a tuple, a set or an array of objects; undefined for another value. */
export function itemsOf(value: unknown): readonly unknown[] | undefined {
  if (value instanceof NumpyArray) return itemsOf(value.content);
  if (value instanceof PyList) return value.kept();
  return Array.isArray(value) ? value : undefined;
}

/** Returns the opaque value that a value or the content of an array is; undefined for another value. */
export function opaqueOf(value: unknown): Opaque | undefined {
  if (value instanceof NumpyArray) return opaqueOf(value.content);
  return value instanceof Opaque ? value : undefined;
}

/** Returns the tensor or array that a value is; undefined for another value. */
export function tensorOf(value: unknown): Strided | undefined {
  if (value instanceof NumpyArray) return tensorOf(value.content);
  return value instanceof Strided ? value : undefined;
}
