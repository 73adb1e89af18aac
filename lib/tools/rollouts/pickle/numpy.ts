// NumPy's arrays and scalars in pickles.
import { Bytes } from '../bytes.js';
import { DTYPES, type Elements, textDtype } from '../tensor/dtype.js';
import { sizeOfShape } from '../tensor/tensor.js';
import { isShape, Storage, Strided } from '../torch/strided.js';
import { BadObject, Opaque, PyList, shown } from './values.js';

const KINDS: Readonly<Record<string, string>> = { f: 'F', i: 'I', u: 'U' };

/** An element type. */
export class NumpyDtype {
  /** A key of DTYPES for numbers, 'object', 'text', or 'opaque' for all others, such as dates. */
  readonly kind: string;
  /** The size of an element of text, in bytes. */
  readonly bytes: number;
  readonly name: string;
  isSwapped = false;

  /** @param type NumPy's name of the type, such as 'f4' or 'O8'. */
  constructor(type: unknown) {
    this.name = shown(type);
    const [, letter, digits] = (typeof type === 'string' && /^([a-zA-Z])(\d+)$/.exec(type)) || [];
    this.bytes = Number(digits);
    if (letter === 'O') this.kind = 'object';
    else if (letter === 'U' && this.bytes > 0 && this.bytes <= MAX_CHARACTERS) this.kind = 'text';
    else this.kind = letter === 'b' && this.bytes === 1 ? 'BOOL' : `${KINDS[letter!]}${8 * this.bytes}`;
    if (this.kind !== 'object' && this.kind !== 'text' && !DTYPES.has(this.kind)) this.kind = 'opaque';
  }

  /** Takes the state that a pickle has for a type: (version, byte order, …). */
  build(state: unknown): void {
    if (this.kind === 'opaque') return;
    const order = Array.isArray(state) ? state[1] : undefined;
    if (order !== '<' && order !== '>' && order !== '|' && order !== '=')
      throw new BadObject('the byte order of a type', 'another value');
    if (order === '>' && this.kind === 'text')
      throw new BadObject('text in little-endian order', 'big-endian');
    this.isSwapped = order === '>';
  }
}

const MAX_CHARACTERS = 1 << 16;

/** An array, to which BUILD gives its content. */
export class NumpyArray {
  /** Numbers, or the elements of an array of objects or texts. */
  content: Strided | PyList | Opaque = new PyList();

  /** Takes the state that a pickle has for an array: (version, shape, type, whether in Fortran's order, data). */
  build(state: unknown): void {
    const [, shape, dtype, isFortran, data] = Array.isArray(state) ? state : [];
    if (!isShape(shape) || !(dtype instanceof NumpyDtype))
      throw new BadObject('shape, type and data of an array', 'other values');
    this.content = contentOf(shape, dtype, isFortran === true, data);
  }
}

/** Makes an array as `_frombuffer` does: (data, type, shape, order). */
export function arrayFromBuffer([data, dtype, shape, order]: readonly unknown[]): NumpyArray {
  if (!isShape(shape) || !(dtype instanceof NumpyDtype))
    throw new BadObject('data, type, shape and order of an array', 'other values');
  const array = new NumpyArray();
  array.content = contentOf(shape, dtype, order === 'F', data);
  return array;
}

/** Returns a scalar's value. */
export function scalarOf([dtype, data]: readonly unknown[]): unknown {
  if (!(dtype instanceof NumpyDtype)) throw new BadObject('the type of a scalar', 'another value');
  if (dtype.kind === 'object') return data;
  const content = contentOf([1], dtype, false, data);
  if (content instanceof Opaque) return content;
  return content instanceof Strided ? content.values()[0] : content.items()[0];
}

function contentOf(shape: readonly number[], dtype: NumpyDtype, isFortran: boolean, data: unknown) {
  if (dtype.kind === 'opaque') return new Opaque(`numpy.dtype ${dtype.name}`);
  const size = sizeOfShape(shape);
  if (dtype.kind === 'object') {
    if (!(data instanceof PyList) || data.length !== size)
      throw new BadObject(`a list of ${size} objects`, 'another value');
    return data;
  }
  if (!(data instanceof Bytes)) throw new BadObject('the bytes of an array', 'another value');
  const elementBytes = dtype.kind === 'text' ? 4 * dtype.bytes : DTYPES.get(dtype.kind)!.bytes;
  if (data.size !== size * elementBytes)
    throw new BadObject(`${size * elementBytes} bytes of an array`, String(data.size));
  if (dtype.kind === 'text') return textsOf(data, elementBytes);
  const storage = Storage.of(data, dtype.kind, dtype.isSwapped);
  if (!isFortran) return Strided.contiguous(storage, shape);
  const strides = shape.map((_, i) => sizeOfShape(shape.slice(0, i)));
  return new Strided(storage, 0, shape, strides);
}

function textsOf(data: Bytes, elementBytes: number): PyList {
  if (data.size > MAX_TEXT_BYTES)
    throw new BadObject(`at most ${MAX_TEXT_BYTES} bytes of text in an array`, String(data.size));
  data.budget.hold(TEXT_FACTOR * data.size);
  const list = new PyList();
  const texts: Elements = textDtype(elementBytes, 4).decode(data.read());
  list.push(texts as readonly unknown[]);
  return list;
}

const MAX_TEXT_BYTES = 1 << 24;
// A string takes more than the four bytes per character of NumPy.
const TEXT_FACTOR = 8;
