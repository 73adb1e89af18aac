// Reads NumPy's .npz format: a zip archive with one .npy file per array, compressed (deflated) or not. Each array is
// read through its own stream, so that several arrays can be read at the same time. Only an array in Fortran order must
// fit into memory as a whole.
import type { Readable } from 'node:stream';
import { promisify } from 'node:util';
import yauzl from 'yauzl';
import { badFile } from '../source.js';
import { DTYPES, type Dtype, textDtype } from './dtype.js';
import { type ByteReader, describeShape, sizeOfShape, type Tensor, type TensorFile } from './tensor.js';

/**
 * Opens an .npz archive.
 * @throws if the file is not a zip archive, or if it has too many entries.
 */
export async function openNpz(file: string): Promise<TensorFile> {
  const archive = await promisify<string, yauzl.Options, yauzl.ZipFile>(yauzl.open)(file, {
    lazyEntries: true,
    autoClose: false,
  });
  try {
    const entries = await entriesOf(file, archive);
    let transposed = 0;
    const onTranspose = (name: string, bytes: number) => {
      transposed += bytes;
      if (transposed > MAX_ALL_TRANSPOSED) throw notContiguous(file, name);
    };
    return {
      names: [...entries.keys()],
      tensor: (name) => openArray(file, name, archive, entries.get(name)!, onTranspose),
      close: async () => archive.close(),
    };
  } catch (error) {
    archive.close();
    throw error;
  }
}

// Limit the memory that the list of entries can take if the archive is malicious. A batch has far fewer arrays.
const MAX_ENTRIES = 10_000;
const MAX_ENTRY_BYTES = 1 << 25;

async function entriesOf(file: string, archive: yauzl.ZipFile): Promise<Map<string, yauzl.Entry>> {
  if (archive.entryCount > MAX_ENTRIES)
    throw badFile(file, { expected: `at most ${MAX_ENTRIES} arrays`, received: String(archive.entryCount) });
  const entries = new Map<string, yauzl.Entry>();
  let bytes = 0;
  await new Promise<void>((resolve, reject) => {
    archive.on('error', reject);
    archive.on('end', resolve);
    archive.on('entry', (entry: yauzl.Entry) => {
      bytes += entry.fileNameLength + entry.extraFieldLength + entry.fileCommentLength;
      if (bytes > MAX_ENTRY_BYTES) {
        const expected = `at most ${MAX_ENTRY_BYTES} bytes of names and comments`;
        return reject(badFile(file, { expected, received: 'more' }));
      }
      if (entry.fileName.endsWith('.npy')) entries.set(entry.fileName.slice(0, -'.npy'.length), entry);
      archive.readEntry();
    });
    archive.readEntry();
  });
  return entries;
}

async function openArray(
  file: string,
  name: string,
  archive: yauzl.ZipFile,
  entry: yauzl.Entry,
  onTranspose: (name: string, bytes: number) => void,
): Promise<Tensor> {
  const openStream = promisify<yauzl.Entry, Readable>(archive.openReadStream.bind(archive));
  const openReader = async () => new StreamReader(file, name, await openStream(entry));
  const reader = await openReader();
  try {
    const { descr, fortran, shape, length } = await readHeader(file, name, reader);
    const { dtype, swapped } = readDescr(file, name, descr);
    const bytes = sizeOfShape(shape) * dtype.bytes;
    if (length + bytes !== entry.uncompressedSize)
      throw badFile(file, {
        key: name,
        expected: `${length + bytes} bytes for the header and shape ${describeShape(shape)} of ${descr}`,
        received: String(entry.uncompressedSize),
      });
    const transposed = fortran && shape.filter((n) => n > 1).length > 1;
    if (transposed && (shape.length > 2 || bytes > MAX_TRANSPOSED)) throw notContiguous(file, name);
    return {
      name,
      shape,
      dtype,
      async open() {
        if (transposed) onTranspose(name, bytes);
        const elements = await openReader();
        await elements.read(length);
        const inOrder = transposed ? await transpose(elements, shape, dtype.bytes) : elements;
        return swapped > 1 ? swap(inOrder, swapped) : inOrder;
      },
    };
  } finally {
    await reader.close();
  }
}

function notContiguous(file: string, name: string) {
  return badFile(file, {
    key: name,
    expected: 'an array in C order, whose rows are contiguous',
    received: 'one in Fortran order',
    hint: 'np.ascontiguousarray converts it',
  });
}

interface NpyHeader {
  descr: string;
  fortran: boolean;
  shape: number[];
  /** The length of the header in bytes. The elements begin after it. */
  length: number;
}

