// Reads NumPy's .npy format: an array's dtype, order and shape in a header, and then its elements. Such a file is also
// what an .npz archive holds per array. Only an array in Fortran order must fit into memory as a whole.
import { open } from 'node:fs/promises';
import { badFile } from '../source.js';
import { DTYPES, type Dtype, textDtype } from './dtype.js';
import { rangeReader } from './range.js';
import { type ByteReader, describeShape, sizeOfShape, type Tensor, type TensorFile } from './tensor.js';

/** The name of the only array of an .npy file, which has no name of its own. */
const ONLY = 'array';

/**
 * Opens an .npy file.
 * @throws LossError if the header is malformed or does not fit the file's length.
 */
export async function openNpy(file: string): Promise<TensorFile> {
  const handle = await open(file, 'r');
  try {
    const { size } = await handle.stat();
    const openBytes = async () => rangeReader(file, handle, 0, size);
    const tensor = await readArray({ file, name: ONLY, size, open: openBytes, onTranspose: () => {} });
    return { names: [ONLY], tensor: async () => tensor, close: () => handle.close() };
  } catch (error) {
    await handle.close();
    throw error;
  }
}

/** The bytes of an array in the .npy format. */
export interface NpyBytes {
  file: string;
  /** The array's name, for error messages. */
  name: string;
  /** The number of bytes, including the header. */
  size: number;
  open(): Promise<ByteReader>;
  /** Called before the elements of an array in Fortran order are read, with their size in bytes. */
  onTranspose(name: string, bytes: number): void;
}

/**
 * Reads the header of an array.
 * @throws LossError if it is malformed or does not fit the number of bytes.
 */
export async function readArray(source: NpyBytes): Promise<Tensor> {
  const { file, name, size } = source;
  const reader = await source.open();
  try {
    const { descr, fortran, shape, length } = await readHeader(file, name, reader);
    const { dtype, swapped } = readDescr(file, name, descr);
    const bytes = sizeOfShape(shape) * dtype.bytes;
    if (length + bytes !== size)
      throw badFile(file, {
        key: name,
        expected: `${length + bytes} bytes for the header and shape ${describeShape(shape)} of ${descr}`,
        received: String(size),
      });
    const transposed = fortran && shape.filter((n) => n > 1).length > 1;
    if (transposed && (shape.length > 2 || bytes > MAX_TRANSPOSED)) throw notContiguous(file, name);
    return {
      name,
      shape,
      dtype,
      async open() {
        if (transposed) source.onTranspose(name, bytes);
        const elements = await source.open();
        await elements.read(length);
        const inOrder = transposed ? await transpose(elements, shape, dtype.bytes) : elements;
        return swapped > 1 ? swap(inOrder, swapped) : inOrder;
      },
    };
  } finally {
    await reader.close();
  }
}

/** Returns the error about an array in Fortran order that is too large to be transposed. */
export function notContiguous(file: string, name: string) {
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
    .filter((number) => number.trim() !== '')
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
// The maximum size, in bytes, of an array in Fortran order (column by column). All of it must be in memory to be
// transposed.
const MAX_TRANSPOSED = 1 << 26;

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
