/** Writes pickles and torch.save's archives: valid ones from plain values, and hostile ones from opcodes. */
import { crc32 } from 'node:zlib';

/** Bytes of a pickle in place of a value. */
export class Opcodes {
  readonly bytes: Buffer;

  constructor(...pieces: (number | string | Uint8Array)[]) {
    this.bytes = Buffer.concat(
      pieces.map((piece) =>
        typeof piece === 'number' ? Buffer.from([piece]) : Buffer.from(piece as string),
      ),
    );
  }
}

const UNSIGNED = [0, 1, 2, 0, 4, 0, 0, 0, 8];

/** Returns an unsigned integer in little-endian order. */
export function unsigned(value: number | bigint, size: 1 | 2 | 4 | 8): Buffer {
  if (!UNSIGNED.includes(size)) throw new Error(`no integers of ${size} bytes`);
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes.subarray(0, size);
}

export const text = (value: string) => new Opcodes('X', unsigned(Buffer.byteLength(value), 4), value);
export const bytes = (value: Uint8Array) => new Opcodes('B', unsigned(value.length, 4), value);
export const global = (module: string, name: string) => new Opcodes(`c${module}\n${name}\n`);
export const tuple = (...items: unknown[]) => new Opcodes('(', ...items.map(encode), 't');
/** A call of a function, as REDUCE makes it. */
export const call = (callable: Opcodes, ...args: unknown[]) =>
  new Opcodes(callable.bytes, tuple(...args).bytes, 'R');

function encode(value: unknown): Buffer {
  if (value instanceof Opcodes) return value.bytes;
  if (value === null) return Buffer.from('N');
  if (typeof value === 'boolean') return Buffer.from([value ? 0x88 : 0x89]);
  if (typeof value === 'string') return text(value).bytes;
  if (typeof value === 'number') return encodeNumber(value);
  // Python's pickler writes long lists in pieces of 1,000 items.
  if (Array.isArray(value)) {
    const pieces: Buffer[] = [Buffer.from(']')];
    for (let i = 0; i < value.length; i += 1000)
      pieces.push(
        Buffer.from('('),
        ...value.slice(i, i + 1000).map((item) => encode(item)),
        Buffer.from('e'),
      );
    return Buffer.concat(pieces);
  }
  const entries = value instanceof Map ? [...value] : Object.entries(value as object);
  const items = entries.flatMap(([key, item]) => [encode(key), encode(item)]);
  return Buffer.concat([Buffer.from('}('), ...items, Buffer.from('u')]);
}

function encodeNumber(value: number): Buffer {
  if (Number.isInteger(value) && Math.abs(value) < 2 ** 31) {
    const integer = Buffer.alloc(5, 'J');
    integer.writeInt32LE(value, 1);
    return integer;
  }
  const float = Buffer.alloc(9, 'G');
  float.writeDoubleBE(value, 1);
  return float;
}

/** Returns a pickle of protocol 2. */
export function pickle(value: unknown): Buffer {
  return Buffer.concat([Buffer.from([0x80, 2]), encode(value), Buffer.from('.')]);
}

/** A tensor of float32 in an archive: a view of the storage of this key. */
export function tensor(
  key: string,
  count: number,
  shape: number[],
  { offset = 0, strides = contiguous(shape), type = 'Float' } = {},
): Opcodes {
  const storage = tuple('storage', global('torch', `${type}Storage`), key, 'cpu', count);
  const hooks = call(global('collections', 'OrderedDict'));
  return call(
    global('torch._utils', '_rebuild_tensor_v2'),
    new Opcodes(storage.bytes, 'Q'),
    offset,
    tuple(...shape),
    tuple(...strides),
    false,
    hooks,
  );
}

const contiguous = (shape: number[]) => shape.map((_, i) => shape.slice(i + 1).reduce((a, b) => a * b, 1));

/** An entry of an archive, with what may be wrong about it. */
export interface ZipEntry {
  name: string;
  content: Uint8Array;
  method?: number;
  /** The sizes in the directory, stored and in use; by default the content's. */
  sizes?: readonly [number, number];
  /** The place of the header in the directory; by default where it is. */
  at?: number;
  /** Whether the directory has sizes and place in 64 bits. */
  isWide?: boolean;
}

const IN_64_BITS = 2 ** 32 - 1;

/** Returns a zip archive of stored entries. */
export function zip(entries: readonly ZipEntry[], { directoryAt }: { directoryAt?: number } = {}): Buffer {
  const locals: Buffer[] = [];
  const directory: Buffer[] = [];
  let position = 0;
  for (const { name, content, method = 0, sizes, at = position, isWide = false } of entries) {
    const [stored, used] = sizes ?? [content.length, content.length];
    const wide = Buffer.concat([
      unsigned(1, 2),
      unsigned(24, 2),
      unsigned(used, 8),
      unsigned(stored, 8),
      unsigned(at, 8),
    ]);
    const extra = isWide ? wide : Buffer.alloc(0);
    const shared = (storedSize: number, usedSize: number, extraSize: number) =>
      Buffer.concat([
        unsigned(20, 2),
        unsigned(0, 2),
        unsigned(method, 2),
        unsigned(0, 4),
        unsigned(crc32(content), 4),
        unsigned(storedSize, 4),
        unsigned(usedSize, 4),
        unsigned(Buffer.byteLength(name), 2),
        unsigned(extraSize, 2),
      ]);
    const local = Buffer.concat([Buffer.from('PK\x03\x04'), shared(0, 0, 0), Buffer.from(name), content]);
    locals.push(local);
    directory.push(
      Buffer.concat([
        Buffer.from('PK\x01\x02'),
        unsigned(20, 2),
        isWide ? shared(IN_64_BITS, IN_64_BITS, extra.length) : shared(stored, used, 0),
        Buffer.alloc(10),
        unsigned(isWide ? IN_64_BITS : at, 4),
        Buffer.from(name),
        extra,
      ]),
    );
    position += local.length;
  }
  const size = directory.reduce((sum, { length }) => sum + length, 0);
  const isWide = entries.some((entry) => entry.isWide);
  const wideEnd = Buffer.concat([
    Buffer.from('PK\x06\x06'),
    unsigned(44, 8),
    Buffer.alloc(12),
    unsigned(entries.length, 8),
    unsigned(entries.length, 8),
    unsigned(size, 8),
    unsigned(directoryAt ?? position, 8),
    Buffer.from('PK\x06\x07'),
    unsigned(0, 4),
    unsigned(position + size, 8),
    unsigned(1, 4),
  ]);
  const end = Buffer.concat([
    Buffer.from('PK\x05\x06'),
    unsigned(0, 4),
    unsigned(entries.length, 2),
    unsigned(entries.length, 2),
    unsigned(size, 4),
    unsigned(isWide ? IN_64_BITS : (directoryAt ?? position), 4),
    unsigned(0, 2),
  ]);
  return Buffer.concat([...locals, ...directory, ...(isWide ? [wideEnd] : []), end]);
}

/** Returns the entries of a file by torch.save. */
export function torchEntries(value: unknown, storages: Record<string, Uint8Array> = {}): ZipEntry[] {
  return [
    { name: 'archive/data.pkl', content: pickle(value) },
    ...Object.entries(storages).map(([key, content]) => ({ name: `archive/data/${key}`, content })),
    { name: 'archive/version', content: Buffer.from('3\n') },
  ];
}

/** Returns a file by torch.save. */
export function torchFile(value: unknown, storages?: Record<string, Uint8Array>): Buffer {
  return zip(torchEntries(value, storages));
}