async function readHeader(file: string, name: string, reader: ByteReader): Promise<NpyHeader> {
  const magic = Buffer.from(await reader.read(8));
  const version = magic[6]!;
  if (magic.toString('latin1', 0, 6) !== '\x93NUMPY' || version < 1 || version > 3)
    throw badFile(file, { key: name, expected: 'an array in version 1, 2 or 3 of the .npy format' });
  const lengthBytes = version === 1 ? 2 : 4;
  const length = Buffer.from(await reader.read(lengthBytes)).readUIntLE(0, lengthBytes);
  if (length > MAX_HEADER)
    throw badFile(file, {
      key: name,
      expected: `a header of at most ${MAX_HEADER} bytes`,
      received: String(length),
    });
  // The header is a Python dictionary, such as {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
  const text = Buffer.from(await reader.read(length)).toString();
  const descr = /'descr':\s*'([^']+)'/.exec(text)?.[1];
  const fortran = /'fortran_order':\s*(True|False)/.exec(text)?.[1];
  const numbers = /'shape':\s*\(([\d,\s]*)\)/.exec(text)?.[1];
  const shape = numbers
    ?.split(',')
    .filter((part) => part.trim() !== '')
    .map(Number);
  const isValid = shape && shape.length <= MAX_DIMENSIONS && Number.isSafeInteger(sizeOfShape(shape));
  if (descr === undefined || fortran === undefined || !isValid)
    throw badFile(file, {
      key: name,
      expected: 'descr, fortran_order and shape of an array of numbers or text',
      received: text.trim(),
    });
  return { descr, fortran: fortran === 'True', shape, length: 8 + lengthBytes + length };
}

const MAX_HEADER = 1 << 20;
// NumPy's own limit.
const MAX_DIMENSIONS = 64;
// The size limits, in bytes, of one array in Fortran order (column by column) and of all such arrays that are read. All
// of an array must be in memory to be transposed.
const MAX_TRANSPOSED = 1 << 26;
const MAX_ALL_TRANSPOSED = 1 << 28;

const KINDS: Readonly<Record<string, string>> = { f: 'F', i: 'I', u: 'U', b: 'BOOL' };

/**
 * Parses the type description in an array's header, such as '<f4'. Returns the element type and `swapped`. If the bytes
 * of each element must be reversed (big-endian), `swapped` is the element's size, otherwise 1.
 */
function readDescr(file: string, name: string, descr: string): { dtype: Dtype; swapped: number } {
  const [, order, kind, count] = /^([<>|=])([a-zA-Z])(\d+)$/.exec(descr) ?? [];
  const size = Number(count);
  const text = (kind === 'U' || kind === 'S') && size > 0 && size < MAX_HEADER;
  if (text && (kind === 'S' || order === '<')) {
    const bytesPerCharacter = kind === 'U' ? 4 : 1;
    return { dtype: textDtype(size * bytesPerCharacter, bytesPerCharacter), swapped: 1 };
  }
  const dtype = DTYPES.get(kind === 'b' ? KINDS.b! : `${KINDS[kind!]}${8 * size}`);
  if (!dtype || dtype.bytes !== size)
    throw badFile(file, {
      key: name,
      expected: 'an array of floats, integers, bool or text',
      received: `dtype ${descr}`,
    });
  return { dtype, swapped: order === '>' ? size : 1 };
}

/** Reads the bytes of one array from a stream. */
class StreamReader implements ByteReader {
  readonly #file: string;
  readonly #name: string;
  readonly #stream: Readable;
  readonly #chunks: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(file: string, name: string, stream: Readable) {
    this.#file = file;
    this.#name = name;
    this.#stream = stream;
    // Without a listener, an error between two reads would crash the process. The next read throws this error.
    stream.on('error', () => {});
    this.#chunks = stream[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  }

  async read(bytes: number): Promise<Uint8Array> {
    const chunks = [this.#rest];
    let length = this.#rest.length;
    while (length < bytes) {
      const { value, done } = await this.#chunks.next();
      if (done)
        throw badFile(this.#file, {
          key: this.#name,
          expected: `${bytes - length} more bytes`,
          received: 'the end of the array',
        });
      chunks.push(value);
      length += value.length;
    }
    const last = chunks.pop()!;
    this.#rest = last.subarray(last.length - (length - bytes));
    chunks.push(last.subarray(0, last.length - (length - bytes)));
    // Copies the chunks itself, because the memory that Buffer.concat returns may not be aligned for typed arrays.
    const result = new Uint8Array(bytes);
    let offset = 0;
    for (const chunk of chunks) {
      result.set(chunk, offset);
      offset += chunk.length;
    }
    return result;
  }

  async close(): Promise<void> {
    this.#stream.destroy();
  }
}

/** Reads a whole matrix in Fortran order (column by column). Returns a reader that returns its elements row by row. */
async function transpose(
  elements: ByteReader,
  [rows, columns]: readonly number[],
  bytes: number,
): Promise<ByteReader> {
  const source = await elements.read(rows! * columns! * bytes);
  const target = new Uint8Array(source.length);
  for (let row = 0; row < rows!; row++)
    for (let column = 0; column < columns!; column++) {
      const from = (column * rows! + row) * bytes;
      target.set(source.subarray(from, from + bytes), (row * columns! + column) * bytes);
    }
  let position = 0;
  return {
    async read(count) {
      position += count;
      return target.slice(position - count, position);
    },
    close: () => elements.close(),
  };
}

/**
 * Returns a reader that converts big-endian elements to little-endian.
 * @param bytes the size of an element.
 */
function swap(elements: ByteReader, bytes: number): ByteReader {
  return {
    async read(count) {
      const read = Buffer.from((await elements.read(count)).buffer);
      if (bytes === 2) read.swap16();
      else if (bytes === 4) read.swap32();
      else read.swap64();
      return new Uint8Array(read.buffer, read.byteOffset, read.length);
    },
    close: () => elements.close(),
  };
}
