// What is to be written, first put aside as it comes: a file of tensors begins with the lengths of all of them, and a
// table with the types of its columns, which are known at the end only.
import { type FileHandle, mkdtemp, open, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { LossError } from '../../core/errors.js';
import { readRecords } from '../records.js';

/** One row that has been put aside. */
export interface StagedRow {
  ids: Record<string, unknown>;
  grad: Float32Array;
  gradEntropy: Float32Array | undefined;
}

/** What the values of an id column are: all whole numbers, all numbers, or anything. */
export type IdKind = 'integer' | 'number' | 'text';

/** An id column as it turned out. */
export interface IdColumn {
  name: string;
  kind: IdKind;
}

/** A row's line in the file of ids. */
interface RowLine {
  tokens: number;
  ids: Record<string, unknown>;
}

const GRAD = 'grad';
const GRAD_ENTROPY = 'grad_entropy';
const ROWS = 'rows.jsonl';

/** Rows put aside in a directory of their own beside the file that they are for. */
export class Staging {
  rows = 0;
  tokens = 0;
  /** The tokens of the longest row. */
  longest = 0;
  hasEntropy = false;
  readonly directory: string;
  readonly #files = new Map<string, FileHandle>();
  readonly #kinds = new Map<string, { kind: IdKind; rows: number }>();

  private constructor(directory: string) {
    this.directory = directory;
  }

  /** @throws LossError where nothing can be written there. */
  static async beside(file: string): Promise<Staging> {
    const directory = await writing(file, () => mkdtemp(join(dirname(file), `.${basename(file)}-`)));
    return new Staging(directory);
  }

  /** Puts rows aside, one array after another as their lengths say. */
  async add(
    rows: readonly { tokens: number; ids: Record<string, unknown> }[],
    grad: Float32Array,
    gradEntropy: Float32Array | undefined,
  ): Promise<void> {
    if (this.rows === 0) this.hasEntropy = gradEntropy !== undefined;
    if (this.hasEntropy !== (gradEntropy !== undefined))
      throw new LossError('ERR_INVALID_INPUT', 'gradEntropy: expected with every part or with none');
    let lines = '';
    for (const { tokens, ids } of rows) {
      for (const [name, value] of Object.entries(ids)) this.#note(name, value);
      lines += `${JSON.stringify({ tokens, ids } satisfies RowLine)}\n`;
      this.longest = Math.max(this.longest, tokens);
    }
    this.rows += rows.length;
    this.tokens += grad.length;
    await this.#append(GRAD, bytesOf(grad));
    if (gradEntropy) await this.#append(GRAD_ENTROPY, bytesOf(gradEntropy));
    await this.#append(ROWS, Buffer.from(lines));
  }

  /** The id columns, in the order in which they came up. */
  idColumns(): IdColumn[] {
    // A column that some rows lack has no number for them.
    return [...this.#kinds].map(([name, { kind, rows }]) => ({
      name,
      kind: rows === this.rows ? kind : 'text',
    }));
  }

  /** What has been put aside, row by row. */
  async *read(): AsyncGenerator<StagedRow> {
    const grad = await this.#reader(GRAD);
    const gradEntropy = this.hasEntropy ? await this.#reader(GRAD_ENTROPY) : undefined;
    try {
      for await (const block of readRecords(join(this.directory, ROWS), 'line', () => {}))
        for (const { text } of block) {
          const { tokens, ids } = JSON.parse(text) as RowLine;
          yield { ids, grad: await grad.next(tokens), gradEntropy: await gradEntropy?.next(tokens) };
        }
    } finally {
      await grad.close();
      await gradEntropy?.close();
    }
  }

  /** Ends what is being put aside, so that it can be read. */
  async end(): Promise<void> {
    if (this.rows === 0) await this.add([], new Float32Array(), undefined);
    for (const file of this.#files.values()) await file.close();
    this.#files.clear();
  }

  /** Takes it all away. */
  async remove(): Promise<void> {
    for (const file of this.#files.values()) await file.close();
    this.#files.clear();
    await rm(this.directory, { recursive: true, force: true });
  }

  #note(name: string, value: unknown): void {
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

/** Reads float32 one after another. */
class FloatReader {
  readonly #file: FileHandle;
  #floats = new Float32Array(0);
  #used = 0;

  constructor(file: FileHandle) {
    this.#file = file;
  }

  /** The next so many. They are the caller's. */
  async next(count: number): Promise<Float32Array> {
    if (this.#used + count > this.#floats.length) {
      const left = this.#floats.subarray(this.#used);
      const floats = new Float32Array(Math.max(count, FLOATS_AT_ONCE));
      floats.set(left);
      const { bytesRead } = await this.#file.read(bytesOf(floats), left.byteLength, null, null);
      this.#floats = floats.subarray(0, left.length + bytesRead / Float32Array.BYTES_PER_ELEMENT);
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

/** An array's own bytes. */
export function bytesOf(array: ArrayBufferView): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

/**
 * Does something that writes a file.
 * @throws LossError `ERR_INVALID_INPUT` naming the file, where the system refuses.
 */
export async function writing<T>(file: string, write: () => Promise<T>): Promise<T> {
  try {
    return await write();
  } catch (error) {
    if (error instanceof LossError) throw error;
    const reason = error instanceof Error ? error.message : String(error);
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${file}: expected a file to write to, and it cannot be written: ${reason}`,
      {
        cause: error,
      },
    );
  }
}
