// Reads what torch.save writes: a zip archive with a pickle and one entry for each storage; or, before PyTorch 1.6 and
// inside of pickles, several pickles with the storages after them. The storages stay in the file.
import type { Bytes } from '../bytes.js';
import { Global } from '../pickle/globals.js';
import { type PickleContext, type Unpickled, unpickle, unpickleInSlices } from '../pickle/machine.js';
import { BadObject, Opaque, PyList, shown } from '../pickle/values.js';
import { badFile } from '../source.js';
import { type Archive, isZip, openEntry, readArchive } from './archive.js';
import { Storage } from './strided.js';

const LEGACY_MAGIC = '119547037146038801333356';
const LEGACY_VERSION = 1001;
const PICKLE = 'data.pkl';

/** Returns the folder of an archive that has a pickle, such as 'archive/'; undefined if it is another kind of archive. */
export function torchFolder(archive: Archive): string | undefined {
  for (const name of archive.keys()) {
    const [folder, file, ...more] = name.split('/');
    if (file === PICKLE && more.length === 0) return `${folder}/`;
  }
  return undefined;
}

/**
 * Reads what a torch file inside of another file holds.
 * @param depth how many files hold it.
 */
export function loadTorch(bytes: Bytes, depth: number): unknown {
  if (!isZip(bytes.read(0, Math.min(4, bytes.size)))) return loadLegacy(bytes, depth);
  const { content, context } = openTorch(bytes, depth);
  return wholePickle(content, unpickle(content, context));
}

/** Reads what a pickle or a torch file holds, a chunk of the file in each slice. */
export function* loadInSlices(bytes: Bytes): Generator<void, unknown> {
  if (isZip(bytes.read(0, Math.min(4, bytes.size)))) {
    const { content, context } = openTorch(bytes, 0);
    return wholePickle(content, yield* unpickleInSlices(content, context));
  }
  const pickle = yield* unpickleInSlices(bytes, contextOf(0));
  return pickle.value === LEGACY_MAGIC ? loadLegacy(bytes, 0) : wholePickle(bytes, pickle);
}

/** Reads a pickle that another file holds. */
export function loadPickle(bytes: Bytes): unknown {
  return wholePickle(bytes, unpickle(bytes, contextOf(1)));
}

function contextOf(depth: number, persistent?: (id: unknown) => unknown): PickleContext {
  return {
    depth,
    nested: (bytes, holders) => loadTorch(bytes, holders + 1),
    ...(persistent && { persistent }),
  };
}

function openTorch(bytes: Bytes, depth: number): { content: Bytes; context: PickleContext } {
  const archive = readArchive(bytes);
  const folder = torchFolder(archive);
  if (folder === undefined)
    throw badFile(bytes.file, { expected: `an archive with ${PICKLE}`, received: 'none' });
  const isSwapped =
    archive.has(`${folder}byteorder`) && isBigEndian(openEntry(bytes, archive, `${folder}byteorder`));
  const entries = new Map<string, Bytes>();
  const persistent = (id: unknown) => {
    const about = storageId(id);
    if (about instanceof Opaque) return about;
    const { dtype, key, count } = about;
    const entry = entries.get(key) ?? openEntry(bytes, archive, `${folder}data/${key}`);
    entries.set(key, entry);
    const storage = new Storage(dtype, count, isSwapped);
    storage.place(entry);
    return storage;
  };
  return { content: openEntry(bytes, archive, `${folder}${PICKLE}`), context: contextOf(depth, persistent) };
}

function isBigEndian(entry: Bytes): boolean {
  const order = Buffer.from(entry.read(0, Math.min(entry.size, 8))).toString('latin1');
  if (order !== 'little' && order !== 'big')
    throw badFile(entry.file, { expected: 'little or big as the byte order', received: order });
  return order === 'big';
}

/** Parses the id of a storage: ('storage', type, key, location, number of elements, view). An unknown type is opaque. */
function storageId(id: unknown): { dtype: string; key: string; count: number; view: unknown } | Opaque {
  const [word, type, key, , count, view] = Array.isArray(id) ? id : [];
  if (type instanceof Opaque) return type;
  const dtype = type instanceof Global ? type.dtype : undefined;
  if (word !== 'storage' || dtype === undefined || typeof key !== 'string' || !isNatural(count))
    throw new BadObject('the id of a storage', 'another value');
  return { dtype, key, count, view: view ?? null };
}

function isNatural(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function wholePickle(bytes: Bytes, { value, end }: Unpickled): unknown {
  if (end !== bytes.size)
    throw badFile(bytes.file, {
      expected: 'the end of the pickle after its last opcode',
      received: `${bytes.size - end} more bytes at byte ${bytes.start + end}`,
    });
  return value;
}

/** Reads a torch file in the old format: magic number, version, system, object, keys; then the storages. */
function loadLegacy(bytes: Bytes, depth: number): unknown {
  const plain = contextOf(depth);
  const magic = unpickle(bytes, plain);
  const version = unpickle(bytes, plain, magic.end);
  if (magic.value !== LEGACY_MAGIC || version.value !== LEGACY_VERSION)
    throw badFile(bytes.file, {
      expected: 'a file by torch.save',
      received: `other bytes at byte ${bytes.start}`,
    });
  const system = unpickle(bytes, plain, version.end);
  const isSwapped = system.value instanceof Map && system.value.get('little_endian') === false;
  const storages = new Map<string, Storage>();
  const persistent = (id: unknown) => {
    const about = storageId(id);
    if (about instanceof Opaque) throw new BadObject('a storage of a known type', shown(about));
    const { dtype, key, count, view } = about;
    const known = storages.get(key);
    if (view !== null || (known && (known.dtype !== dtype || known.length !== count)))
      throw new BadObject(`one storage ${key}`, 'another one, or a view of one');
    const storage = known ?? new Storage(dtype, count, isSwapped);
    storages.set(key, storage);
    return storage;
  };
  const object = unpickle(bytes, contextOf(depth, persistent), system.end);
  placeStorages(bytes, unpickle(bytes, plain, object.end), storages);
  return object.value;
}

/** Finds the bytes of the storages, which follow the list of their keys: each a count of elements and the elements. */
function placeStorages(bytes: Bytes, keys: Unpickled, storages: ReadonlyMap<string, Storage>): void {
  const list = keys.value;
  if (!(list instanceof PyList) || list.length !== storages.size)
    throw badFile(bytes.file, {
      expected: `the keys of ${storages.size} storages`,
      received: 'another value',
    });
  let at = keys.end;
  for (const key of list.items()) {
    const storage = typeof key === 'string' ? storages.get(key) : undefined;
    const count = Buffer.from(bytes.read(at, 8)).readBigInt64LE();
    if (!storage || storage.isPlaced || count !== BigInt(storage.length))
      throw badFile(bytes.file, {
        expected: 'the storages of the tensors',
        received: `another one at byte ${bytes.start + at}`,
      });
    const size = storage.length * storage.elementBytes;
    storage.place(bytes.slice(at + 8, size));
    at += 8 + size;
  }
  if (at !== bytes.size)
    throw badFile(bytes.file, {
      expected: `the end after the storages at byte ${bytes.start + at}`,
      received: `${bytes.size - at} more bytes`,
    });
}
