// Tensors whose elements stay in the file: views of a storage, with an offset and strides, as PyTorch and NumPy have
// them. Several tensors may share a storage.
import type { Bytes } from '../bytes.js';
import { BadObject, shown } from '../pickle/values.js';
import { badFile } from '../source.js';
import { DTYPES, type Elements } from '../tensor/dtype.js';
import { describeShape, sizeOfShape } from '../tensor/tensor.js';

/** The elements of one or more tensors, in the order of their addresses. */
export class Storage {
  /** A key of DTYPES. */
  readonly dtype: string;
  /** The number of elements. */
  readonly length: number;
  /** Whether the bytes of each element are in the opposite order, big-endian. */
  readonly isSwapped: boolean;
  #bytes: Bytes | undefined;

  constructor(dtype: string, length: number, isSwapped = false) {
    this.dtype = dtype;
    this.length = length;
    this.isSwapped = isSwapped;
  }

  /** Returns a storage of all the elements that fit into some bytes. */
  static of(bytes: Bytes, dtype: string, isSwapped = false): Storage {
    const length = Math.floor(bytes.size / DTYPES.get(dtype)!.bytes);
    const storage = new Storage(dtype, length, isSwapped);
    storage.place(bytes);
    return storage;
  }

  /**
   * Says where the elements are. An old torch file has the tensors before the elements.
   * @throws BadObject if the elements are more than the bytes hold.
   */
  place(bytes: Bytes): void {
    if (this.length * this.elementBytes > bytes.size)
      throw new BadObject(
        `a storage of ${this.length} elements of ${this.elementBytes} bytes`,
        `${bytes.size} bytes`,
      );
    this.#bytes = bytes;
  }

  get isPlaced(): boolean {
    return this.#bytes !== undefined;
  }

  get bytes(): Bytes {
    return this.#bytes!;
  }

  get elementBytes(): number {
    return DTYPES.get(this.dtype)!.bytes;
  }

  /**
   * Returns the bytes of all elements, and keeps them in memory, for tensors whose rows are not contiguous. Storages of
   * the same bytes share the copy.
   */
  whole(): Uint8Array {
    const { file, size } = this.bytes;
    if (size > MAX_WHOLE)
      throw badFile(file, {
        expected: `contiguous rows in a tensor of more than ${MAX_WHOLE} bytes`,
        received: `other strides in one of ${size}`,
        hint: 'tensor.contiguous() before saving makes them contiguous',
      });
    return this.bytes.kept();
  }
}

const MAX_WHOLE = 1 << 24;
const MAX_DIMENSIONS = 64;
// A stride of 0 repeats an element without taking space in the file, so the file's size does not limit such a tensor.
const MAX_ELEMENTS = 2 ** 40;
// A row whose elements are spread over fewer bytes is read with the bytes between them.
const MAX_SPREAD = 1 << 12;

/** A tensor in a file. */
export class Strided {
  readonly storage: Storage;
  readonly offset: number;
  readonly shape: readonly number[];
  readonly strides: readonly number[];

  /**
   * @param offset the index of the first element in the storage.
   * @param strides how many elements of the storage apart the elements of each dimension are.
   * @throws BadObject if an element would be outside of the storage.
   */
  constructor(storage: Storage, offset: number, shape: readonly number[], strides: readonly number[]) {
    if (!areNaturals([offset]) || !areNaturals(strides) || !isShape(shape) || shape.length !== strides.length)
      throw new BadObject('offset, shape and strides of a tensor', 'other values');
    const last = shape.reduce((sum, n, i) => sum + (n - 1) * strides[i]!, offset);
    if (!shape.includes(0) && !(last < storage.length))
      throw new BadObject(
        `a tensor within its storage of ${storage.length} elements`,
        `shape ${describeShape(shape)} with strides ${describeShape(strides)} from ${offset}`,
      );
    this.storage = storage;
    this.offset = offset;
    this.shape = shape;
    this.strides = strides;
  }

  /**
   * Returns a tensor whose elements are in row-major order, from the first of the storage on.
   * @throws BadObject if the shape is none, or has more elements than the storage.
   */
  static contiguous(storage: Storage, shape: readonly unknown[]): Strided {
    if (!isShape(shape)) throw new BadObject('the shape of a tensor', 'other values');
    const strides = shape.map((_, i) => sizeOfShape(shape.slice(i + 1)));
    return new Strided(storage, 0, shape, strides);
  }

  /** Returns the tensor at an index of the first dimension. */
  at(index: number): Strided {
    const [, ...shape] = this.shape;
    const [stride, ...strides] = this.strides;
    return new Strided(this.storage, this.offset + index * stride!, shape, strides);
  }

