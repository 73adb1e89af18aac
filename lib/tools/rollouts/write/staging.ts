// Collects gradients in temporary files. The final file cannot be written immediately, because its beginning is known
// only at the end: a tensor file begins with the shapes of all tensors, and a table with the types of its columns.
import { type FileHandle, open } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { LossError } from '../../../base/errors.js';
import { readRecords } from '../records.js';
import { describeFailure, errorAt } from '../source.js';
import type { HalfDtype } from './half.js';
import { jsonText } from './json.js';
import { makeTemporaryFolder, removeTemporaryFolder } from './temporary.js';

/** One staged row. */
export interface StagedRow {
  /** The values of the id columns. A number that is not finite is a string, such as "NaN". */
  ids: Record<string, unknown>;
  grad: Float32Array;
  gradEntropy: Float32Array | undefined;
}

/** The type of an id column's values: 'integer' if all are integers, 'number' if all are numbers, otherwise 'text'. */
export type IdKind = 'integer' | 'number' | 'text';

/** An id column, and the type of its values over all rows. */
export interface IdColumn {
  name: string;
  kind: IdKind;
}

/** How rows of different lengths are arranged in a tensor: one after another, or padded to the same length. */
export type Layout = 'packed' | 'padded';

/** The dtype of gradients in a file. */
export type GradientDtype = 'float32' | HalfDtype;

/**
 * Writes all staged rows to a file.
 * @param file the temporary name under which to write.
 * @param how.name the name that the file will get once it is complete.
 */
export type WriteStaged = (
  staging: Staging,
  file: string,
  how: { layout: Layout; dtype: GradientDtype; name: string },
) => Promise<void>;

/** A line of the temporary file that holds the ids of all rows. Each line holds one row's ids and number of tokens. */
interface RowLine {
  tokens: number;
  ids: Record<string, unknown>;
}

const GRAD = 'grad';
const GRAD_ENTROPY = 'grad_entropy';
const ROWS = 'rows.jsonl';
// This program wrote the rows itself, so they are read whatever their size.
const UNLIMITED = { maxRowTokens: Number.MAX_SAFE_INTEGER };

/** The rows that were added so far. They are in temporary files, in their own directory next to the final file. */
export class Staging {
  rows = 0;
  tokens = 0;
  /** The number of tokens in the longest row. */
  longest = 0;
  hasEntropy = false;
  readonly directory: string;
  readonly #files = new Map<string, FileHandle>();
  readonly #kinds = new Map<string, { kind: IdKind; rows: number }>();

  private constructor(directory: string) {
    this.directory = directory;
  }

  /**
   * Creates the temporary directory, next to the final file.
   * @throws LossError if nothing can be written there.
   */
  static async nextTo(file: string): Promise<Staging> {
    const directory = await writing(file, async () =>
      makeTemporaryFolder(join(dirname(file), `.${basename(file)}-`)),
    );
    return new Staging(directory);
  }

  /** Adds rows. Each array holds the gradients of all these rows, one row after another. */
  async add(
    rows: readonly { tokens: number; ids: Record<string, unknown> }[],
    grad: Float32Array,
    gradEntropy: Float32Array | undefined,
  ): Promise<void> {
    if (this.rows === 0) this.hasEntropy = gradEntropy !== undefined;
    if (this.hasEntropy !== (gradEntropy !== undefined))
      throw new LossError('ERR_INVALID_INPUT', {
        key: 'gradEntropy',
        expected: 'an array with every part or with none',
        received: this.hasEntropy ? 'a part without it' : 'a part with it',
      });
    let lines = '';
    for (const { tokens, ids } of rows) {
      for (const [name, value] of Object.entries(ids)) this.#noteKind(name, value);
      lines += `${jsonText({ tokens, ids } satisfies RowLine)}\n`;
      this.longest = Math.max(this.longest, tokens);
    }
    this.rows += rows.length;
    this.tokens += grad.length;
    await this.#append(GRAD, bytesOf(grad));
    if (gradEntropy) await this.#append(GRAD_ENTROPY, bytesOf(gradEntropy));
    await this.#append(ROWS, Buffer.from(lines));
  }

