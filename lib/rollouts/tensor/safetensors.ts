// .safetensors: eight bytes with the length of a header, the header in JSON, and the tensors' bytes where it says.
import { type FileHandle, open } from 'node:fs/promises';
import { describeValue, type LossError } from '../../core/errors.js';
import { at } from '../source.js';
import { DTYPES } from './dtype.js';
import { type ByteReader, sizeOfShape, type TensorFile } from './tensor.js';

/** What the header says of a tensor. */
interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [begin: number, end: number];
}

/**
 * Opens a file of tensors.
 * @throws LossError where the header is none, or does not go with the file's length.
 */
export async function openSafetensors(file: string): Promise<TensorFile> {
  const handle = await open(file, 'r');
  try {
    const { size } = await handle.stat();
    const { entries, start } = await readHeader(file, handle, size);
    return {
      names: [...entries.keys()],
      async tensor(name) {
        const { dtype: typeName, shape, data_offsets } = entries.get(name)!;
        const dtype = DTYPES.get(typeName);
        if (!dtype)
          throw bad(
            file,
            `${name}: expected a tensor of dtype ${[...DTYPES.keys()].join(', ')}, not ${typeName}`,
          );
        const [begin, end] = data_offsets;
        if (end - begin !== sizeOfShape(shape) * dtype.bytes)
          throw bad(
            file,
            `${name}: expected ${sizeOfShape(shape) * dtype.bytes} bytes, as shape [${shape}] of ${typeName} has, and ` +
              `data_offsets [${data_offsets}] are ${end - begin}`,
          );
        return { name, shape, dtype, open: async () => rangeReader(file, handle, start + begin) };
      },
      close: () => handle.close(),
    };
  } catch (error) {
    await handle.close();
    throw error;
  }
}

async function readHeader(file: string, handle: FileHandle, size: number) {
  const reader = rangeReader(file, handle, 0);
  if (size < 8) throw bad(file, `expected a header, and the file has ${size} bytes`);
  const stated = new DataView((await reader.read(8)).buffer).getBigUint64(0, true);
  const length = Number(stated);
  if (length > size - 8 || length > MOST_HEADER)
    throw bad(
      file,
      `expected a header of at most ${Math.min(size - 8, MOST_HEADER)} bytes, and it says that it has ${stated}`,
    );
  let header: unknown;
  try {
    header = JSON.parse(Buffer.from(await reader.read(length)).toString());
  } catch (error) {
    throw at(
      { file },
      'ERR_INVALID_INPUT',
      `expected a header in JSON, and it does not parse: ${error}`,
      error,
    );
  }
  if (header === null || typeof header !== 'object' || Array.isArray(header))
    throw bad(file, `expected a JSON object for a header, not ${describeValue(header)}`);
  const start = 8 + length;
  const entries = new Map<string, Entry>();
  for (const [name, entry] of Object.entries(header))
    if (name !== '__metadata__') entries.set(name, checkEntry(file, name, entry, size - start));
  return { entries, start };
}

// What the format's own library accepts.
const MOST_HEADER = 100_000_000;

function checkEntry(file: string, name: string, value: unknown, size: number): Entry {
  const entry = value as Partial<Entry> | null;
  const natural = (n: unknown) => Number.isSafeInteger(n) && (n as number) >= 0;
  const naturals = (list: unknown): list is number[] => Array.isArray(list) && list.every(natural);
  if (
    !entry ||
    typeof entry.dtype !== 'string' ||
    !naturals(entry.shape) ||
    !Number.isSafeInteger(sizeOfShape(entry.shape)) ||
    !naturals(entry.data_offsets) ||
    entry.data_offsets.length !== 2
  )
    throw bad(
      file,
      `${name}: expected dtype, shape and data_offsets in the header, not ${JSON.stringify(value)}`,
    );
  const [begin, end] = entry.data_offsets;
  if (begin > end || end > size)
    throw bad(
      file,
      `${name}: expected data_offsets within the ${size} bytes that the file has after its header, not ` +
        `[${entry.data_offsets}]`,
    );
  return entry as Entry;
}

function rangeReader(file: string, handle: FileHandle, from: number): ByteReader {
  let position = from;
  return {
    // What is asked for is within the file, as its header was found to be.
    async read(bytes) {
      const target = new Uint8Array(bytes);
      for (let done = 0; done < bytes; ) {
        const { bytesRead } = await handle.read(target, done, bytes - done, position);
        if (bytesRead === 0)
          throw bad(file, `expected ${bytes - done} more bytes at ${position}, and the file ends`);
        done += bytesRead;
        position += bytesRead;
      }
      return target;
    },
    close: async () => {},
  };
}

function bad(file: string, message: string): LossError {
  return at({ file }, 'ERR_INVALID_INPUT', message);
}
