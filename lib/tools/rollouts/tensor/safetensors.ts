// Reads the .safetensors format. Eight bytes hold the length of a JSON header. The header gives the position of each
// tensor's bytes in the rest of the file.
import { type FileHandle, open } from 'node:fs/promises';
import { describeValue } from '../../../base/errors.js';
import { sizeOfJson } from '../json-size.js';
import { badFile, describeFailure, errorAt } from '../source.js';
import { DTYPES } from './dtype.js';
import { rangeReader } from './range.js';
import { describeShape, sizeOfShape, type TensorFile } from './tensor.js';

/** What the header says about one tensor. The offsets count from the end of the header. */
interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [begin: number, end: number];
}

/**
 * Opens a file in the .safetensors format.
 * @param path where its bytes are.
 * @throws LossError if the header is malformed or does not fit the file's length.
 */
export async function openSafetensors(file: string, path = file): Promise<TensorFile> {
  const handle = await open(path, 'r');
  try {
    const { size } = await handle.stat();
    const { entries, start } = await readHeader(file, handle, size);
    return {
      names: [...entries.keys()],
      async tensor(name) {
        const { dtype: typeName, shape, data_offsets } = entries.get(name)!;
        const dtype = DTYPES.get(typeName);
        if (!dtype)
          throw badFile(file, {
            key: name,
            expected: `a tensor of dtype ${[...DTYPES.keys()].join(', ')}`,
            received: typeName,
          });
        const [begin, end] = data_offsets;
        const bytes = sizeOfShape(shape) * dtype.bytes;
        if (end - begin !== bytes)
          throw badFile(file, {
            key: name,
            expected: `${bytes} bytes for shape ${describeShape(shape)} of ${typeName}`,
            received: `data_offsets ${describeShape(data_offsets)}, which span ${end - begin} bytes`,
          });
        return {
          name,
          shape,
          dtype,
          open: async () => rangeReader(file, handle, start + begin, start + end),
        };
      },
      close: () => handle.close(),
    };
  } catch (error) {
    await handle.close();
    throw error;
  }
}

async function readHeader(file: string, handle: FileHandle, size: number) {
  const reader = rangeReader(file, handle, 0, size);
  if (size < 8) throw badFile(file, { expected: 'a header', received: `a file of ${size} bytes` });
  const stated = new DataView((await reader.read(8)).buffer).getBigUint64(0, true);
  const length = Number(stated);
  if (length > size - 8 || length > MAX_HEADER)
    throw badFile(file, {
      expected: `a header of at most ${Math.min(size - 8, MAX_HEADER)} bytes`,
      received: `one of ${stated}`,
    });
  const start = 8 + length;
  return { entries: parseHeader(file, await reader.read(length), size - start), start };
}

/**
 * Parses the header of a file.
 * @param size the number of bytes after the header.
 * @throws LossError if the header is malformed, or if a tensor is not within these bytes or overlaps another one.
 */
export function parseHeader(file: string, bytes: Uint8Array, size: number): Map<string, Entry> {
  checkNesting(file, bytes);
  let header: unknown;
  try {
    header = JSON.parse(Buffer.from(bytes).toString());
  } catch (error) {
    const details = { expected: 'a header in JSON', received: describeFailure(error) };
    throw errorAt({ file }, 'ERR_INVALID_INPUT', details, error);
  }
  if (header === null || typeof header !== 'object' || Array.isArray(header))
    throw badFile(file, { expected: 'a JSON object as the header', received: describeValue(header) });
  const entries = new Map<string, Entry>();
  for (const [name, entry] of Object.entries(header))
    if (name !== '__metadata__') entries.set(name, checkEntry(file, name, entry, size));
  checkOverlap(file, entries);
  return entries;
}

/** The maximum length of a header in bytes. The official safetensors library has the same limit. */
export const MAX_HEADER = 100_000_000;

// A file of rollouts has far fewer tensors. JSON.parse needs up to 50 times the memory of the text that it parses.
const MAX_VALUES = 1_000_000;
const MAX_DEPTH = 8;

/** Checks that a header has few values and levels, so that it can be parsed and its parts shown in messages. */
function checkNesting(file: string, json: Uint8Array): void {
  const { elements, depth } = sizeOfJson(json);
  if (depth > MAX_DEPTH || elements > MAX_VALUES)
    throw badFile(file, {
      expected: `a header of at most ${MAX_VALUES} values in ${MAX_DEPTH} levels`,
      received: 'more',
    });
}

function checkOverlap(file: string, entries: ReadonlyMap<string, Entry>): void {
  const inOrder = [...entries]
    .map(([name, { data_offsets }]) => ({ name, begin: data_offsets[0], end: data_offsets[1] }))
    .filter(({ begin, end }) => begin < end)
    .sort((a, b) => a.begin - b.begin);
  for (const [i, { name, begin, end }] of inOrder.entries()) {
    const before = inOrder[i - 1];
    if (before && before.end > begin)
      throw badFile(file, {
        key: name,
        expected: `data_offsets from ${before.end}, where ${before.name} ends`,
        received: describeShape([begin, end]),
      });
  }
}

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
    throw badFile(file, {
      key: name,
      expected: 'dtype, shape and data_offsets in the header',
      received: JSON.stringify(value),
    });
  const [begin, end] = entry.data_offsets;
  if (begin > end || end > size)
    throw badFile(file, {
      key: name,
      expected: `data_offsets within the ${size} bytes after the header`,
      received: describeShape(entry.data_offsets),
    });
  return entry as Entry;
}