  /** Returns the id columns, in the order in which they first appeared. */
  idColumns(): IdColumn[] {
    // If some rows lack a column, its type is text, because a column of numbers has no value that means "absent".
    return [...this.#kinds].map(([name, { kind, rows }]) => ({
      name,
      kind: rows === this.rows ? kind : 'text',
    }));
  }

  /** Yields all rows in order. Call end() first. */
  async *read(): AsyncGenerator<StagedRow> {
    const grad = await this.#reader(GRAD);
    const gradEntropy = this.hasEntropy ? await this.#reader(GRAD_ENTROPY) : undefined;
    try {
      for await (const block of readRecords(join(this.directory, ROWS), 'line', () => {}, UNLIMITED))
        for (const { bytes } of block) {
          const { tokens, ids } = JSON.parse(bytes().toString()) as RowLine;
          yield { ids, grad: await grad.next(tokens), gradEntropy: await gradEntropy?.next(tokens) };
        }
    } finally {
      await grad.close();
      await gradEntropy?.close();
    }
  }

  /** Closes the files, so that the rows can be read. No rows may be added afterwards. */
  async end(): Promise<void> {
    if (this.rows === 0) await this.add([], new Float32Array(), undefined);
    for (const file of this.#files.values()) await file.close();
    this.#files.clear();
  }

  /** Removes the temporary directory. */
  async remove(): Promise<void> {
    for (const file of this.#files.values()) await file.close();
    this.#files.clear();
    await removeTemporaryFolder(this.directory);
  }

  #noteKind(name: string, value: unknown): void {
    const kind = Number.isSafeInteger(value) ? 'integer' : typeof value === 'number' ? 'number' : 'text';
    const known = this.#kinds.get(name);
    if (!known) this.#kinds.set(name, { kind, rows: 1 });
    else {
      known.rows++;
      if (known.kind !== kind) known.kind = known.kind === 'text' || kind === 'text' ? 'text' : 'number';
    }
  }

  async #append(name: string, bytes: Uint8Array): Promise<void> {
    let file = this.#files.get(name);
    if (!file) {
      file = await open(join(this.directory, name), 'w');
      this.#files.set(name, file);
    }
    await file.appendFile(bytes);
  }

  async #reader(name: string): Promise<FloatReader> {
    return new FloatReader(await open(join(this.directory, name), 'r'));
  }
}

/** Reads float32 numbers from a file, in order. */
class FloatReader {
  readonly #file: FileHandle;
  #floats = new Float32Array(0);
  #used = 0;

  constructor(file: FileHandle) {
    this.#file = file;
  }

  /** Returns the next `count` numbers, in an array that belongs to the caller. */
  async next(count: number): Promise<Float32Array> {
    if (this.#used + count > this.#floats.length) {
      const rest = this.#floats.subarray(this.#used);
      const floats = new Float32Array(Math.max(count, FLOATS_AT_ONCE));
      floats.set(rest);
      const { bytesRead } = await this.#file.read(bytesOf(floats), rest.byteLength, null, null);
      this.#floats = floats.subarray(0, rest.length + bytesRead / Float32Array.BYTES_PER_ELEMENT);
      this.#used = 0;
    }
    this.#used += count;
    return this.#floats.slice(this.#used - count, this.#used);
  }

  close(): Promise<void> {
    return this.#file.close();
  }
}

const FLOATS_AT_ONCE = 1 << 16;

/** Returns an array's bytes as a view, without copying them. */
export function bytesOf(array: ArrayBufferView): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

/**
 * Calls a function that writes a file, and returns its result.
 * @throws LossError `ERR_INVALID_INPUT` with the file's name if the function fails.
 */
export async function writing<T>(file: string, write: () => Promise<T>): Promise<T> {
  try {
    return await write();
  } catch (error) {
    if (error instanceof LossError) throw error;
    const details = { expected: 'a writable file', received: describeFailure(error) };
    throw errorAt({ file }, 'ERR_INVALID_INPUT', details, error);
  }
}
