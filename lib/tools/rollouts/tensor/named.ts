// Reads one tensor of a file, in blocks. The tensor is named after a colon: 'logits.safetensors:logits'.
import { LossError } from '../../../base/errors.js';
import { type Format, formatOf, unknownFormat } from '../file-name.js';
import { badFile, cannotRead, describeColumns } from '../source.js';
import { dtypeName } from './dtype.js';
import { openNpy } from './npy.js';
import { openNpz } from './npz.js';
import { openSafetensors } from './safetensors.js';
import { type ByteReader, sizeOfShape, type Tensor, type TensorFile } from './tensor.js';

const FORMATS: readonly (Format & { open(file: string): Promise<TensorFile> })[] = [
  { endings: ['.safetensors'], open: openSafetensors },
  { endings: ['.npz'], open: openNpz },
  { endings: ['.npy'], open: openNpy },
];

/** Splits 'logits.npz:name' into the file and the tensor's name, which is undefined if the text has none. */
export function splitTensorName(text: string): { file: string; name: string | undefined } {
  const match = /^(.*\.(?:safetensors|npz|npy)):(.+)$/is.exec(text);
  return match ? { file: match[1]!, name: match[2] } : { file: text, name: undefined };
}

/** A tensor whose elements are read in order. */
export class NamedTensor {
  readonly file: string;
  readonly name: string;
  readonly shape: readonly number[];
  /** The number of elements. */
  readonly size: number;
  /** The element type's name in DTYPES, or 'text'. */
  readonly dtype: string;
  readonly #tensor: Tensor;
  readonly #close: () => Promise<void>;

  private constructor(file: string, tensor: Tensor, close: () => Promise<void>) {
    this.file = file;
    this.name = tensor.name;
    this.shape = tensor.shape;
    this.size = sizeOfShape(tensor.shape);
    this.dtype = dtypeName(tensor.dtype);
    this.#tensor = tensor;
    this.#close = close;
  }

  /**
   * Opens a tensor.
   * @param text the file's name, which may be followed by a colon and the tensor's name.
   * @param usual the tensor to open if the text does not name one and the file has several.
   * @throws LossError `ERR_INVALID_OPTION` for a file name with an unknown ending; `ERR_MISSING_INPUT` if the file has no
   * such tensor; `ERR_INVALID_INPUT` if the file cannot be read.
   */
  static async open(text: string, usual: string): Promise<NamedTensor> {
    const { file, name } = splitTensorName(text);
    const format = formatOf(FORMATS, file);
    if (!format) throw unknownFormat('ERR_INVALID_OPTION', file, FORMATS);
    let tensors: TensorFile | undefined;
    try {
      tensors = await format.open(file);
      const { names } = tensors;
      const wanted = name ?? (names.length === 1 ? names[0]! : usual);
      if (!names.includes(wanted))
        throw new LossError('ERR_MISSING_INPUT', {
          at: file,
          expected: `a tensor ${wanted}`,
          received: describeColumns('a file', names),
        });
      const { close } = tensors;
      return new NamedTensor(file, await tensors.tensor(wanted), close);
    } catch (error) {
      await tensors?.close();
      throw failure(file, error);
    }
  }

  close(): Promise<void> {
    return this.#close();
  }

  /**
   * Returns an error about this tensor.
   * @param element the index of the element that it is about, such as '[2, 17]'.
   */
  error(expected: string, received: string, element = ''): LossError {
    return badFile(this.file, { key: this.name + element, expected, received });
  }

  /**
   * Yields the bytes of the elements in blocks. The next block is read while the caller works on the current one.
   * @param blocks the number of elements of each block.
   */
  async *blocks(blocks: Iterable<number>): AsyncGenerator<Uint8Array> {
    const { bytes } = this.#tensor.dtype;
    let reader: ByteReader | undefined;
    let next: Promise<Uint8Array> | undefined;
    try {
      reader = await this.#tensor.open();
      for (const count of blocks) {
        const current = next;
        next = afterwards(current, reader, count * bytes);
        // An error is thrown when its block is due. Until then, it must not count as unhandled.
        next.catch(() => {});
        if (current) yield await current;
      }
      if (next) yield await next;
    } catch (error) {
      throw failure(this.file, error);
    } finally {
      // A reader must not be closed while it reads.
      await next?.catch(() => {});
      await reader?.close();
    }
  }

  /** Yields the elements as numbers, in blocks. An integer that is too large for an exact number becomes text. */
  async *numbers(blocks: Iterable<number>): AsyncGenerator<ArrayLike<number | string>> {
    for await (const bytes of this.blocks(blocks)) yield this.#tensor.dtype.decode(bytes);
  }
}

// Reads the next bytes when those before have been read.
async function afterwards(before: Promise<unknown> | undefined, reader: ByteReader, bytes: number) {
  await before;
  return reader.read(bytes);
}

const failure = (file: string, error: unknown) => cannotRead(file, error, undefined, 'tensors');