  /** Returns the elements `from` to `to` of the last dimension, of a tensor of one dimension. */
  slice(from: number, to: number): Strided {
    const [stride] = this.strides;
    return new Strided(this.storage, this.offset + from * stride!, [to - from], [stride!]);
  }

  /** Reads all elements, in row-major order. The caller must check their number first. */
  values(): Elements {
    const size = sizeOfShape(this.shape);
    return DTYPES.get(this.storage.dtype)!.decode(this.#read(size));
  }

  #read(size: number): Uint8Array {
    const { bytes, elementBytes } = this.storage;
    if (size === 0) return new Uint8Array(0);
    if (this.#isContiguous())
      return this.#inOrder(bytes.read(this.offset * elementBytes, size * elementBytes));
    const extent = this.shape.reduce((sum, n, i) => sum + (n - 1) * this.strides[i]!, 1);
    const isNear = extent * elementBytes <= MAX_SPREAD;
    const source = isNear
      ? bytes.read(this.offset * elementBytes, extent * elementBytes)
      : this.storage.whole();
    // Elements that are copied one by one take longer.
    bytes.budget.work(2 * size * elementBytes);
    const target = new Uint8Array(size * elementBytes);
    let at = 0;
    const gather = (dimension: number, position: number) => {
      if (dimension === this.shape.length) {
        const from = position * elementBytes;
        for (let i = 0; i < elementBytes; i++) target[at++] = source[from + i]!;
        return;
      }
      for (let i = 0; i < this.shape[dimension]!; i++)
        gather(dimension + 1, position + i * this.strides[dimension]!);
    };
    gather(0, isNear ? 0 : this.offset);
    return this.#inOrder(target);
  }

  #isContiguous(): boolean {
    let expected = 1;
    for (let i = this.shape.length - 1; i >= 0; i--) {
      if (this.shape[i] !== 1 && this.strides[i] !== expected) return false;
      expected *= this.shape[i]!;
    }
    return true;
  }

  #inOrder(bytes: Uint8Array): Uint8Array {
    const { isSwapped, elementBytes } = this.storage;
    if (!isSwapped || elementBytes === 1) return bytes;
    const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    if (elementBytes === 2) buffer.swap16();
    else if (elementBytes === 4) buffer.swap32();
    else buffer.swap64();
    return bytes;
  }
}

/** Returns whether a value from a file is the shape of a tensor. */
export function isShape(value: unknown): value is readonly number[] {
  return areNaturals(value) && sizeOfShape(value) <= MAX_ELEMENTS;
}

function areNaturals(value: unknown): value is readonly number[] {
  return (
    Array.isArray(value) &&
    value.length <= MAX_DIMENSIONS &&
    value.every((n) => Number.isSafeInteger(n) && n >= 0)
  );
}

/** Rows of different lengths, in a tensor of all their elements. */
export class Jagged {
  readonly elements: Strided;
  readonly offsets: Elements;

  /**
   * @param offsets where the rows begin, and the end of the last one.
   * @throws BadObject if the offsets are not those of rows.
   */
  constructor(elements: Strided, offsets: Elements) {
    const [count] = elements.shape;
    const isOrdered = Array.prototype.every.call(
      offsets,
      (offset: unknown, i: number) =>
        typeof offset === 'number' &&
        offset >= (i === 0 ? 0 : (offsets[i - 1] as number)) &&
        offset <= count!,
    );
    if (elements.shape.length !== 1 || offsets.length < 1 || !isOrdered)
      throw new BadObject('a list of elements and offsets of rows', 'other tensors');
    this.elements = elements;
    this.offsets = offsets;
  }

  get length(): number {
    return this.offsets.length - 1;
  }

  at(row: number): Strided {
    return this.elements.slice(this.offsets[row] as number, this.offsets[row + 1] as number);
  }
}

const BY_NAME: Readonly<Record<string, string>> = {
  float32: 'F32',
  float: 'F32',
  float64: 'F64',
  double: 'F64',
  float16: 'F16',
  half: 'F16',
  bfloat16: 'BF16',
  int64: 'I64',
  long: 'I64',
  int32: 'I32',
  int: 'I32',
  int16: 'I16',
  short: 'I16',
  int8: 'I8',
  uint8: 'U8',
  bool: 'BOOL',
};

/** The names of PyTorch's element types, without `torch.`. */
export const DTYPE_NAMES: readonly string[] = Object.keys(BY_NAME);

/**
 * Returns the key in DTYPES of a type that PyTorch or NumPy names, such as 'torch.int64' or 'float32'.
 * @throws BadObject for another value.
 */
export function dtypeNamed(name: unknown): string {
  const found = typeof name === 'string' ? BY_NAME[name.replace(/^torch\./, '')] : undefined;
  if (found === undefined) throw new BadObject('the name of an element type', shown(name));
  return found;
}
