// Writes columns of numbers whose shape is known from the beginning, such as the log-probabilities of a tensor of logits.
import { type FileHandle, open, rename } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { type Format, formatOf, unknownFormat } from '../file-name.js';
import { finiteOrText } from './json.js';
import { shortest } from './json-lines.js';
import { bytesOfTensor, header } from './safetensors.js';
import { bytesOf, writing } from './staging.js';
import { makeTemporaryFolder, removeTemporaryFolder } from './temporary.js';

type ColumnValues = Float64Array | Float32Array | Uint8Array;

/** The columns to write. Those with wider numbers must come first, so that all tensors of a file are aligned. */
export type Columns = Readonly<Record<string, 'F64' | 'F32' | 'U8'>>;

/** Writes columns block by block. Until the file is complete, it has a temporary name. */
export interface ColumnsWriter {
  /** Adds the next numbers of each column, in row-major order. All columns must have the same number of them. */
  add(block: Readonly<Record<string, ColumnValues>>): Promise<void>;
  /** Completes the file, and returns its size in bytes. */
  close(): Promise<number>;
  /** Removes everything that has been written so far. Does nothing after close(). */
  abort(): Promise<void>;
}

/** Turns blocks into the bytes of a file. */
interface ColumnsFormat extends Format {
  begin(target: FileHandle, columns: Columns, shape: readonly number[]): Promise<AddBlock>;
}

type AddBlock = ColumnsWriter['add'];

const FORMATS: readonly ColumnsFormat[] = [
  { endings: ['.safetensors'], begin: beginTensors },
  { endings: ['.jsonl', '.ndjson'], begin: beginLines },
];

/**
 * Checks that the ending of a file's name is one that columnsWriter() knows.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function checkColumnsFormat(file: string): void {
  if (!formatOf(FORMATS, file)) throw unknownFormat('ERR_INVALID_OPTION', file, FORMATS);
}

/**
 * Returns a writer of columns that all have the same shape. The ending of the file's name determines the format: a tensor
 * per column in `.safetensors`; one line per index of the first dimension in `.jsonl` and `.ndjson`, in which a column of
 * two dimensions is a list. Numbers are written as writeGradients() writes them.
 * @param shape one or two dimensions.
 * @throws LossError `ERR_INVALID_OPTION` if the format is unknown. The writer's methods reject with `ERR_INVALID_INPUT` if
 * the file cannot be written.
 */
export function columnsWriter(file: string, columns: Columns, shape: readonly number[]): ColumnsWriter {
  checkColumnsFormat(file);
  const format = formatOf(FORMATS, file)!;
  let folder: string | undefined;
  let target: FileHandle | undefined;
  let addBlock: AddBlock | undefined;
  const complete = () => join(folder!, 'complete');
  const begin = async () => {
    if (addBlock) return addBlock;
    folder = makeTemporaryFolder(join(dirname(file), `.${basename(file)}-`));
    target = await open(complete(), 'w');
    addBlock = await format.begin(target, columns, shape);
    return addBlock;
  };
  const closeTarget = async () => {
    await target?.close();
    target = undefined;
  };
  const abort = async () => {
    await closeTarget();
    if (folder !== undefined) await removeTemporaryFolder(folder);
    folder = undefined;
  };
  return {
    add: (block) => writing(file, async () => (await begin())(block)),
    close: () =>
      writing(file, async () => {
        await begin();
        const { size } = await target!.stat();
        await closeTarget();
        await rename(complete(), file);
        await abort();
        return size;
      }),
    abort: () => writing(file, abort),
  };
}

async function beginTensors(target: FileHandle, columns: Columns, shape: readonly number[]) {
  const entries = Object.entries(columns).map(([name, dtype]) => ({ name, dtype, shape }));
  const head = header(entries, {});
  await target.appendFile(head);
  const positions = new Map<string, number>();
  let end = head.length;
  for (const entry of entries) {
    positions.set(entry.name, end);
    end += bytesOfTensor(entry);
  }
  const add: AddBlock = async (block) => {
    for (const [name, position] of positions) {
      const bytes = bytesOf(block[name]!);
      for (let done = 0; done < bytes.length; ) {
        const { bytesWritten } = await target.write(bytes, done, bytes.length - done, position + done);
        done += bytesWritten;
      }
      positions.set(name, position + bytes.length);
    }
  };
  return add;
}

async function beginLines(target: FileHandle, columns: Columns, [, width]: readonly number[]) {
  const names = Object.keys(columns);
  let line: Record<string, (number | string)[]> = Object.fromEntries(names.map((name) => [name, []]));
  const add: AddBlock = async (block) => {
    const values = Object.fromEntries(names.map((name) => [name, jsonNumbers(block[name]!)]));
    const { length } = values[names[0]!]!;
    let text = '';
    for (let i = 0; i < length; i++) {
      for (const name of names) line[name]!.push(values[name]![i]!);
      if (width !== undefined && line[names[0]!]!.length < width) continue;
      const shown = names.map((name) => [name, width === undefined ? line[name]![0] : line[name]]);
      text += `${JSON.stringify(Object.fromEntries(shown))}\n`;
      line = Object.fromEntries(names.map((name) => [name, []]));
    }
    await target.appendFile(text);
  };
  return add;
}

const jsonNumbers = (values: ColumnValues): (number | string)[] =>
  values instanceof Float32Array
    ? shortest(values)
    : Array.from<number, number | string>(values, finiteOrText);
